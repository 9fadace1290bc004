from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
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


@pytest.mark.parametrize("at_once", [2, 9])
def test_it_does_not_matter_how_many_classes_are_aimed_at_together(
    patterns: Batch,
    build_network: Callable[[Rejector], nn.Module],
    monkeypatch: pytest.MonkeyPatch,
    at_once: int,
) -> None:
    network = build_network(Confidence())
    one_by_one = attacked(EVADE, network, patterns)
    monkeypatch.setattr("rrbench.ascent.copies", lambda size, wanted: at_once)
    moved = attacked(EVADE, network, patterns)
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


def test_no_effort_is_refused() -> None:
    with pytest.raises(ValueError, match="restarts"):
        MultiTarget(restarts=0)
