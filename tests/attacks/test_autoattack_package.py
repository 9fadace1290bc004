"""AutoAttack against its own package: the same images, and `version=package`, which leaves everything to it."""

import logging
import random
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace

import numpy as np
import pyautoattack
import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack, APGDAttack_targeted
from torch import Tensor, nn

from linear_network import RADII, Linear, Version, problem, victim_of
from rrbench.compute.draws import HashedDraws
from rrbench.compute.eval_mode import frozen
from rrbench.compute.instrumented import Instrumented
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Norm, Outputs, Rejector
from rrbench_attacks.autoattack import AutoAttack, Logits, Package, Run, find, lent
from rrbench_baselines.confidence import Confidence

MOVES = {"linf": Fraction(1, 20), "l2": Fraction(2, 5)}  # for the trained network

pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_the_authors_package_goes_before_its_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find("square").__name__ == "pyautoattack.square"
    assert AutoAttack().packages == ("pyautoattack",)
    for name in ("autoattack", "autoattack.square"):
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        monkeypatch.setitem(sys.modules, name, module)
    assert find("square").__name__ == "autoattack.square"
    assert AutoAttack().packages == ("autoattack",)
