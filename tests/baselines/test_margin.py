import math

import pytest
import torch

from rrbench.protocols import Outputs
from rrbench_baselines.margin import Margin


def says(probabilities: list[list[float]]) -> Outputs:
    logits = torch.tensor(probabilities, dtype=torch.float64).log()
    return Outputs(torch.zeros(len(logits), 0), logits, torch.zeros(len(logits), 0))


def test_it_is_the_gap_between_the_two_largest_probabilities() -> None:
    outputs = says([[0.2, 0.7, 0.1], [0.45, 0.1, 0.45], [0.05, 0.05, 0.9]])
    assert Margin().certainty(outputs).tolist() == pytest.approx([0.5, 0.0, 0.85])


def test_it_orders_other_than_confidence() -> None:
    """0.5 against 0.5 is a toss-up; 0.45 against many small ones is not."""
    toss_up, alone = Margin().certainty(says([[0.5, 0.5, 0.0, 0.0], [0.45, 0.19, 0.18, 0.18]])).tolist()
    assert toss_up < alone


def test_the_temperature_divides_the_logits() -> None:
    outputs = says([[0.64, 0.04, 0.32]])
    root = [math.sqrt(part) for part in (0.64, 0.04, 0.32)]
    assert Margin(tau=2.0).certainty(outputs).item() == pytest.approx((root[0] - root[2]) / sum(root))


def test_sure_answers_do_not_tie() -> None:
    logits = torch.tensor([[gap, 0.0, 0.0] for gap in (17.0, 17.5, 20.0, 30.0)])
    certainty = Margin().certainty(Outputs(torch.zeros(4, 0), logits, torch.zeros(4, 0)))
    assert (certainty.diff() > 0).all()


def test_the_gradient_is_the_derivative() -> None:
    outputs = says([[0.2, 0.7, 0.1], [0.3, 0.1, 0.6]])
    logits = outputs.logits.requires_grad_()
    assert torch.autograd.gradcheck(lambda moved: Margin().certainty(outputs._replace(logits=moved)), (logits,))


def test_a_temperature_without_meaning_is_refused() -> None:
    with pytest.raises(ValueError, match=r"tau must be above 0"):
        Margin(tau=-1.0)
