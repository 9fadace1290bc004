from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import log
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
from rrbench.plugins.guards import check_budget
from rrbench.protocols import Attack, Batch, Budget, Calibration, Norm, Outputs, Rejector, Victim
from rrbench_attacks.apgd_reject import ApgdReject
from rrbench_attacks.orthogonal_pgd import OrthogonalPgd, SelectivePgd
from rrbench_attacks.rejection_loss import Form, RejectionLoss
from rrbench_baselines import REJECTORS
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.rr import RR

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = HashedDraws(5)
FORMS = pytest.mark.parametrize("form", get_args(Form))
NORMS = pytest.mark.parametrize("norm", get_args(Norm))
LINF = Budget("linf", Fraction(1, 20))


@dataclass
class Head(Rejector):
    """Certainty is the head's output, which is no probability."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.head[:, 0]


# What is maximised, by hand.

PROBABILITIES = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3]])
LABELS = torch.tensor([0, 0])  # the first answer is right, the second wrong


def says(head: list[float]) -> Outputs:
    logits = PROBABILITIES.log().requires_grad_()
    return Outputs(logits, logits, torch.tensor(head, requires_grad=True)[:, None])


def value_of(attack: RejectionLoss, rejector: Rejector, outputs: Outputs, calibration: Calibration | None) -> Tensor:
    return attack.objective(Victim(lambda images: outputs, rejector, calibration))(outputs, LABELS)


def test_gated_is_cross_entropy_plus_the_log_certainty_of_wrong_answers() -> None:
    value = value_of(RejectionLoss(weight=2.0), Confidence(), says([0.0, 0.0]), None)
    assert value.tolist() == pytest.approx([-log(0.7), -log(0.1) + 2 * log(0.6)])


def test_and_is_the_log_of_the_best_other_class_plus_the_log_certainty() -> None:
    value = value_of(RejectionLoss("and", weight=2.0), Confidence(), says([0.0, 0.0]), None)
    assert value.tolist() == pytest.approx([log(0.2) + 2 * log(0.7), log(0.6) + 2 * log(0.6)])


@FORMS
def test_a_certainty_that_is_no_probability_becomes_one(form: Form) -> None:
    outputs = says([3.0, 4.0])
    value = value_of(RejectionLoss(form), Head(), outputs, Calibration(threshold=0.0, median=2.0, scale=0.5))
    log_r = F.logsigmoid(torch.tensor([2.0, 4.0])).tolist()
    gated = [-log(0.7), -log(0.1) + log_r[1]]
    assert value.tolist() == pytest.approx(gated if form == "gated" else [log(0.2) + log_r[0], log(0.6) + log_r[1]])


def test_gated_has_no_reason_to_make_a_right_answer_certain() -> None:
    outputs = says([0.3, 0.3])
    value = value_of(RejectionLoss(weight=5.0), RR(), outputs, None)
    by_logits, by_head = torch.autograd.grad(value.sum(), (outputs.logits, outputs.head))
    assert by_head[0] == 0
    assert by_head[1] > 0
    torch.testing.assert_close(by_logits[0], PROBABILITIES[0] - torch.tensor([1.0, 0.0, 0.0]))


# Where the best image is known.


def apart(images: Tensor) -> Outputs:
    """Answers by the first pixel; the second makes the rejector certain."""
    flat = images.flatten(1)
    logits = torch.stack([torch.zeros_like(flat[:, 0]), 10 * flat[:, 0] - 5], 1)
    return Outputs(flat, logits, flat[:, 1:2])


TWO = Batch(torch.tensor([[0.45, 0.5], [0.55, 0.5]]).view(2, 1, 1, 2), torch.tensor([0, 1]), torch.arange(2))


@FORMS
def test_it_reaches_the_corner_that_is_wrong_and_certain(form: Form) -> None:
    attack = RejectionLoss(form, steps=20, restarts=1, keep="last")
    victim = Victim(apart, Head(), Calibration(threshold=0.55, median=0.5, scale=0.1))
    moved = attack(victim, TWO, Budget("linf", Fraction(1, 10)), DRAWS).images
    expected = TWO.images + torch.tensor([[0.1, 0.1], [-0.1, 0.1]]).view(2, 1, 1, 2)
    torch.testing.assert_close(moved, expected, atol=1e-6, rtol=0)


@FORMS
@pytest.mark.parametrize("more", [{"steps": 10}, {"restarts": 3}])
def test_more_effort_never_does_worse(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], form: Form, more: dict[str, int]
) -> None:
    victim, weak = Victim(build_network(RR()), RR()), RejectionLoss(form, steps=5, restarts=1)

    def scores(attack: RejectionLoss) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            outputs = victim.network(attack(victim, patterns, LINF, DRAWS).images)
        return outputs.logits.argmax(1) != patterns.labels, victim.certainty(outputs, patterns.labels)

    (wrong, sure), (also, surer) = scores(weak), scores(replace(weak, **more))  # type: ignore[arg-type]
    assert also[wrong].all()
    assert (surer >= sure - 1e-5)[wrong].all()
    assert 0 < wrong.sum() < len(wrong)


# Every rejector, for this attack and the others that look at one.

SMALL: dict[str, dict[str, Any]] = {"kd": {"g": 0.1}, "lid": {"k": 5}}
SMALL |= {name: {"inverse": "ridge"} for name in ("gda", "gda*", "gmm")}
EVERY = {name: (kind, SMALL.get(name, {})) for name, kind in REJECTORS.items() if not isinstance(kind, str)}
EVERY |= {f"rr-{form}": (RR, {"form": form}) for form in ("difference", "head", "confidence")}
ATTACKS: list[Attack] = [
    RejectionLoss(steps=2, restarts=1),
    ApgdReject(steps=2),
    OrthogonalPgd(steps=2),
    SelectivePgd(steps=2, beyond=False),
]


@NORMS
@pytest.mark.parametrize("name", EVERY)
def test_every_rejector_can_be_attacked(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], name: str, norm: Norm
) -> None:
    kind, settings = EVERY[name]
    rejector = kind(**settings)
    network, batch = build_network(rejector), patterns.at(slice(6))
    with torch.no_grad():
        clean = network(patterns.images)
        if rejector.has_fit():
            rejector.fit(clean, patterns.labels)
        certainty = rejector.oracle_certainty(clean, patterns.labels).double()
    low, median, high = certainty.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    victim = Victim(network, rejector, Calibration(threshold=low, median=median, scale=max(high - low, 1e-6)))
    budget = Budget(norm, Fraction(1, 20) if norm == "linf" else Fraction(2, 5))
    for attack in ATTACKS:
        moved = attack(victim, batch, budget, DRAWS)
        assert moved.boldest is not None
        check_budget(moved.images, batch.images, budget)
        check_budget(moved.boldest, batch.images, budget)
        assert not torch.equal(moved.images, batch.images)
