import pytest
import torch

from rrbench.protocols import Outputs
from rrbench_baselines.doctor import Doctor


def says(probabilities: list[list[float]]) -> Outputs:
    logits = torch.tensor(probabilities, dtype=torch.float64).log()
    return Outputs(torch.zeros(len(logits), 0), logits, torch.zeros(len(logits), 0))


def test_it_is_the_sum_of_the_squared_probabilities() -> None:
    outputs = says([[0.5, 0.3, 0.2], [1 / 3, 1 / 3, 1 / 3], [1.0, 0.0, 0.0]])
    assert Doctor().certainty(outputs).tolist() == pytest.approx([0.38, 1 / 3, 1.0])


def test_it_rejects_in_the_order_of_the_published_ratio() -> None:
    """Granese et al. reject where (1 - g) / g is above a threshold, g the sum that we take for certainty."""
    logits = 3 * torch.randn(50, 6, generator=torch.Generator().manual_seed(0)).double()
    outputs = Outputs(torch.zeros(50, 0), logits, torch.zeros(50, 0))
    g = logits.softmax(1).square().sum(1)
    assert torch.equal(Doctor().certainty(outputs).argsort(), ((1 - g) / g).argsort(descending=True))


def test_the_temperature_divides_the_logits() -> None:
    # The square roots of 0.64 and 0.36 are 0.8 and 0.6: probabilities of 4/7 and 3/7.
    assert Doctor(tau=2.0).certainty(says([[0.64, 0.36]])).item() == pytest.approx(25 / 49)


def test_the_gradient_is_the_derivative() -> None:
    outputs = says([[0.2, 0.7, 0.1], [0.3, 0.1, 0.6]])
    logits = outputs.logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda moved: Doctor().certainty(outputs._replace(logits=moved)), (logits,))


def test_a_temperature_without_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tau must be above 0"):
        Doctor(tau=0.0)
