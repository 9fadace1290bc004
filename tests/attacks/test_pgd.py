from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import pairwise
from typing import Any, get_args

import eagerpy as ep
import foolbox as fb
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.ascent import random_start
from rrbench.compute.draws import HashedDraws
from rrbench.protocols import Batch, Budget, Norm, Outputs, Rejector, Victim
from rrbench_attacks.climb import step_size
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.ebd import Ebd

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = HashedDraws(5)
BUDGETS = {"linf": Budget("linf", Fraction(1, 20)), "l2": Budget("l2", Fraction(2, 5))}
STEPS = {"linf": Fraction(1, 100), "l2": Fraction(1, 10)}
NORMS = pytest.mark.parametrize("norm", get_args(Norm))


@dataclass(frozen=True)
class Fixed:
    """Draws that are all the same: 1/2 starts linf at the clean image, 0 starts l2 there."""

    value: float

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.full((len(ids), *shape), self.value)

    def normal(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.ones(len(ids), *shape)


AT_CLEAN = {"linf": Fixed(0.5), "l2": Fixed(0.0)}


@pytest.fixture
def network(build_network: Callable[[Rejector], nn.Module]) -> nn.Module:
    return build_network(Confidence())


def attacked(attack: Pgd, network: nn.Module, batch: Batch, budget: Budget) -> Tensor:
    return attack(Victim(network, Confidence()), batch, budget, DRAWS).images


@torch.no_grad()
def is_wrong(network: nn.Module, images: Tensor, batch: Batch) -> Tensor:
    wrong: Tensor = network(images).logits.argmax(1) != batch.labels
    return wrong


# A linear classifier, whose worst image is known.


def linear(classes: int) -> tuple[Callable[[Tensor], Outputs], Tensor]:
    rows = HashedDraws(2).normal(torch.arange(classes), (64,), 0)

    def network(images: Tensor) -> Outputs:
        flat = images.flatten(1)
        return Outputs(flat, (flat - 0.5) @ rows.T, flat[:, :0])

    return network, rows


@pytest.mark.parametrize("keep", ["last", "best"])
def test_against_a_linear_classifier_it_succeeds_exactly_where_anything_can(patterns: Batch, keep: Any) -> None:
    network, rows = linear(2)
    batch = patterns._replace(labels=network(patterns.images).logits.argmax(1))
    radius = 0.05
    worse = (rows[1 - batch.labels] - rows[batch.labels]).view(-1, 1, 8, 8)
    worst = (batch.images + radius * worse.sign()).clamp(0, 1)
    can = network(worst).logits.argmax(1) != batch.labels
    attack = Pgd(steps=10, step=Fraction(1, 80), keep=keep, select="evade")
    moved = attack(Victim(network, Confidence()), batch, Budget("linf", Fraction(1, 20)), DRAWS)
    assert torch.equal(network(moved.images).logits.argmax(1) != batch.labels, can)
    assert 0.1 < can.float().mean() < 0.9
    if keep == "last":
        torch.testing.assert_close(moved.images, worst, atol=1e-6, rtol=0)


def test_against_a_linear_classifier_in_l2_it_succeeds_exactly_where_the_boundary_is_near() -> None:
    network, rows = linear(2)
    ids = torch.arange(100)
    images = 0.5 + 0.1 * (HashedDraws(8).uniform(ids, (1, 8, 8), 0) - 0.5)  # far from the edge of the range
    difference = rows[0] - rows[1]
    distance = ((images.flatten(1) - 0.5) @ difference).abs() / difference.norm()
    radius = Fraction(1, 50)
    batch = Batch(images, network(images).logits.argmax(1), ids)
    moved = Pgd(steps=40)(Victim(network, Confidence()), batch, Budget("l2", radius), DRAWS).images
    is_clear = (distance - float(radius)).abs() > 1e-4
    succeeds = network(moved).logits.argmax(1) != batch.labels
    assert torch.equal(succeeds[is_clear], (distance < float(radius))[is_clear])
    assert 0.2 < succeeds.float().mean() < 0.8


# An independent implementation.


def foolbox_images(
    network: nn.Module, batch: Batch, budget: Budget, start: Tensor, steps: int, step: Fraction
) -> Tensor:
    base = fb.attacks.LinfPGD if budget.norm == "linf" else fb.attacks.L2PGD

    class Started(base):  # type: ignore[valid-type, misc]
        def get_random_start(self, x0: Any, epsilon: float) -> Any:
            return ep.astensor(start)  # type: ignore[attr-defined]

    class Logits(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            logits: Tensor = network(images).logits
            return logits

    model = fb.models.pytorch.PyTorchModel(Logits().eval(), bounds=(0, 1), device="cpu")
    attack = Started(abs_stepsize=float(step), steps=steps, random_start=True)
    # `run`, not the call: that returns the clean image where it fails to fool.
    images: Tensor = attack.run(model, batch.images, fb.criteria.Misclassification(batch.labels), epsilon=budget.eps)
    return images


@NORMS
@pytest.mark.parametrize("is_random", [False, True])
def test_it_goes_the_way_of_foolbox(network: nn.Module, patterns: Batch, norm: Norm, is_random: bool) -> None:
    draws = DRAWS if is_random else AT_CLEAN[norm]
    budget, step = BUDGETS[norm], STEPS[norm]
    start = random_start(patterns, norm, budget.eps, draws, 0)
    ours = Pgd(steps=10, step=step)(Victim(network, Confidence()), patterns, budget, draws).images
    theirs = foolbox_images(network, patterns, budget, start, 10, step)
    assert torch.equal(start, patterns.images) != is_random
    # A gradient of nearly 0 has either sign: such images part ways, so one in a hundred may differ.
    differs = (ours - theirs).abs().flatten(1).amax(1) > 1e-6
    assert differs.float().mean() <= 0.01
    wrong, theirs_wrong = is_wrong(network, ours, patterns), is_wrong(network, theirs, patterns)
    assert (wrong != theirs_wrong).float().mean() <= 0.01
    assert wrong.float().mean() > is_wrong(network, patterns.images, patterns).float().mean() + 0.1


# What it returns.


@NORMS
def test_last_and_ce_return_the_last_image_of_the_restart_with_the_largest_cross_entropy(
    network: nn.Module, patterns: Batch, norm: Norm
) -> None:
    @dataclass(frozen=True)
    class Later:
        by: int

        def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
            return DRAWS.uniform(ids, shape, restart + self.by)

        def normal(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
            return DRAWS.normal(ids, shape, restart + self.by)

    attack = Pgd(steps=3, step=STEPS[norm], keep="last", select="ce")
    victim, budget = Victim(network, Confidence()), BUDGETS[norm]
    singles = torch.stack([attack(victim, patterns, budget, Later(by)).images for by in range(3)])
    with torch.no_grad():
        losses = torch.stack(
            [F.cross_entropy(network(images).logits, patterns.labels, reduction="none") for images in singles]
        )
    expected = singles[losses.argmax(0), torch.arange(patterns.size)]
    together = attacked(replace(attack, restarts=3), network, patterns, budget)
    torch.testing.assert_close(together, expected, atol=0, rtol=0)
    assert len(losses.argmax(0).unique()) == 3


@NORMS
def test_more_steps_and_more_restarts_never_do_worse(network: nn.Module, patterns: Batch, norm: Norm) -> None:
    attack = Pgd(steps=4, step=STEPS[norm], keep="best", select="evade")
    for more in (
        [replace(attack, steps=steps) for steps in (1, 4, 10)],
        [replace(attack, restarts=restarts) for restarts in (1, 2, 4)],
    ):
        before = torch.zeros(patterns.size, dtype=torch.bool)
        certainty = torch.zeros(patterns.size, dtype=torch.float64)
        for stronger in more:
            images = attacked(stronger, network, patterns, BUDGETS[norm])
            wrong = is_wrong(network, images, patterns)
            with torch.no_grad():
                bold = Confidence().certainty(network(images)).where(wrong, torch.tensor(0.0, dtype=torch.float64))
            assert (wrong | ~before).all()
            assert (bold >= certainty - 1e-9).all()
            before, certainty = wrong, bold
        assert 0 < before.sum() < patterns.size


@NORMS
def test_a_larger_budget_does_worse_on_one_image_in_a_hundred_at_most(
    network: nn.Module, patterns: Batch, norm: Norm
) -> None:
    attack = Pgd(steps=10, keep="best", select="evade")
    accuracies = []
    for quarters in (0, 1, 2, 4, 8, 16):
        budget = Budget(norm, Fraction(BUDGETS[norm].radius or 0) * quarters / 4)
        accuracies.append(1 - is_wrong(network, attacked(attack, network, patterns, budget), patterns).float().mean())
    assert all(larger <= smaller + 0.01 for smaller, larger in pairwise(accuracies))
    assert accuracies[0] == 1
    assert accuracies[-1] == 0


@NORMS
@pytest.mark.parametrize("step", [None, Fraction(1, 100)])
def test_radius_zero_is_clean_exactly(network: nn.Module, patterns: Batch, norm: Norm, step: Fraction | None) -> None:
    attack = Pgd(steps=3, restarts=2, step=step, keep="best", select="evade")
    assert torch.equal(attacked(attack, network, patterns, Budget(norm, Fraction(0))), patterns.images)


@NORMS
@pytest.mark.parametrize("size", [1, 7, 32])
def test_the_batch_an_image_is_in_changes_nothing(network: nn.Module, patterns: Batch, norm: Norm, size: int) -> None:
    batch = patterns.at(slice(0, 40))
    attack = Pgd(steps=5, step=STEPS[norm])
    whole = attacked(attack, network, batch, BUDGETS[norm])
    pieces = [batch.at(slice(start, start + size)) for start in range(0, 40, size)]
    split = torch.cat([attacked(attack, network, piece, BUDGETS[norm]) for piece in pieces])
    # Rounding depends on the shape of a batch; where it turns a gradient of nearly 0, an image takes another way.
    assert ((split - whole).abs().flatten(1).amax(1) > 1e-5).sum() <= 1


def test_wrong_inputs_are_attacked_too(network: nn.Module, patterns: Batch) -> None:
    mislabelled = patterns._replace(labels=(patterns.labels + 1) % 4)
    moved = attacked(Pgd(steps=3), network, mislabelled, BUDGETS["linf"])
    assert (sizes := (moved - patterns.images).abs().flatten(1).amax(1)).min() > 0
    assert sizes.max() <= 0.05 + 1e-6


def test_the_rejector_is_not_looked_at(network: nn.Module, patterns: Batch) -> None:
    attack = Pgd(steps=3, keep="best", select="evade")
    answers = [
        attack(Victim(network, rejector), patterns, BUDGETS["linf"], DRAWS) for rejector in (Confidence(), Ebd())
    ]
    assert torch.equal(answers[0].images, answers[1].images)
    assert not attack.is_adaptive


# The step.


@NORMS
@pytest.mark.parametrize("eighths", [1, 2, 16])
def test_the_step_does_not_grow_with_the_radius(network: nn.Module, patterns: Batch, norm: Norm, eighths: int) -> None:
    grey = patterns._replace(images=0.5 + 0.2 * (patterns.images - 0.5))  # no pixel near the edge of the range
    step = Fraction(2, 255) if norm == "linf" else Fraction(16, 255)
    budget = Budget(norm, Fraction(8, 255) * eighths * (8 if norm == "l2" else 1))
    moved = Pgd(steps=1, step=step)(Victim(network, Confidence()), grey, budget, AT_CLEAN[norm]).images
    delta = (moved - grey.images).flatten(1)
    expected = torch.full((grey.size,), float(step))
    if norm == "linf":
        torch.testing.assert_close(delta.abs().amin(1), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(
        delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1), expected, atol=1e-6, rtol=1e-4
    )


def test_without_a_step_it_is_a_quarter_of_the_radius() -> None:
    assert step_size(None, Budget("linf", Fraction(8, 255))) == pytest.approx(2 / 255)
    assert step_size(Fraction(2, 255), Budget("linf", Fraction(128, 255))) == pytest.approx(2 / 255)


@pytest.mark.parametrize("settings", [{"steps": -1}, {"restarts": 0}, {"step": Fraction(0)}, {"step": Fraction(-1, 9)}])
def test_settings_that_would_make_every_network_look_robust_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="at least"):
        Pgd(**{"steps": 10, **settings})
