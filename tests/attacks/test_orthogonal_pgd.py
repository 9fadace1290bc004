import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Calibration, Norm, Outputs, Rejector, Victim
from rrbench_attacks.orthogonal_pgd import (
    OneGoalAtATime,
    OrthogonalPgd,
    SelectivePgd,
    across,
    classifier_loss,
    crossed,
    selective,
)
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.rr import RR

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = HashedDraws(5)
NORMS = pytest.mark.parametrize("norm", get_args(Norm))
BOTH = pytest.mark.parametrize("kind", [OrthogonalPgd, SelectivePgd])
LINF = Budget("linf", Fraction(1, 20))
CALIBRATION = Calibration(threshold=0.55, median=0.5, scale=0.1)


@dataclass
class Head(Rejector):
    """Certainty is the head's output, which is no probability."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.head[:, 0]


@dataclass(frozen=True)
class AtClean:
    """Draws that start linf at the clean image."""

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.full((len(ids), *shape), 0.5)

    def normal(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.ones(len(ids), *shape)


def says(logits: list[list[float]], certainty: list[float]) -> Outputs:
    values = torch.tensor(logits, requires_grad=True)
    return Outputs(values, values, torch.tensor(certainty, requires_grad=True)[:, None])


# The projection.


def test_what_is_left_of_a_gradient_is_orthogonal_to_the_other() -> None:
    ids = torch.arange(50)
    one, other = HashedDraws(1).normal(ids, (1, 8, 8), 0), HashedDraws(2).normal(ids, (1, 8, 8), 0)
    rest = across(one.double(), other.double(), 0.0)
    assert (rest * other).flatten(1).sum(1).abs().max() < 1e-12
    assert ((rest * one).flatten(1).sum(1) > 0).all()


@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e30])
def test_the_projection_by_hand_at_any_scale(scale: float) -> None:
    one = torch.tensor([[3.0, 0.0], [0.0, 2.0], [0.0, 0.0], [1.0, 1.0]]).view(4, 1, 1, 2)
    other = torch.tensor([[5.0, 5.0], [1.0, 0.0], [1.0, 0.0], [0.0, 0.0]]).view(4, 1, 1, 2)
    rest = across(scale * one, other / scale, 0.5).flatten(1)
    half = math.sqrt(0.5)
    torch.testing.assert_close(rest, torch.tensor([[0.5, -0.5], [0.0, 1.0], [0.0, 0.0], [half, half]]))


def test_a_gradient_along_the_other_is_taken_whole_or_as_published_vanishes() -> None:
    one, other = torch.tensor([[3.0, 4.0]]), torch.tensor([[-6.0, -8.0]])
    torch.testing.assert_close(across(one, other, 0.5), torch.tensor([[0.6, 0.8]]))
    torch.testing.assert_close(across(one, other, 0.0), torch.zeros(1, 2))


# Whose turn it is.


def test_an_answer_has_crossed_once_it_is_wrong_by_the_buffer() -> None:
    logits = torch.tensor([[1.0, 0.9], [1.0, 1.04], [1.0, 1.06]])
    assert crossed(logits, torch.zeros(3, dtype=torch.long), None).tolist() == [False, False, True]


def test_with_a_target_only_the_target_will_do_but_for_inputs_of_that_class() -> None:
    logits = torch.tensor([[0.0, 1.0, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1.0, 0.0, 0.0]])
    labels = torch.tensor([2, 2, 0, 0])
    assert crossed(logits, labels, 0).tolist() == [False, True, True, False]


def test_the_classifiers_loss_leads_away_from_the_label_or_to_the_target() -> None:
    outputs = says([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], [0.0, 0.0])
    labels, log_p = torch.tensor([1, 0]), torch.tensor([1.0, 2.0, 3.0]).log_softmax(0)
    torch.testing.assert_close(classifier_loss(None)(outputs, labels), -log_p[[1, 0]])
    torch.testing.assert_close(classifier_loss(0)(outputs, labels), torch.stack([log_p[0], -log_p[0]]))


# Right; wrong and rejected; wrong and just accepted; wrong and accepted.
CASES = says([[1.0, 0.0], [0.0, 1.0], [0.0, 1.0], [0.0, 1.0]], [0.9, 0.5, 0.55, 0.9])
LABELS = torch.zeros(4, dtype=torch.long)


@pytest.mark.parametrize(
    ("beyond", "threshold", "turns"),
    [
        (True, 0.55, [False, True, True, True]),
        (False, 0.55, [False, True, False, False]),
        (False, 0.95, [False, True, True, True]),
        (False, math.nan, [False, True, True, True]),  # no threshold is known
    ],
)
def test_selective_climbs_certainty_where_the_answer_is_wrong_and_at_will_up_to_the_threshold_only(
    beyond: bool, threshold: float, turns: list[bool]
) -> None:
    victim = Victim(lambda images: CASES, Head(), CALIBRATION._replace(threshold=threshold))
    value = selective(victim, None, beyond)(CASES, LABELS)
    by_class, by_head = torch.autograd.grad(value.sum(), (CASES.logits, CASES.head))
    assert (by_head[:, 0] > 0).tolist() == turns
    assert (by_class.abs().sum(1) > 0).tolist() == [not turn for turn in turns]
    certain = F.logsigmoid((CASES.head[:, 0] - 0.5) / 0.1)
    torch.testing.assert_close(
        value, torch.where(torch.tensor(turns), certain, F.cross_entropy(CASES.logits, LABELS, reduction="none"))
    )


# Two goals whose gradients are known.


def tilted(images: Tensor) -> Outputs:
    """Answers by the first pixel; the rejector is the more certain, the smaller the first and the larger the second."""
    flat = images.flatten(1)
    logits = torch.stack([torch.zeros_like(flat[:, 0]), 10 * flat[:, 0] - 5], 1)
    return Outputs(flat, logits, flat[:, 1:2] - flat[:, :1])


def test_in_l2_a_step_leaves_the_other_goal_as_it_is() -> None:
    images = torch.tensor([[0.3, 0.5, 0.5], [0.7, 0.5, 0.5]]).view(2, 1, 1, 3)
    batch = Batch(images, torch.zeros(2, dtype=torch.long), torch.arange(2))  # the second answer is wrong already
    attack = OrthogonalPgd(steps=1, step=Fraction(1, 10), remainder=0.0, keep="last")
    victim = Victim(tilted, Head(), CALIBRATION)
    moved = attack(victim, batch, Budget("l2", Fraction(1)), StartAt(0.0)).images
    before, after = tilted(images), tilted(moved)
    delta = (moved - images).flatten(1)
    torch.testing.assert_close(delta.norm(dim=1), torch.full((2,), 0.1))
    torch.testing.assert_close(after.head[0], before.head[0])  # right: certainty stays, the first logit falls behind
    torch.testing.assert_close(delta[0], torch.tensor([0.1, 0.1, 0.0]) * math.sqrt(0.5))
    torch.testing.assert_close(after.logits[1], before.logits[1])  # wrong: logits stay, certainty rises
    torch.testing.assert_close(delta[1], torch.tensor([0.0, 0.1, 0.0]))


@dataclass(frozen=True)
class StartAt(AtClean):
    """Draws that start l2 at a share of the radius; 0: the clean image."""

    share: float

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.full((len(ids), *shape), self.share)


def apart(images: Tensor) -> Outputs:
    """Answers by the first pixel; the second makes the rejector certain."""
    flat = images.flatten(1)
    logits = torch.stack([torch.zeros_like(flat[:, 0]), 10 * flat[:, 0] - 5], 1)
    return Outputs(flat, logits, flat[:, 1:2])


TWO = Batch(torch.tensor([[0.45, 0.5], [0.55, 0.5]]).view(2, 1, 1, 2), torch.tensor([0, 1]), torch.arange(2))


@BOTH
@NORMS
def test_where_the_goals_are_independent_it_finds_the_most_certain_wrong_answer(
    kind: type[OneGoalAtATime], norm: Norm
) -> None:
    attack = kind(steps=200, step=Fraction(1, 500))
    moved = attack(Victim(apart, Head(), CALIBRATION), TWO, Budget(norm, Fraction(1, 10)), DRAWS).images
    assert apart(moved).logits.argmax(1).tolist() == [1, 0]
    # The first pixel must cross by 0.05, and the second has what is left.
    left = 0.1 if norm == "linf" else math.sqrt(0.1**2 - 0.05**2)
    torch.testing.assert_close(moved[..., 1].flatten(), torch.full((2,), 0.5 + left), atol=0.003, rtol=0)


@pytest.mark.parametrize("copies", [1, 2, 3, 4])
def test_every_third_step_is_certaintys_however_many_images_there_are(copies: int) -> None:
    shown: list[Tensor] = []

    def network(images: Tensor) -> Outputs:
        shown.append(images.detach()[:1].flatten())
        return apart(images)

    batch = Batch(*(part[:1].repeat(copies, *[1] * (part.dim() - 1)) for part in TWO))
    OrthogonalPgd(steps=7, step=Fraction(1, 500), every=3)(
        Victim(network, Head(), CALIBRATION), batch, Budget("linf", Fraction(1, 10)), AtClean()
    )
    moves = torch.stack(shown).diff(dim=0) > 0.001
    assert moves[:, 1].tolist() == [True, False, False, True, False, False, True]
    assert moves[:, 0].tolist() == [False, True, True, False, True, True, False]


# Targets.


@BOTH
@pytest.mark.parametrize("target", [0, 2])
def test_a_target_is_reached_class_0_included(kind: type[OneGoalAtATime], target: int) -> None:
    rows = HashedDraws(2).normal(torch.arange(3), (64,), 0)
    ids = torch.arange(30)
    images = HashedDraws(8).uniform(ids, (1, 8, 8), 0)

    def network(images: Tensor) -> Outputs:
        flat = images.flatten(1)
        return Outputs(flat, (flat - 0.5) @ rows.T, flat[:, :1])

    batch = Batch(images, network(images).logits.argmax(1), ids)
    # In l2, where a projected step leaves the other goal alone; its sign, in linf, may take the answer back for a step.
    attack = kind(steps=60, step=Fraction(1, 10), target=target, keep="last", select="ce")
    moved = attack(Victim(network, Head(), CALIBRATION), batch, Budget("l2", Fraction(2)), DRAWS).images
    answers = network(moved).logits.argmax(1)
    is_own = batch.labels == target
    assert (answers[~is_own] == target).all()
    assert (answers[is_own] != target).all()
    assert 5 <= is_own.sum() <= 25


@BOTH
def test_a_target_that_is_no_class_is_refused(kind: type[OneGoalAtATime]) -> None:
    with pytest.raises(ValueError, match="target"):
        kind(target=-1)
    with pytest.raises(CellError, match="none of the network's 2 classes"):
        kind(target=2, steps=1)(Victim(apart, Head(), CALIBRATION), TWO, LINF, DRAWS)


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="every"):
        OrthogonalPgd(every=0)
    with pytest.raises(ValueError, match="steps"):
        OrthogonalPgd(steps=-1)


# Strength.


@BOTH
@pytest.mark.parametrize("more", [{"steps": 12}, {"restarts": 3}])
def test_more_effort_never_does_worse(
    patterns: Batch,
    build_network: Callable[[Rejector], nn.Module],
    kind: type[OneGoalAtATime],
    more: dict[str, int],
) -> None:
    victim, weak = Victim(build_network(RR()), RR()), kind(steps=6)

    def scores(attack: OneGoalAtATime) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            outputs = victim.network(attack(victim, patterns, LINF, DRAWS).images)
        return outputs.logits.argmax(1) != patterns.labels, victim.certainty(outputs, patterns.labels)

    (wrong, sure), (also, surer) = scores(weak), scores(replace(weak, **more))  # type: ignore[arg-type]
    assert also[wrong].all()
    assert (surer >= sure - 1e-5)[wrong].all()
    assert 0 < wrong.sum() < len(wrong)


@BOTH
def test_a_rejector_that_is_one_with_the_classifier_does_not_stop_it(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], kind: type[OneGoalAtATime]
) -> None:
    victim = Victim(build_network(Confidence()), Confidence())

    def count_wrong(images: Tensor) -> int:
        return int((victim.network(images).logits.argmax(1) != patterns.labels).sum())

    plain = count_wrong(Pgd(steps=20)(victim, patterns, LINF, DRAWS).images)
    assert count_wrong(kind(steps=20)(victim, patterns, LINF, DRAWS).images) >= plain - 3
    assert plain > 10
