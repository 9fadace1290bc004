import math

import pytest
import torch
from scipy.stats import entropy

from rrbench.protocols import Outputs
from rrbench_baselines.entropy import Entropy


def says(logits: list[list[float]]) -> Outputs:
    return Outputs(torch.zeros(len(logits), 0), torch.tensor(logits), torch.zeros(len(logits), 0))


def test_it_is_one_minus_the_share_of_the_largest_entropy() -> None:
    quarter = [math.log(0.5), math.log(0.25), math.log(0.125), math.log(0.125)]
    # 0.5 + 0.5 + 3/8 + 3/8 = 7/4 bits, of 2 at most.
    assert Entropy().certainty(says([quarter])).item() == pytest.approx(1 - 7 / 8, rel=1e-6)


def test_it_is_zero_where_all_classes_are_alike_and_one_where_one_is_sure() -> None:
    certainty = Entropy().certainty(says([[2.0, 2.0, 2.0], [1000.0, 0.0, 0.0], [3e38, -3e38, 0.0]]))
    assert certainty.tolist() == pytest.approx([0.0, 1.0, 1.0], abs=1e-12)
    assert certainty.min() >= 0


def test_it_agrees_with_scipy_s_entropy_at_every_temperature() -> None:
    logits = torch.randn(30, 7, generator=torch.Generator().manual_seed(0))
    outputs = Outputs(torch.zeros(30, 0), logits, torch.zeros(30, 0))
    for tau in (0.5, 1.0, 3.0):
        expected = 1 - entropy((logits.double() / tau).softmax(1).numpy(), axis=1) / math.log(7)
        assert Entropy(tau=tau).certainty(outputs).numpy() == pytest.approx(expected, abs=1e-12)


def test_the_gradient_is_the_derivative_also_where_a_probability_is_zero() -> None:
    logits = torch.tensor([[0.3, -0.2, 1.0], [0.0, 0.1, -0.1]], dtype=torch.float64, requires_grad=True)
    empty = torch.zeros(2, 0)
    assert torch.autograd.gradcheck(lambda moved: Entropy().certainty(Outputs(empty, moved, empty)), (logits,))
    sure = torch.tensor([[1e6, 0.0, -1e6]], requires_grad=True)
    (slope,) = torch.autograd.grad(Entropy().certainty(Outputs(empty, sure, empty)).sum(), sure)
    assert slope.tolist() == [[0.0, 0.0, 0.0]]


def test_a_temperature_without_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tau must be above 0"):
        Entropy(tau=0.0)
