import math
from typing import Literal, get_args

import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.planning.cells import training_key
from rrbench.protocols import Outputs
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.coupled import Coupled
from rrbench_baselines.head import rejection_head
from rrbench_baselines.rr import RR

Form = Literal["product", "difference", "head", "confidence"]
FORMS = pytest.mark.parametrize("form", get_args(Form))
ZERO = torch.zeros((), dtype=torch.float64)

# One input that is right and one that is wrong.
PROBABILITIES = ((0.7, 0.2, 0.1), (0.6, 0.3, 0.1))
LABELS = (0, 1)
RECTIFIERS = (0.5, 0.2)


def says(rectifiers: tuple[float, ...] = RECTIFIERS, tau: float = 1.0) -> Outputs:
    """Outputs whose softmax at temperature tau is the table above."""
    logits = tau * torch.tensor(PROBABILITIES, dtype=torch.float64).log()
    head = torch.tensor(rectifiers, dtype=torch.float64).logit()[:, None]
    return Outputs(torch.zeros(2, 0), logits.requires_grad_(), head.requires_grad_())


def coupled_by_hand(form: Form, index: int) -> float:
    confidence, rectifier = PROBABILITIES[index][0], RECTIFIERS[index]
    return {
        "product": confidence * rectifier,
        "difference": confidence - rectifier,
        "head": rectifier,
        "confidence": confidence,
    }[form]


def bce(r: float, t: float) -> float:
    return -(t * math.log(r) + (1 - t) * math.log(1 - r))


def loss_of(rejector: RR, outputs: Outputs) -> Tensor:
    return rejector.training_loss(outputs, torch.tensor(LABELS), ZERO)


# Values.


@FORMS
@pytest.mark.parametrize("tau", [1.0, 0.25])
@pytest.mark.parametrize("weight", [1.0, 0.3])
def test_the_loss_has_the_value_worked_out_by_hand(form: Form, tau: float, weight: float) -> None:
    terms = [bce(coupled_by_hand(form, index), PROBABILITIES[index][LABELS[index]]) for index in range(2)]
    rejector = RR(form=form, tau=tau, weight=weight)
    assert loss_of(rejector, says(tau=tau)).item() == pytest.approx(weight * sum(terms) / 2, rel=1e-9)


@FORMS
@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_certainty_is_the_coupling_at_the_same_temperature(form: Form, tau: float) -> None:
    expected = [coupled_by_hand(form, index) for index in range(2)]
    assert RR(form=form, tau=tau).certainty(says(tau=tau)).tolist() == pytest.approx(expected, rel=1e-9)


def test_the_classifier_s_loss_is_added_untouched_by_the_temperature() -> None:
    for tau in (1.0, 0.25):
        rejector = RR(tau=tau)
        plain = loss_of(rejector, says()).item()
        total = rejector.training_loss(says(), torch.tensor(LABELS), ZERO + 5).item()
        assert total == pytest.approx(plain + 5, rel=1e-12)


@FORMS
def test_score_con_is_plain_confidence_whatever_the_form_and_the_temperature(form: Form) -> None:
    judged = RR(score="con", form=form, tau=0.25)
    assert torch.equal(judged.certainty(says()), Confidence().certainty(says()))


# What is held fixed. The slope of BCE(R, t) along R is (R - t) / (R (1 - R)).


def slopes(rejector: RR, outputs: Outputs) -> tuple[Tensor, Tensor]:
    logits, head = torch.autograd.grad(
        loss_of(rejector, outputs), (outputs.logits, outputs.head), materialize_grads=True
    )
    return logits, head[:, 0]


def slopes_by_hand(form: Form, stop_gradient: bool) -> tuple[Tensor, Tensor]:
    logits, head = torch.zeros(2, 3, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for index in range(2):
        p, a, label = PROBABILITIES[index], RECTIFIERS[index], LABELS[index]
        r, t = coupled_by_hand(form, index), p[label]
        along_r = (r - t) / (r * (1 - r)) / 2
        r_along_con = {"product": a, "difference": 1.0, "head": 0.0, "confidence": 1.0}[form]
        r_along_a = {"product": p[0], "difference": -1.0, "head": 1.0, "confidence": 0.0}[form]
        head[index] = along_r * r_along_a * a * (1 - a)
        if label != 0 or not stop_gradient:
            # The target p[label] is held fixed: only the confidence p[0] moves.
            along_con = [p[0] * ((k == 0) - p[k]) for k in range(3)]
            logits[index] = along_r * r_along_con * torch.tensor(along_con, dtype=torch.float64)
    return logits, head


@FORMS
@pytest.mark.parametrize("stop_gradient", [True, False])
def test_every_slope_is_the_one_worked_out_by_hand(form: Form, stop_gradient: bool) -> None:
    logits, head = slopes(RR(form=form, stop_gradient=stop_gradient), says())
    expected_logits, expected_head = slopes_by_hand(form, stop_gradient)
    torch.testing.assert_close(logits, expected_logits, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(head, expected_head, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", ["product", "difference", "confidence"])
def test_confidence_is_held_fixed_where_right_and_moves_where_wrong(form: Form) -> None:
    right, wrong = slopes(RR(form=form), says())[0]
    assert not right.any()
    assert wrong.any()
    right, wrong = slopes(RR(form=form, stop_gradient=False), says())[0]
    assert right.any() == (form != "confidence")  # where confidence alone is right, it is the target
    assert wrong.any()


def test_the_temperature_divides_the_slope_along_the_logits_only() -> None:
    for tau in (0.25, 1.0, 4.0):
        logits, head = slopes(RR(tau=tau), says(tau=tau))
        expected_logits, expected_head = slopes_by_hand("product", stop_gradient=True)
        torch.testing.assert_close(logits, expected_logits / tau, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(head, expected_head, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("form", ["product", "difference", "head"])
def test_the_loss_reaches_the_features_through_the_head_for_right_and_wrong_inputs(form: Form) -> None:
    features = HashedDraws(1).normal(torch.arange(2), (64,), 0).requires_grad_()
    columns = RR().build_head(64, 3).eval()(features)
    outputs = Outputs(features, says().logits.detach().float(), columns - columns.detach())  # A = 1/2
    loss = RR(form=form).training_loss(outputs, torch.tensor(LABELS), torch.zeros(()))
    (gradient,) = torch.autograd.grad(loss, features)
    assert gradient.any(1).all()


@pytest.mark.parametrize(("form", "ideal"), [("product", (1.0, 0.5)), ("difference", (0.0, 0.3)), ("head", (0.7, 0.3))])
def test_the_loss_is_least_where_r_is_the_true_class_s_probability(form: Form, ideal: tuple[float, float]) -> None:
    # A* is p[y] / p[predicted], Con - T-Con, and T-Con.
    rectifiers = (min(ideal[0], 1 - 1e-9), ideal[1])
    if form == "difference":
        rectifiers = (1e-9, ideal[1])
    head = slopes(RR(form=form), says(rectifiers))[1]
    assert head.tolist() == pytest.approx([0.0, 0.0], abs=1e-8)


# Rounding and saturation.


@pytest.mark.parametrize("outside", [1 + 1e-7, -1e-9])
def test_a_product_that_rounding_carries_out_of_the_range_has_a_finite_loss(
    outside: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RR, "rectified", lambda self, confidence, outputs: confidence * 0 + outside)
    assert loss_of(RR(), says()).isfinite()


@FORMS
@pytest.mark.parametrize("size", [40.0, 1e4, 1e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_saturated_outputs_have_a_finite_loss_and_finite_slopes(form: Form, size: float, dtype: torch.dtype) -> None:
    signs = torch.tensor([[1.0, 0.0, -1.0], [-1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=dtype)
    logits = (size * signs.repeat(3, 1)).requires_grad_()
    head = (size * torch.tensor([1.0, -1.0, 0.0], dtype=dtype).repeat_interleave(3)[:, None]).requires_grad_()
    labels = torch.tensor([0, 0, 1] * 3)
    loss = RR(form=form).training_loss(Outputs(logits[:, :0], logits, head), labels, torch.zeros(()))
    assert loss.isfinite()
    assert loss.dtype == torch.float32
    for slope in torch.autograd.grad(loss, (logits, head), materialize_grads=True):
        assert slope.isfinite().all()


def test_autocast_does_not_shorten_the_loss() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        short = loss_of(RR(), says())
    assert short.item() == pytest.approx(loss_of(RR(), says()).item(), rel=1e-6)


def test_sure_answers_do_not_tie() -> None:
    logits = torch.tensor([[20.0, 0.0]] * 5)
    head = torch.tensor([[17.0], [17.5], [20.0], [25.0], [30.0]])
    assert (logits.softmax(1).amax(1) * head[:, 0].sigmoid()).unique().numel() == 1  # in float32 they do
    certainty = RR().certainty(Outputs(logits[:, :0], logits, head))
    assert (certainty.diff() > 0).all()
    assert (certainty < 1).all()


# The difference.


def test_the_difference_is_clamped_in_the_loss_and_nowhere_else() -> None:
    outputs = says((0.9, 0.75))  # differences -0.2 and -0.15
    rejector = RR(form="difference")
    assert rejector.certainty(outputs).tolist() == pytest.approx([-0.2, -0.15])
    terms = [bce(1e-6, 0.7), bce(1e-6, 0.3)]
    assert loss_of(rejector, outputs).item() == pytest.approx(sum(terms) / 2, rel=1e-9)
    assert rejector.certainty(outputs).sum().requires_grad


@FORMS
@pytest.mark.parametrize("score", ["rcon", "con"])
def test_it_is_called_a_probability_where_it_is_one(form: Form, score: Literal["rcon", "con"]) -> None:
    ids = torch.arange(500)
    logits, head = 5 * HashedDraws(1).normal(ids, (3,), 0), 5 * HashedDraws(2).normal(ids, (1,), 0)
    rejector = RR(form=form, score=score)
    certainty = rejector.certainty(Outputs(logits[:, :0], logits, head))
    assert rejector.is_probability == bool(((certainty >= 0) & (certainty <= 1)).all())


# Settings.


def test_score_and_gamma_share_a_checkpoint_and_what_the_loss_uses_does_not() -> None:
    assert (
        training_key(RR(), "rr")
        == training_key(RR(score="con"), "rr")
        == training_key(Coupled(gamma=0.8), "coupled")
        == "rr"
    )
    assert training_key(RR(tau=0.5), "rr") == training_key(Coupled(tau=0.5), "coupled") == "rr(tau=0.5)"
    assert (
        training_key(RR(form="head", stop_gradient=False, weight=2.0), "rr")
        == "rr(form=head,stop_gradient=false,weight=2)"
    )


@pytest.mark.parametrize("width", [512, 640])
def test_the_head_is_the_paper_s(width: int) -> None:
    head = rejection_head(width)
    assert isinstance(head, nn.Sequential)
    assert [type(layer) for layer in head] == [nn.Linear, nn.BatchNorm1d, nn.ReLU, nn.Linear]
    hidden = width // 2
    numbers = sum(tensor.numel() for tensor in head.state_dict().values())
    assert numbers == width * hidden + hidden + 4 * hidden + 1 + hidden + 1
    # The paper's checkpoints grow by 0.53 and 0.82 MB.
    assert round(4 * numbers / 1e6, 2) == pytest.approx({512: 0.53, 640: 0.82}[width], abs=0.011)
    assert head.eval()(torch.rand(3, width)).shape == (3, 1)
