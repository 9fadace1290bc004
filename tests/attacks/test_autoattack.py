"""AutoAttack against a linear classifier, whose nearest adversarial point is known."""

from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from linear_network import RADII, SHAPE, Linear, Version, problem, victim_of
from rrbench.compute.draws import HashedDraws
from rrbench.compute.eval_mode import frozen
from rrbench.compute.instrumented import Instrumented
from rrbench.errors import CellError
from rrbench.names import parse, resolve
from rrbench.protocols import Batch, Budget, Norm, Outputs, Victim
from rrbench_attacks.autoattack import AutoAttack, Package, Run
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("one_thread")


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


class OnlySquare(AutoAttack):
    def runs(self, package: Package, classes: int) -> list[Run]:
        return [package.square]


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
