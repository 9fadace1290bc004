import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from rrbench.ascent import Score
from rrbench.compute.draws import HashedDraws
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Calibration, Outputs, Rejector, Victim
from rrbench_attacks.adaptive import Adaptive, Objective, weighted
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.ebd import Ebd
from rrbench_baselines.rr import RR
from rrbench_baselines.t_con import TCon

pytestmark = pytest.mark.usefixtures("one_thread")

OBJECTIVES = pytest.mark.parametrize("objective", get_args(Objective))
BUDGET = Budget("linf", Fraction(1, 20))
DRAWS = HashedDraws(5)
ETA = 0.7


def unasked(images: Tensor) -> Outputs:
    raise AssertionError("the objectives are functions of outputs")


# One input with p = (0.5, 0.3, 0.2), so Con = 0.5; the head says A = 0.8, so R-Con = 0.4.
PROBABILITIES = (0.5, 0.3, 0.2)
CON, RECTIFIER, R = 0.5, 0.8, 0.4
LEVEL = 2.0  # logsumexp of the logits
# EBD: sigmoid((2 - 1.5) / 0.25) = sigmoid(2).
CALIBRATION = Calibration(threshold=0.0, median=1.5, scale=0.25)
VICTIMS = {"rr": Victim(unasked, RR(), None), "ebd": Victim(unasked, Ebd(), CALIBRATION)}
CERTAINTY = {"rr": R, "ebd": 1 / (1 + math.exp(-2))}


def says() -> Outputs:
    logits = torch.tensor([PROBABILITIES], dtype=torch.float64).log() + LEVEL
    head = torch.tensor([[math.log(RECTIFIER / (1 - RECTIFIER))]], dtype=torch.float64)
    return Outputs(torch.zeros(1, 0), logits.requires_grad_(), head.requires_grad_())


def objectives(objective: Objective, victim: Victim, eta: float = ETA) -> list[Score]:
    return [weighted(first, eta, second) for first, second in Adaptive(objective).terms(victim, 3)]


def by_hand(objective: Objective, name: str, label: int) -> list[float]:
    r, t = CERTAINTY[name], PROBABILITIES[label]
    others = [PROBABILITIES[(label + shift) % 3] for shift in (1, 2)]
    bce = -(t * math.log(r) + (1 - t) * math.log(1 - r))
    return {
        "ce+rcon": [-math.log(t) + ETA * math.log(r)],
        "ce+rr": [-math.log(t) + ETA * bce],
        "con+rr": [math.log(max(others)) + ETA * bce],
        "con+rcon": [math.log(max(others)) + ETA * math.log(r)],
        "con+rr(multi)": [math.log(other) + ETA * bce for other in others],
    }[objective]


@OBJECTIVES
@pytest.mark.parametrize("name", VICTIMS)
@pytest.mark.parametrize("label", [0, 1, 2])
def test_each_objective_has_the_value_worked_out_by_hand(objective: Objective, name: str, label: int) -> None:
    scores = objectives(objective, VICTIMS[name])
    values = [score(says(), torch.tensor([label])).item() for score in scores]
    assert values == pytest.approx(by_hand(objective, name, label), rel=1e-6)


def slopes_by_hand(objective: Objective, name: str, label: int) -> list[tuple[list[float], float]]:
    """Return the slope along each logit and along the head, the target t standing still."""
    r, t, p = CERTAINTY[name], PROBABILITIES[label], PROBABILITIES
    predicted = 0
    if name == "rr":
        # log R = log Con + log A.
        log_r = [(k == predicted) - p[k] for k in range(3)], 1 - RECTIFIER
    else:
        # log sigmoid((e - median) / scale), and the slope of e is p.
        log_r = [(1 - r) / CALIBRATION.scale * p[k] for k in range(3)], 0.0
    # BCE's slope along R is (R - t) / (R (1 - R)), so along log R it is (R - t) / (1 - R).
    factor = (r - t) / (1 - r) if "rr" in objective else 1.0
    rejector = [factor * slope for slope in log_r[0]], factor * log_r[1]

    def log_probability(target: int) -> list[float]:
        return [(k == target) - p[k] for k in range(3)]

    if objective.startswith("ce"):
        first = [[-slope for slope in log_probability(label)]]
    elif objective == "con+rr(multi)":
        first = [log_probability((label + shift) % 3) for shift in (1, 2)]
    else:
        first = [log_probability(max((k for k in range(3) if k != label), key=lambda k: p[k]))]
    return [([a + ETA * b for a, b in zip(term, rejector[0], strict=True)], ETA * rejector[1]) for term in first]


@OBJECTIVES
@pytest.mark.parametrize("name", VICTIMS)
@pytest.mark.parametrize("label", [0, 1, 2])
def test_each_objective_rises_the_way_worked_out_by_hand_with_the_target_held_fixed(
    objective: Objective, name: str, label: int
) -> None:
    expected = slopes_by_hand(objective, name, label)
    for score, (along_logits, along_head) in zip(objectives(objective, VICTIMS[name]), expected, strict=True):
        outputs = says()
        value = score(outputs, torch.tensor([label])).sum()
        logits, head = torch.autograd.grad(value, (outputs.logits, outputs.head), materialize_grads=True)
        assert logits[0].tolist() == pytest.approx(along_logits, rel=1e-6, abs=1e-12)
        assert head.item() == pytest.approx(along_head, rel=1e-6, abs=1e-12)


def test_the_best_other_class_is_picked_anew_at_each_input() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0], [3.0, 1.0, 2.0], [1.0, 3.0, 2.0]], requires_grad=True)
    outputs = Outputs(torch.zeros(3, 0), logits, torch.zeros(3, 1))
    (score,) = objectives("con+rcon", VICTIMS["rr"], eta=0.0)
    (slope,) = torch.autograd.grad(score(outputs, torch.tensor([0, 0, 0])).sum(), logits)
    assert slope.argmax(1).tolist() == [1, 2, 1]


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_multi_goes_through_every_other_class_and_class_0_is_one_of_them(classes: int) -> None:
    labels = torch.arange(classes)
    logits = torch.zeros(classes, classes, requires_grad=True)
    outputs = Outputs(torch.zeros(classes, 0), logits, torch.zeros(classes, 1))
    targets = []
    for first, _ in Adaptive("con+rr(multi)").terms(VICTIMS["rr"], classes):
        (slope,) = torch.autograd.grad(first(outputs, labels).sum(), logits)
        targets.append(slope.argmax(1))
    reached = torch.stack(targets, 1).tolist()
    assert [sorted(row) for row in reached] == [[k for k in range(classes) if k != label] for label in range(classes)]
    assert Adaptive("con+rr(multi)", eta=(1.0,), steps=5, restarts=2).gradients_per_image(classes) == 10 * (classes - 1)


# Certainty in log space.


LABELS = torch.zeros(3, dtype=torch.long)


def slope_of(value: Tensor, along: Tensor) -> list[float]:
    (slope,) = torch.autograd.grad(value.sum(), along, retain_graph=True)
    column: list[float] = slope[:, 0].tolist()
    return column


def test_a_score_that_is_no_probability_becomes_a_sigmoid_whose_logarithm_does_not_underflow() -> None:
    logits = torch.tensor([[-500.0, -600.0], [1.5, -600.0], [500.0, -600.0]], requires_grad=True)
    log_r, log_not_r = VICTIMS["ebd"].log_certainty(Outputs(logits[:, :0], logits, logits[:, :0]), LABELS)
    assert log_r.tolist() == pytest.approx([-501.5 / 0.25, -math.log(2), 0.0])
    assert log_not_r.tolist() == pytest.approx([0.0, -math.log(2), -498.5 / 0.25])
    assert slope_of(log_r, logits) == pytest.approx([4.0, 2.0, 0.0])
    assert slope_of(log_not_r, logits) == pytest.approx([0.0, -2.0, -4.0])


def test_a_head_that_refuses_firmly_can_still_be_climbed() -> None:
    head = torch.tensor([[-30.0], [-200.0], [-600.0]], requires_grad=True)
    log_r, _ = VICTIMS["rr"].log_certainty(Outputs(torch.zeros(3, 0), torch.zeros(3, 2), head), LABELS)
    assert log_r.tolist() == pytest.approx([-math.log(2) + value for value in (-30, -200, -600)])
    assert slope_of(log_r, head) == pytest.approx([1.0, 1.0, 1.0])


@pytest.mark.parametrize("extreme", [1e4, -1e4])
@OBJECTIVES
def test_saturated_outputs_give_finite_values_and_slopes(objective: Objective, extreme: float) -> None:
    for victim in VICTIMS.values():
        for score in objectives(objective, victim):
            logits = torch.tensor([[extreme, 0.0, -extreme]]).repeat(2, 1).requires_grad_()
            head = torch.tensor([[extreme], [-extreme]], requires_grad=True)
            value = score(Outputs(torch.zeros(2, 0), logits, head), torch.tensor([0, 2]))
            slopes = torch.autograd.grad(value.sum(), (logits, head), materialize_grads=True)
            assert value.isfinite().all()
            assert all(slope.isfinite().all() for slope in slopes)


def test_a_score_that_is_no_probability_needs_a_calibration() -> None:
    with pytest.raises(ValueError, match="calibration"):
        Victim(unasked, Ebd()).log_certainty(says(), torch.tensor([0]))


def test_the_difference_form_is_not_taken_for_a_probability() -> None:
    outputs = says()  # Con - A = -0.3
    victim = Victim(unasked, RR(form="difference"), Calibration(threshold=0.0, median=0.2, scale=0.5))
    log_r, log_not_r = victim.log_certainty(outputs, torch.tensor([0]))
    assert log_r.item() == pytest.approx(-math.log1p(math.exp(1)))
    assert log_not_r.item() == pytest.approx(-math.log1p(math.exp(-1)))


def test_an_oracle_is_attacked_by_its_own_score() -> None:
    log_r, log_not_r = Victim(unasked, TCon()).log_certainty(says(), torch.tensor([1]))
    assert (log_r.item(), log_not_r.item()) == pytest.approx((math.log(0.3), math.log(0.7)))


# The attack.


@pytest.fixture
def victim(build_network: Callable[[Rejector], nn.Module]) -> Victim:
    return Victim(build_network(RR()), RR())


@torch.no_grad()
def judged(victim: Victim, images: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return where the classifier is wrong, and certainty there (-1 elsewhere)."""
    outputs = victim.network(images)
    wrong = outputs.logits.argmax(1) != batch.labels
    return wrong, victim.certainty(outputs, batch.labels).masked_fill(~wrong, -1.0)


@dataclass
class Deaf(Confidence):
    """A certainty through which no gradient comes."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return super().certainty(outputs).detach()


@OBJECTIVES
def test_a_certainty_without_gradient_is_refused_rather_than_attacked_as_if_it_were_not_there(
    objective: Objective, victim: Victim, patterns: Batch
) -> None:
    attack = Adaptive(objective, steps=1, restarts=1)
    with pytest.raises(CellError, match="no gradient"):
        attack(victim._replace(rejector=Deaf()), patterns.at(slice(0, 4)), BUDGET, DRAWS)


@OBJECTIVES
def test_the_eta_grid_keeps_every_evading_image_and_the_most_certain_one(
    objective: Objective, victim: Victim, patterns: Batch
) -> None:
    batch = patterns.at(slice(0, 40))
    attack = Adaptive(objective, steps=4, restarts=1, step=Fraction(1, 50), keep="last", select="evade")
    singles = [
        judged(victim, replace(attack, eta=(eta,))(victim, batch, BUDGET, DRAWS).images, batch) for eta in (0.0, 10.0)
    ]
    wrong, certainty = judged(victim, replace(attack, eta=(0.0, 10.0))(victim, batch, BUDGET, DRAWS).images, batch)
    assert torch.equal(wrong, singles[0][0] | singles[1][0])
    torch.testing.assert_close(certainty, torch.maximum(singles[0][1], singles[1][1]), atol=0, rtol=1e-9)
    assert 0 < wrong.sum() < 40


@pytest.mark.parametrize("objective", ["ce+rr", "con+rcon"])
def test_more_steps_and_restarts_never_do_worse(objective: Objective, victim: Victim, patterns: Batch) -> None:
    attack = Adaptive(objective, eta=(1.0,), steps=1, restarts=1, keep="best", select="evade")
    before, certainty = judged(victim, attack(victim, patterns, BUDGET, DRAWS).images, patterns)
    for stronger in (replace(attack, steps=3), replace(attack, steps=6), replace(attack, steps=6, restarts=2)):
        wrong, bold = judged(victim, stronger(victim, patterns, BUDGET, DRAWS).images, patterns)
        assert (wrong | ~before).all()
        assert (bold >= certainty - 1e-9).all()
        before, certainty = wrong, bold


def test_climbing_certainty_finds_more_certain_mistakes_than_pgd(victim: Victim, patterns: Batch) -> None:
    wide = Budget("linf", Fraction(1, 10))
    plain = Pgd(steps=10)(victim, patterns, wide, DRAWS)
    adaptive = Adaptive("con+rcon", eta=(1.0,), steps=10, restarts=1)(victim, patterns, wide, DRAWS)
    wrong, certainty = judged(victim, plain.images, patterns)
    also_wrong, bolder = judged(victim, adaptive.images, patterns)
    both = wrong & also_wrong
    assert both.float().mean() > 0.5
    assert (bolder[both] > certainty[both]).float().mean() > 0.9


@OBJECTIVES
def test_two_classes_are_moved_to_the_best_corner(objective: Objective, patterns: Batch) -> None:
    rows = HashedDraws(2).normal(torch.arange(3), (64,), 0)

    def network(images: Tensor) -> Outputs:
        flat = images.flatten(1)
        return Outputs(flat, (flat - 0.5) @ rows[:2].T, flat @ rows[2:].T)

    batch = patterns._replace(labels=patterns.labels % 2)
    worse = (rows[1 - batch.labels] - rows[batch.labels]).view(-1, 1, 8, 8)
    best = (batch.images + 0.05 * worse.sign()).clamp(0, 1)
    attack = Adaptive(objective, eta=(0.0,), steps=10, restarts=1)
    torch.testing.assert_close(attack(Victim(network, RR()), batch, BUDGET, DRAWS).images, best, atol=1e-6, rtol=0)


def test_an_eta_of_zero_goes_the_way_of_pgd(victim: Victim, patterns: Batch) -> None:
    attack = Adaptive("ce+rcon", eta=(0.0,), steps=5, restarts=1, select="ce")
    plain = Pgd(steps=5)(victim, patterns, BUDGET, DRAWS).images
    differs = (attack(victim, patterns, BUDGET, DRAWS).images - plain).abs().flatten(1).amax(1) > 1e-6
    assert differs.float().mean() <= 0.01


def test_radius_zero_is_clean_exactly(victim: Victim, patterns: Batch) -> None:
    attack = Adaptive("con+rr", eta=(1.0,), steps=2, restarts=2, keep="best")
    assert torch.equal(attack(victim, patterns, Budget("l2", Fraction(0)), DRAWS).images, patterns.images)


def test_settings_that_would_make_every_network_look_robust_are_refused() -> None:
    with pytest.raises(ValueError, match="eta"):
        Adaptive("ce+rr", eta=())
    with pytest.raises(ValueError, match="restarts"):
        Adaptive("ce+rr", restarts=0)


def test_an_eta_that_would_help_the_rejector_is_refused() -> None:
    for eta in ((), (1.0, -1.0)):
        with pytest.raises(ValueError, match="none below 0"):
            Adaptive("ce+rcon", eta=eta)
