"""AutoAttack against a linear classifier, whose nearest adversarial point is known, and against its own package."""

import logging
import random
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Literal

import numpy as np
import pyautoattack
import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.compute.eval_mode import frozen
from rrbench.compute.instrumented import Instrumented
from rrbench.errors import CellError
from rrbench.names import parse, resolve
from rrbench.protocols import Batch, Budget, Norm, Outputs, Rejector, Victim
from rrbench_attacks.autoattack import AutoAttack, Logits, Package, Run, find, lent
from rrbench_baselines.confidence import Confidence

Version = Literal["standard", "original", "apgd", "package"]
RADII = {"linf": Fraction(1, 250), "l2": Fraction(1, 40)}
MOVES = {"linf": Fraction(1, 20), "l2": Fraction(2, 5)}  # for the trained network
SHAPE = (1, 8, 8)

pytestmark = pytest.mark.usefixtures("one_thread")


class Linear(nn.Module):
    """Logits W (x - 1/2)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        ids = torch.arange(classes)
        self.weight = HashedDraws(1).normal(ids, (64,), 0)

    def forward(self, images: Tensor) -> Outputs:
        none = images.new_zeros(len(images), 0)
        return Outputs(none, (images - 0.5).flatten(1) @ self.weight.T, none)

    def distances(self, images: Tensor, labels: Tensor, norm: Norm) -> Tensor:
        """Return how far the nearest point of another class is; negative where the answer is wrong already."""
        logits = self(images).logits
        gaps = logits.gather(1, labels[:, None]) - logits
        slopes = self.weight[labels][:, None] - self.weight
        dual = slopes.abs().sum(2) if norm == "linf" else slopes.norm(dim=2)
        nearest: Tensor = (gaps / dual).scatter(1, labels[:, None], torch.inf).amin(1)
        return nearest


def problem(classes: int, count: int) -> tuple[Linear, Batch, Tensor]:
    """Return a linear network, images well inside [0, 1], and which of them bear another label than its answer."""
    network, ids = Linear(classes), torch.arange(count)
    images = 0.5 + 0.2 * (HashedDraws(2).uniform(ids, SHAPE, 0) - 0.5)
    answers = network(images).logits.argmax(1)
    is_wrong = ids % 10 == 3
    return network, Batch(images, torch.where(is_wrong, (answers + 1) % classes, answers), ids + 100), is_wrong


def victim_of(network: nn.Module) -> Victim:
    return Victim(network, Confidence())


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    ("version", "classes"), [("standard", 5), ("apgd", 5), ("original", 5), ("original", 3), ("package", 5)]
)
def test_it_fools_exactly_where_the_boundary_is_within_the_budget(version: Version, classes: int, norm: Norm) -> None:
    network, batch, is_wrong = problem(classes, 60)
    budget = Budget(norm, RADII[norm])
    distances = network.distances(batch.images, batch.labels, norm)
    is_near, is_far = (distances < 0.97 * budget.eps) & ~is_wrong, distances > budget.eps
    assert is_near.sum() > 10
    assert is_far.sum() > 10
    moved = AutoAttack(version, steps=10, queries=20)(victim_of(network), batch, budget, HashedDraws(3))
    is_fooled = network(moved.images).logits.argmax(1) != batch.labels
    assert is_fooled[is_near].all()
    assert not is_fooled[is_far].any()
    kept = is_wrong | ~is_fooled
    assert torch.equal(moved.images[kept], batch.images[kept])
    delta = (moved.images - batch.images).flatten(1)
    assert float(delta.norm(p=torch.inf if norm == "linf" else 2, dim=1).max()) <= budget.eps + 1e-6
    assert moved.boldest is not None
    assert torch.equal(moved.boldest, moved.images)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_square_alone_fools_and_the_images_it_cannot_fool_stay_clean(norm: Norm) -> None:
    network, batch, is_wrong = problem(5, 60)
    budget = Budget(norm, RADII[norm])
    moved = OnlySquare(queries=200)(victim_of(network), batch, budget, HashedDraws(3))
    is_fooled = network(moved.images).logits.argmax(1) != batch.labels
    distances = network.distances(batch.images, batch.labels, norm)
    assert is_fooled[(distances < 0.2 * budget.eps) & ~is_wrong].all()
    assert not is_fooled[distances > budget.eps].any()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("version", ["standard", "original"])
def test_the_answers_do_not_depend_on_the_batch(version: Version, norm: Norm) -> None:
    network, batch, _ = problem(5, 40)
    attack, budget = AutoAttack(version, steps=5, queries=30), Budget(norm, RADII[norm])

    def images(part: Batch) -> Tensor:
        return attack(victim_of(network), part, budget, HashedDraws(3)).images

    whole = images(batch)
    shuffled = torch.tensor([17, *range(17), *range(18, 40)])
    assert torch.allclose(images(batch.at(shuffled)), whole[shuffled], atol=1e-5)
    parts = [images(batch.at(piece)) for piece in (slice(0, 1), slice(1, 9), slice(9, 40))]
    assert torch.allclose(torch.cat(parts), whole, atol=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("version", ["standard", "original"])
def test_no_run_of_the_package_depends_on_the_batch(
    build_network: Callable[[Rejector], nn.Module], patterns: Batch, version: Version, norm: Norm
) -> None:
    network, draws = build_network(Confidence()), HashedDraws(3)
    right = patterns.at(network(patterns.images).logits.argmax(1) == patterns.labels).at(slice(20))
    package = Package(Logits(network), Budget(norm, 3 * MOVES[norm]), draws, steps=2, queries=20)
    differing = 0
    for number, run in enumerate(AutoAttack(version).runs(package, 4)):
        answers = []
        for pieces in ([slice(0, 20)], [slice(0, 1), slice(1, 9), slice(9, 20)]):
            with torch.no_grad(), lent(network, draws, torch.device("cpu")):
                answers.append(torch.cat([begin(run, right.at(piece), number) for piece in pieces]))
        differing += int(((answers[0] - answers[1]).abs().flatten(1).amax(1) > 1e-4).sum())
        assert not torch.equal(answers[0], right.images)
    assert differing <= 1  # where rounding turns a gradient of nearly 0


def begin(run: Run, batch: Batch, number: int) -> Tensor:
    """Run from the same state of PyTorch's generator, as the attack does."""
    torch.default_generator.manual_seed(0)
    return run(batch, number)


@pytest.mark.parametrize(("excess", "is_counted"), [(5e-7, True), (1e-3, False)])
def test_what_lies_beyond_the_budget_does_not_count_but_for_rounding(excess: float, is_counted: bool) -> None:
    network, batch, is_wrong = problem(5, 40)
    budget = Budget("linf", RADII["linf"])

    def overdo(rest: Batch, number: int) -> Tensor:
        return rest.images - (budget.eps + excess) * network.weight[rest.labels].sign().view(-1, *SHAPE)

    class Overdone(AutoAttack):
        def runs(self, package: Package, classes: int) -> list[Run]:
            return [overdo]

    moved = Overdone()(victim_of(network), batch, budget, HashedDraws(3)).images
    is_fooled = (network(moved).logits.argmax(1) != batch.labels) & ~is_wrong
    assert bool(is_fooled.any()) == is_counted
    assert float((moved - batch.images).abs().max()) <= budget.eps + 1e-7


class PackageDraws:
    """Draws as the package would: PyTorch's numbers in their order, from the seed again for each of its attacks."""

    def __init__(self, seed: int, fresh: set[int]) -> None:
        self.seed, self.fresh, self.generator = seed, fresh, torch.Generator()

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        if ids.tolist() == [-1]:
            return torch.zeros(1, 1)
        return torch.rand(len(ids), *shape, generator=self.begin(restart))

    def normal(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.randn(len(ids), *shape, generator=self.begin(restart))

    def begin(self, restart: int) -> torch.Generator:
        return self.generator.manual_seed(self.seed) if restart in self.fresh else self.generator


class OnlySquare(AutoAttack):
    def runs(self, package: Package, classes: int) -> list[Run]:
        return [package.square]


class WithoutSquare(AutoAttack):
    def runs(self, package: Package, classes: int) -> list[Run]:
        return super().runs(package, classes)[:-1]


def run_package(network: nn.Module, batch: Batch, budget: Budget, attacks: list[str], steps: int) -> Tensor:
    """Run the package by its own door, from seed 5."""
    norm, logits = {"linf": "Linf", "l2": "L2"}[budget.norm], Logits(network)
    with torch.random.fork_rng(), frozen(network):
        peer = pyautoattack.AutoAttack(logits, norm=norm, eps=budget.eps, seed=5, version="custom", attacks=attacks)
        restarts = 5 if "apgd-dlr" in attacks else 1
        peer.apgd = APGDAttack(logits, n_iter=steps, norm=norm, eps=budget.eps, n_restarts=restarts, device="cpu")
        peer.apgd_targeted = APGDAttack_targeted(logits, n_iter=steps, norm=norm, eps=budget.eps, device="cpu")
        peer.fab.n_iter, peer.square.n_queries = steps, 50
        classes = logits(batch.images).shape[1]
        peer.apgd_targeted.n_target_classes = peer.fab.n_target_classes = min(9, classes - 1)
        images: Tensor = peer.run_standard_evaluation(batch.images, batch.labels)[0]
    return images


STANDARD, ORIGINAL = ["apgd-ce", "apgd-t", "fab-t", "square"], ["apgd-ce", "apgd-dlr", "fab", "square"]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize(
    ("version", "attacks", "fresh"), [("standard", STANDARD, {0, 1}), ("original", ORIGINAL, {0, 5, 11})]
)
def test_with_the_package_s_random_numbers_it_gives_the_package_s_images(
    build_network: Callable[[Rejector], nn.Module],
    patterns: Batch,
    version: Version,
    attacks: list[str],
    fresh: set[int],
    norm: Norm,
) -> None:
    network, batch = build_network(Confidence()), patterns.at(slice(40))
    budget = Budget(norm, MOVES[norm])
    ours = WithoutSquare(version, steps=5)(victim_of(network), batch, budget, PackageDraws(5, fresh)).images
    theirs = run_package(network, batch, budget, attacks[:-1], steps=5)
    assert torch.allclose(ours, theirs, atol=1e-5)
    is_moved = (ours != batch.images).flatten(1).any(1)
    assert 0 < is_moved.sum() < 40


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_fab_starts_at_random_as_the_package_s_does(
    build_network: Callable[[Rejector], nn.Module], patterns: Batch, norm: Norm
) -> None:
    network, budget = build_network(Confidence()), Budget(norm, MOVES[norm])
    right = patterns.at(network(patterns.images).logits.argmax(1) == patterns.labels).at(slice(20))
    package = Package(Logits(network), budget, PackageDraws(5, {0}), steps=1, queries=1)
    with torch.no_grad(), lent(network, HashedDraws(3), torch.device("cpu")):
        ours, unmoved = package.fab(right, 0, is_random=True), package.fab(right, 0)
        torch.manual_seed(5)
        theirs = package.make("fab_pt", "FABAttack_PT", right, n_iter=1).attack_single_run(
            right.images, right.labels, use_rand_start=True
        )
    assert torch.allclose(ours, theirs, atol=1e-5)
    assert not torch.allclose(ours, unmoved, atol=1e-3)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_robust_accuracy_is_the_package_s_within_one_image_in_a_hundred(
    build_network: Callable[[Rejector], nn.Module], patterns: Batch, norm: Norm
) -> None:
    network, budget = build_network(Confidence()), Budget(norm, MOVES[norm])
    ours = AutoAttack(steps=10, queries=50)(victim_of(network), patterns, budget, HashedDraws(3)).images
    theirs = run_package(network, patterns, budget, STANDARD, steps=10)
    correct = [int((network(images).logits.argmax(1) == patterns.labels).sum()) for images in (ours, theirs)]
    assert patterns.size == 100
    assert abs(correct[0] - correct[1]) <= 1
    assert 20 < correct[0] < 80


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_version_package_gives_the_images_of_the_package_alone(
    build_network: Callable[[Rejector], nn.Module], patterns: Batch, norm: Norm
) -> None:
    network, batch, budget = build_network(Confidence()), patterns.at(slice(60)), Budget(norm, MOVES[norm])
    attack = AutoAttack("package", steps=5, queries=20)
    ours = attack(victim_of(network), batch, budget, HashedDraws(3)).images
    right = batch.at(network(batch.images).logits.argmax(1) == batch.labels)
    with frozen(network), lent(network, HashedDraws(3), torch.device("cpu")):
        alone = pyautoattack.AutoAttack(
            Logits(network),
            norm="Linf" if norm == "linf" else "L2",
            eps=budget.eps,
            seed=torch.default_generator.initial_seed(),
        )
        alone.apgd.n_iter = alone.apgd_targeted.n_iter = alone.fab.n_iter = 5
        alone.apgd_targeted.n_target_classes = alone.fab.n_target_classes = 3
        alone.square.n_queries = 20
        theirs, _ = alone.run_standard_evaluation(right.images, right.labels)
    is_right = torch.isin(batch.ids, right.ids)
    assert torch.allclose(ours[is_right], theirs, atol=1e-6)
    assert torch.equal(ours[~is_right], batch.images[~is_right])
    is_moved = (ours != batch.images).flatten(1).any(1)
    assert 0 < is_moved.sum() < is_right.sum()
    other = attack(victim_of(network), batch, budget, HashedDraws(4)).images
    assert not torch.equal(other, ours)


class Loud(Linear):
    """Makes the package's logger warn, as its checks do."""

    def forward(self, images: Tensor) -> Outputs:
        logging.getLogger("auto-attack").warning("this network is suspicious")
        return super().forward(images)


@pytest.mark.parametrize("version", ["original", "package"])
def test_random_states_are_put_back_and_nothing_is_printed(version: Version, capfd: pytest.CaptureFixture[str]) -> None:
    _, batch, _ = problem(5, 10)
    before, numpy_before, python_before = torch.get_rng_state(), np.random.get_state(), random.getstate()
    handlers, trace = list(logging.root.handlers), sys.gettrace()

    def tracer(*seen: object) -> None:
        return None

    attack, budget = AutoAttack(version, steps=3, queries=5), Budget("linf", RADII["linf"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sys.settrace(tracer)
        try:
            attack(victim_of(Linear(5)), batch, budget, HashedDraws(3))
            assert sys.gettrace() is tracer
        finally:
            sys.settrace(trace)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(np.array_equal(now, then) for now, then in zip(np.random.get_state(), numpy_before, strict=True))
    assert random.getstate() == python_before
    assert logging.root.handlers == handlers
    with lent(Loud(5), HashedDraws(3), torch.device("cpu")):
        Loud(5)(batch.images)
    assert capfd.readouterr() == ("", "")
    assert not logging.getLogger("auto-attack").disabled


def test_the_package_may_not_judge_images_in_lower_precision() -> None:
    network, batch, _ = problem(5, 10)
    counted = Instrumented(network, "bf16")
    with pytest.raises(
        CellError, match=r"^autoattack\(package\) judges its images itself, which needs --precision fp32$"
    ):
        AutoAttack("package")(victim_of(counted), batch, Budget("linf", RADII["linf"]), HashedDraws(3))
    assert counted.forwards == 0


def test_the_authors_package_evaluates_in_silence_with_our_settings_and_returns_images_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Evaluation:
        """Has the door of the authors' own package."""

        def __init__(
            self, model: nn.Module, norm: str, eps: float, seed: int, verbose: bool, device: torch.device
        ) -> None:
            assert not verbose
            self.norm, self.eps, self.seed = norm, eps, seed
            self.apgd, self.apgd_targeted, self.fab, self.square = (SimpleNamespace() for _ in range(4))
            made.append(self)

        def run_standard_evaluation(self, x_orig: Tensor, y_orig: Tensor, bs: int = 250) -> Tensor:
            return x_orig + self.eps

    made: list[Evaluation] = []
    for name in ("autoattack", "autoattack.autoattack"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setattr(module, "AutoAttack", Evaluation, raising=False)
        monkeypatch.setitem(sys.modules, name, module)
    network, batch, is_wrong = problem(5, 30)
    budget = Budget("linf", Fraction(1, 50))
    moved = AutoAttack("package", steps=7, queries=9)(victim_of(network), batch, budget, HashedDraws(3)).images
    (one,) = made
    assert (one.norm, one.eps) == ("Linf", budget.eps)
    assert one.apgd.n_iter == one.apgd_targeted.n_iter == one.fab.n_iter == 7
    assert one.apgd_targeted.n_target_classes == one.fab.n_target_classes == 4
    assert one.square.n_queries == 9
    brighter = (batch.images + budget.eps).clamp(0, 1)
    fooled = (network(brighter).logits.argmax(1) != batch.labels) & ~is_wrong
    assert 0 < fooled.sum() < 25
    expected = torch.where(fooled[:, None, None, None], brighter, batch.images)
    assert torch.allclose(moved, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("version", "classes"), [("standard", 2), ("standard", 3), ("apgd", 3), ("original", 2), ("package", 3)]
)
def test_too_few_classes_are_refused_before_any_gradient(version: Version, classes: int) -> None:
    network, batch, _ = problem(classes, 10)
    counted = Instrumented(network, "fp32")
    with pytest.raises(CellError, match=f"DLR is undefined for {classes}"):
        AutoAttack(version)(victim_of(counted), batch, Budget("linf", RADII["linf"]), HashedDraws(3))
    assert counted.gradients == 0


def test_images_too_small_for_square_in_l2_are_refused() -> None:
    network, batch, _ = problem(5, 10)
    flat = batch._replace(images=batch.images.view(10, 1, 4, 16))
    with pytest.raises(CellError, match="5 rows"):
        AutoAttack()(victim_of(network), flat, Budget("l2", RADII["l2"]), HashedDraws(3))


def test_apgd_alone_is_the_first_half_of_the_standard_attack() -> None:
    network, batch, _ = problem(5, 40)
    small = Budget("linf", RADII["linf"])
    half = AutoAttack("apgd", steps=10)(victim_of(network), batch, small, HashedDraws(3)).images
    whole = AutoAttack(steps=10, queries=20)(victim_of(network), batch, small, HashedDraws(3)).images
    is_fooled = network(half).logits.argmax(1) != batch.labels
    assert torch.equal(half[is_fooled], whole[is_fooled])
    flat = batch._replace(images=batch.images.view(40, 1, 4, 16))  # too small for Square, which does not run
    AutoAttack("apgd", steps=2)(victim_of(network), flat, Budget("l2", RADII["l2"]), HashedDraws(3))


@pytest.mark.parametrize("version", ["standard", "original", "apgd", "package"])
def test_the_cost_announced_is_that_of_an_image_that_nothing_fools(version: Version) -> None:
    network, batch, _ = problem(5, 10)
    counted, attack = Instrumented(network, "fp32"), AutoAttack(version, steps=4, queries=5)
    right = batch.at(network(batch.images).logits.argmax(1) == batch.labels)
    attack(victim_of(counted), right, Budget("linf", Fraction(1, 10**6)), HashedDraws(3))
    # The counter sees one gradient where untargeted FAB takes one for every class.
    uncounted = 5 * 4 * (5 - 1) if version == "original" else 0
    assert counted.gradients / right.size == attack.gradients_per_image(5) - uncounted


def test_images_in_another_memory_layout_give_the_same_answer() -> None:
    network, batch, _ = problem(5, 20)
    attack, budget = AutoAttack(steps=3, queries=5), Budget("l2", RADII["l2"])
    rows_last = batch._replace(images=batch.images.expand(20, 3, 8, 8).to(memory_format=torch.channels_last)[:, :1])
    answers = [attack(victim_of(network), part, budget, HashedDraws(3)).images for part in (batch, rows_last)]
    assert torch.equal(*answers)


def test_the_authors_package_goes_before_its_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("square").__name__ == "pyautoattack.square"
    assert AutoAttack().packages == ("pyautoattack",)
    for name in ("autoattack", "autoattack.square"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    assert find("square").__name__ == "autoattack.square"
    assert AutoAttack().packages == ("autoattack",)


def test_the_name_takes_the_version_first() -> None:
    choice = resolve("attack", parse("autoattack(original,queries=1000)"), {"autoattack": AutoAttack}, {})
    assert dict(choice.settings) == {"version": "original", "steps": 100, "queries": 1000}
    assert resolve("attack", parse(str(choice)), {"autoattack": AutoAttack}, {}) == choice
    with pytest.raises(ValueError, match="at least 1"):
        AutoAttack(steps=0)


class Trembling(nn.Module):
    """A network in short precision: its margins are off by a little."""

    def __init__(self, exact: Linear) -> None:
        super().__init__()
        self.exact = exact

    def forward(self, images: Tensor) -> Outputs:
        outputs: Outputs = self.exact(images)
        return outputs._replace(logits=outputs.logits * torch.linspace(0.9, 1.1, outputs.logits.shape[1]))


def test_what_counts_as_fooled_is_judged_exactly_whatever_the_attack_sees() -> None:
    network, batch, wrong = problem(5, 60)
    counted = Instrumented(Trembling(network), "fp32", exact=network)
    budget = Budget("linf", RADII["linf"])
    attack = AutoAttack(steps=10, queries=20)
    with frozen(counted):
        images = attack(Victim(counted, Confidence()), batch, budget, HashedDraws(0)).images
    moved = (images != batch.images).flatten(1).any(1)
    answers = network(images).logits.argmax(1)
    assert 5 < int(moved.sum()) < 55
    assert bool((answers[moved] != batch.labels[moved]).all()), "every image it hands out as fooled is fooled"
    assert torch.equal(network(batch.images).logits.argmax(1) != batch.labels, wrong)
    assert not bool(moved[wrong].any()), "what the exact network gets wrong already is left alone"
