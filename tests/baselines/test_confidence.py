import math

import pytest
import torch

from rrbench.planning.cells import training_key
from rrbench.protocols import Outputs
from rrbench_baselines.confidence import Confidence, probabilities


def says(logits: list[list[float]]) -> Outputs:
    return Outputs(torch.zeros(len(logits), 0), torch.tensor(logits), torch.zeros(len(logits), 0))


def test_it_is_the_largest_probability() -> None:
    outputs = says([[math.log(0.2), math.log(0.7), math.log(0.1)], [3.0, 3.0, 3.0]])
    assert Confidence().certainty(outputs).tolist() == pytest.approx([0.7, 1 / 3])


def test_the_temperature_divides_the_logits() -> None:
    outputs = says([[0.0, 2.0, -1.0]])
    exponentials = [math.exp(0.0), math.exp(4.0), math.exp(-2.0)]
    assert Confidence(tau=0.5).certainty(outputs).item() == pytest.approx(exponentials[1] / sum(exponentials))


def test_the_order_by_one_class_s_probability_turns_with_the_temperature() -> None:
    """The paper's toy example: (0, 3, -1000) against (0, 2, 2), judged by class 0."""
    outputs = says([[0.0, 3.0, -1000.0], [0.0, 2.0, 2.0]])
    cold, warm = probabilities(outputs)[:, 0], probabilities(outputs, 2.0)[:, 0]
    assert cold[0] < cold[1]
    assert warm[0] > warm[1]


def test_sure_answers_do_not_tie_where_their_logits_differ() -> None:
    outputs = says([[gap, 0.0, 0.0] for gap in (17.0, 17.5, 20.0, 25.0, 30.0)])
    assert outputs.logits.softmax(1).amax(1).unique().numel() == 1  # in float32 they do
    certainty = Confidence().certainty(outputs)
    assert (certainty.diff() > 0).all()
    assert certainty[-1] < 1


def test_extreme_logits_give_one_and_not_nan() -> None:
    outputs = says([[3e38, -3e38, 0.0], [-3e38, -3e38, -3e38]])
    assert Confidence().certainty(outputs).tolist() == pytest.approx([1.0, 1 / 3])


def test_it_shares_the_plain_checkpoint_whatever_its_temperature() -> None:
    assert training_key(Confidence(tau=0.25), "confidence") == ""
    loss = torch.tensor(1.5)
    assert Confidence().training_loss(says([[1.0, 0.0]]), torch.tensor([0]), loss) is loss
    assert Confidence().build_head(8, 3) is None
