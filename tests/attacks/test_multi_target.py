from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.ascent import Keep, Select, ascend, random_start
from rrbench.compute.draws import HashedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.protocols import Batch, Budget, Outputs, Rejector, Victim
from rrbench_attacks.multi_target import MultiTarget, logit_difference
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = HashedDraws(5)
LINF = Budget("linf", Fraction(1, 20))
EVADE = MultiTarget(steps=3, restarts=1, keep="best", select="evade")


def linear(classes: int) -> tuple[Callable[[Tensor], Outputs], Tensor]:
    rows = HashedDraws(2).normal(torch.arange(classes), (64,), 0)

    def network(images: Tensor) -> Outputs:
        flat = images.flatten(1)
        return Outputs(flat, (flat - 0.5) @ rows.T, flat[:, :0])

    return network, rows


def attacked(attack: MultiTarget, network: Callable[[Tensor], Outputs], batch: Batch, budget: Budget = LINF) -> Tensor:
    return attack(Victim(network, Confidence()), batch, budget, DRAWS).images


def test_the_logit_difference_is_the_targets_logit_minus_the_labels() -> None:
    logits = torch.tensor([[1.0, 2.0, 5.0], [4.0, -1.0, 0.5]], requires_grad=True)
    value = logit_difference(2)(Outputs(logits, logits, logits), torch.tensor([0, 1]))
    assert value.tolist() == [4.0, 5.0]
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert gradient.tolist() == [[-1, 0, 1], [1, -1, 0]]


@pytest.mark.parametrize("classes", [2, 4])
def test_of_the_worst_images_for_each_class_it_returns_the_one_with_the_highest_cross_entropy(
    patterns: Batch, classes: int
) -> None:
    network, rows = linear(classes)
    batch = patterns._replace(labels=network(patterns.images).logits.argmax(1))
    corners = []
    for shift in range(1, classes):
        aimed = rows[(batch.labels + shift) % classes] - rows[batch.labels]
        corners.append((batch.images + 0.05 * aimed.view(-1, 1, 8, 8).sign()).clamp(0, 1))
    losses = [F.cross_entropy(network(corner).logits, batch.labels, reduction="none") for corner in corners]
    best = torch.stack(losses).argmax(0)
    worst = torch.stack(corners)[best, torch.arange(len(best))]
    moved = attacked(MultiTarget(steps=10, restarts=2), network, batch)
    torch.testing.assert_close(moved, worst, atol=1e-6, rtol=0)
    assert len(best.unique()) == classes - 1
    succeeds = network(moved).logits.argmax(1) != batch.labels
    assert 0.1 < succeeds.float().mean() < 1
    assert (batch.labels[succeeds] == 0).any()
    assert (network(moved).logits.argmax(1)[succeeds] == 0).any()


def test_in_l2_it_goes_the_radius_towards_the_other_class() -> None:
    network, rows = linear(2)
    ids = torch.arange(20)
    images = 0.5 + 0.1 * (HashedDraws(8).uniform(ids, (1, 8, 8), 0) - 0.5)  # far from the edge of the range
    batch = Batch(images, network(images).logits.argmax(1), ids)
    away = rows[1 - batch.labels] - rows[batch.labels]
    worst = images + 0.2 * (away / away.norm(dim=1, keepdim=True)).view_as(images)
    moved = attacked(MultiTarget(steps=60, restarts=1), network, batch, Budget("l2", Fraction(1, 5)))
    torch.testing.assert_close(moved, worst, atol=1e-5, rtol=0)


@pytest.mark.parametrize("attack", [EVADE, replace(EVADE, restarts=3, targets=2)], ids=["plain", "narrowed"])
@pytest.mark.parametrize("at_once", [2, 9])
def test_it_does_not_matter_how_many_classes_are_aimed_at_together(
    patterns: Batch,
    build_network: Callable[[Rejector], nn.Module],
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
    attack: MultiTarget,
) -> None:
    network = build_network(Confidence())
    one_by_one = attacked(attack, network, patterns)
    monkeypatch.setattr("rrbench.ascent.copies", lambda size, wanted: at_once)
    moved = attacked(attack, network, patterns)
    assert ((one_by_one - moved).abs().flatten(1).amax(1) > 1e-5).sum() <= 1


@pytest.mark.parametrize("more", [replace(EVADE, steps=8), replace(EVADE, restarts=3)])
def test_more_effort_never_does_worse(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], more: MultiTarget
) -> None:
    network = build_network(Confidence())

    def scores(attack: MultiTarget) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            probability = network(attacked(attack, network, patterns)).logits.softmax(1)
        return probability.argmax(1) != patterns.labels, probability.amax(1)

    (wrong, sure), (also, surer) = scores(EVADE), scores(more)
    assert also[wrong].all()
    assert (surer >= sure - 1e-5)[wrong].all()
    assert 0 < wrong.sum() <= also.sum() < len(also)


@pytest.mark.parametrize("targets", [1, 2])
def test_where_every_start_ends_on_the_same_image_one_target_finds_the_plain_answer(
    patterns: Batch, targets: int
) -> None:
    network, _ = linear(6)
    batch = patterns._replace(labels=network(patterns.images).logits.argmax(1))
    plain = MultiTarget(steps=10, restarts=3)
    narrowed = attacked(replace(plain, targets=targets), network, batch)
    torch.testing.assert_close(narrowed, attacked(plain, network, batch), atol=1e-6, rtol=0)


@pytest.mark.parametrize("keep", get_args(Keep))
@pytest.mark.parametrize("select", get_args(Select))
def test_where_all_targets_are_asked_for_the_answer_is_the_plain_one_to_the_bit(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], keep: Keep, select: Select
) -> None:
    network = build_network(Confidence())
    plain = MultiTarget(steps=3, restarts=3, keep=keep, select=select)
    answer = attacked(plain, network, patterns)
    for targets in (3, 50):  # of three other classes
        assert torch.equal(attacked(replace(plain, targets=targets), network, patterns), answer)


class TwoStarts(HashedDraws):
    """The first start is the darkest image of the ball, every other one the brightest."""

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.full((len(ids), *shape), 0.0 if restart == 0 else 1.0)


def misleading(images: Tensor) -> Outputs:
    """Answer 0 near (1/2, 1/2). Class 2 has a valley there: only a climb from its bright side comes far."""
    first, second = images.flatten(1).unbind(1)
    logits = torch.stack([torch.ones_like(first), first - second, 20 * (second - 0.5).relu() - 0.1 * second], 1)
    return Outputs(logits, logits, logits[:, :0])


@pytest.mark.parametrize(
    ("targets", "pixels"), [(None, (0.6, 0.6)), (2, (0.6, 0.6)), (1, (0.6, 0.4))], ids=["all", "two", "one"]
)
def test_a_class_that_looks_bad_from_the_first_start_is_not_aimed_at_again(
    targets: int | None, pixels: tuple[float, float]
) -> None:
    """From the dark start class 1 has the better answer, (0.6, 0.4); from the bright one class 2, (0.6, 0.6)."""
    batch = Batch(torch.full((1, 1, 1, 2), 0.5), torch.zeros(1, dtype=torch.long), torch.arange(1))
    attack = MultiTarget(steps=10, restarts=2, targets=targets)
    moved = attack(Victim(misleading, Confidence()), batch, Budget("linf", Fraction(1, 10)), TwoStarts(0)).images
    torch.testing.assert_close(moved.flatten(), torch.tensor(pixels), atol=1e-6, rtol=0)


def towards(shift: int, labels: Tensor) -> Callable[[Outputs], Tensor]:
    return lambda outputs: logit_difference(shift)(outputs, labels)


@pytest.mark.parametrize("targets", [1, 2])
def test_it_keeps_the_best_of_the_climbs_that_each_image_takes(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], targets: int
) -> None:
    network, labels, classes = build_network(Confidence()), patterns.labels, 4
    climbed, losses = [], []
    for restart in range(3):
        start = random_start(patterns, "linf", LINF.eps, DRAWS, restart)
        for shift in range(1, classes):
            climbed.append(
                ascend(
                    network, patterns.images, start, towards(shift, labels), norm="linf", radius=LINF.eps,
                    step=LINF.eps / 4, steps=3,
                )
            )  # fmt: skip
            with torch.no_grad():
                losses.append(F.cross_entropy(network(climbed[-1]).logits, labels, reduction="none"))
    loss = torch.stack(losses).view(3, classes - 1, -1)
    is_taken = torch.zeros_like(loss[0], dtype=torch.bool).scatter(0, loss[0].topk(targets, dim=0).indices, value=True)
    loss[1:, ~is_taken] = -torch.inf
    best = loss.flatten(0, 1).argmax(0)
    moved = attacked(MultiTarget(steps=3, restarts=3, targets=targets), network, patterns)
    torch.testing.assert_close(moved, torch.stack(climbed)[best, torch.arange(len(best))], atol=1e-5, rtol=0)
    assert len((best % (classes - 1)).unique()) == 3, "images aim at different classes"


def test_fewer_targets_never_rank_higher_and_more_starts_never_lower(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module]
) -> None:
    network = build_network(Confidence())

    @torch.no_grad()
    def losses(restarts: int, targets: int | None = None) -> Tensor:
        moved = attacked(MultiTarget(steps=3, restarts=restarts, targets=targets), network, patterns)
        return F.cross_entropy(network(moved).logits, patterns.labels, reduction="none")

    ladder = [
        losses(restarts=1),
        losses(restarts=4, targets=1),
        losses(restarts=4, targets=2),
        losses(restarts=4),
    ]
    for lower, higher in pairwise(ladder):
        assert (lower <= higher + 1e-5).all()
    assert (ladder[0] < ladder[1] - 1e-5).any(), "further starts find something"
    assert (ladder[1] < ladder[-1] - 1e-5).any(), "one target misses something"


def test_an_answer_does_not_depend_on_the_other_images(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module]
) -> None:
    network = build_network(Confidence())
    attack = replace(EVADE, restarts=3, targets=2)
    together = attacked(attack, network, patterns)
    order = torch.arange(patterns.size - 1, -1, -1)
    pieces = [attacked(attack, network, patterns.at(piece)) for piece in order.split(7)]
    assert ((together[order] - torch.cat(pieces)).abs().flatten(1).amax(1) > 1e-5).sum() <= 1


@pytest.mark.parametrize("targets", [None, 1, 2, 3, 20])
@pytest.mark.parametrize("restarts", [1, 4])
def test_it_takes_as_many_gradients_as_it_says(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], restarts: int, targets: int | None
) -> None:
    network = Instrumented(build_network(Confidence()), "fp32")
    attack = MultiTarget(steps=2, restarts=restarts, targets=targets)
    attacked(attack, network, patterns)
    classes = network(patterns.images[:1]).logits.shape[1]
    assert network.gradients == patterns.size * attack.gradients_per_image(classes)


@pytest.mark.parametrize(("targets", "gradients"), [(None, 18_000), (9, 18_000), (5, 10_400), (3, 6_600), (1, 2_800)])
def test_what_the_papers_attack_costs(targets: int | None, gradients: int) -> None:
    assert MultiTarget(targets=targets).gradients_per_image(10) == gradients


def test_no_effort_is_refused() -> None:
    with pytest.raises(ValueError, match="restarts"):
        MultiTarget(restarts=0)


@pytest.mark.parametrize("targets", [0, -1])
def test_no_target_is_refused(targets: int) -> None:
    with pytest.raises(ValueError, match=f"targets must be at least 1, not {targets}"):
        MultiTarget(targets=targets)
