import numpy as np
import pytest
import torch
from torch import Tensor

from rrbench.metrics.measures import aurc
from rrbench.protocols import Outputs
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.max_logit_pnorm import MaxLogitPnorm


def says(logits: Tensor) -> Outputs:
    return Outputs(torch.zeros(len(logits), 0), logits, torch.zeros(len(logits), 0))


def with_p(p: float) -> MaxLogitPnorm:
    rejector = MaxLogitPnorm(p=p)
    rejector.fit(says(torch.eye(2)), torch.tensor([0, 1]))
    return rejector


def test_it_is_the_largest_centred_logit_over_the_norm_of_all() -> None:
    outputs = says(torch.tensor([[5.0, 2.0, -1.0], [4.0, 0.0, -4.0]]))
    # Centred: 3, 0, -3 and 4, 0, -4. Sums 6 and 8, lengths 3 sqrt(2) and 4 sqrt(2).
    assert with_p(1).certainty(outputs).tolist() == pytest.approx([0.5, 0.5])
    assert with_p(2).certainty(outputs).tolist() == pytest.approx([0.5**0.5] * 2)
    skew = says(torch.tensor([[6.0, 0.0, 0.0]]))  # 4, -2, -2: a cube of 80
    assert with_p(3).certainty(skew).item() == pytest.approx(4 / 80 ** (1 / 3))


def test_p_of_zero_leaves_the_centred_logits_as_they_are() -> None:
    outputs = says(torch.tensor([[5.0, 2.0, -1.0], [8.0, 0.0, -8.0]]))
    assert with_p(0).certainty(outputs).tolist() == pytest.approx([3.0, 8.0])


def test_neither_a_shift_nor_a_scale_of_the_logits_changes_it() -> None:
    logits = torch.randn(20, 6, generator=torch.Generator().manual_seed(0)).double()
    certainty = with_p(4).certainty(says(logits))
    for moved in (logits + 7, 30 * logits, 1e-3 * logits - 2):
        torch.testing.assert_close(with_p(4).certainty(says(moved)), certainty, rtol=1e-9, atol=0)


def made(seed: int) -> tuple[Outputs, Tensor]:
    """Right answers whose logits differ in height, which confidence takes for differences in certainty."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(400, 5, generator=generator) * torch.rand(400, 1, generator=generator).mul(3).exp()
    labels = logits.argmax(1)
    unsure = logits.sub(logits.mean(1, keepdim=True)).div(logits.std(1, keepdim=True)).amax(1) < 1.5
    return says(logits), torch.where(unsure, (labels + 1) % 5, labels)


def test_the_p_of_least_risk_is_chosen_on_the_training_inputs() -> None:
    clean, labels = made(0)
    chosen = MaxLogitPnorm()
    chosen.fit(clean, labels)
    right = (clean.logits.argmax(1) == labels).numpy()
    risks = [aurc(with_p(p).certainty(clean).numpy(), right) for p in range(9)]
    assert int(chosen.fitted["p"]) == int(np.argmin(risks))
    assert min(risks) < aurc(Confidence().certainty(clean).numpy(), right)
    torch.testing.assert_close(chosen.certainty(clean), with_p(int(np.argmin(risks))).certainty(clean))


@pytest.mark.parametrize("kind", ["no answer is wrong", "confidence is perfect"])
def test_where_no_p_does_better_it_falls_back_on_confidence(kind: str) -> None:
    clean, _ = made(1)
    labels = clean.logits.argmax(1)
    if kind == "confidence is perfect":
        certainty = Confidence().certainty(clean)
        labels = torch.where(certainty < certainty.median(), (labels + 1) % 5, labels)
    rejector = MaxLogitPnorm()
    rejector.fit(clean, labels)
    assert torch.equal(rejector.certainty(clean), Confidence().certainty(clean))


def test_equal_logits_have_no_certainty_and_a_finite_slope() -> None:
    for p in (1, 2, 8):
        logits = torch.tensor([[0.0] * 4, [3.3] * 4, [1e6] * 4], requires_grad=True)
        certainty = with_p(p).certainty(says(logits))
        assert certainty.tolist() == pytest.approx([0.0, 0.0, 0.0], abs=1e-3)
        (slope,) = torch.autograd.grad(certainty.sum(), logits)
        assert slope.isfinite().all()


@pytest.mark.parametrize("p", [0, 1, 2, 5])
def test_the_gradient_is_the_derivative(p: float) -> None:
    logits = torch.randn(6, 5, generator=torch.Generator().manual_seed(3)).double().requires_grad_()
    assert torch.autograd.gradcheck(lambda moved: with_p(p).certainty(says(moved)), (logits,))


@pytest.mark.parametrize("p", [-1.0, 0.5, float("nan")])
def test_a_p_that_makes_no_norm_is_refused(p: float) -> None:
    with pytest.raises(ValueError, match=r"^p must be 0, or at least 1"):
        MaxLogitPnorm(p=p)
