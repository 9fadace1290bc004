import math

import pytest
import torch

from rrbench.compute.draws import HashedDraws
from rrbench.planning.cells import training_key
from rrbench.protocols import Outputs
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.t_con import TCon


def says(logits: torch.Tensor) -> Outputs:
    return Outputs(logits[:, :0], logits, logits[:, :0])


def random_case(size: int = 5000) -> tuple[Outputs, torch.Tensor]:
    ids = torch.arange(size)
    return says(3 * HashedDraws(4).normal(ids, (5,), 0)), ids % 5


def test_it_is_the_true_class_s_probability() -> None:
    outputs = says(torch.tensor([[0.2, 0.7, 0.1]]).log().repeat(3, 1))
    assert TCon().oracle_certainty(outputs, torch.tensor([0, 1, 2])).tolist() == pytest.approx([0.2, 0.7, 0.1])


def test_the_temperature_divides_the_logits() -> None:
    outputs = says(torch.tensor([[0.0, 2.0]]))
    certainty = TCon(tau=4.0).oracle_certainty(outputs, torch.tensor([0]))
    assert certainty.item() == pytest.approx(1 / (1 + math.exp(0.5)))


def test_all_that_is_accepted_above_one_half_is_right_at_any_temperature() -> None:
    outputs, labels = random_case()
    correct = outputs.logits.argmax(1) == labels
    for tau in (2.0**-10, 0.5, 1.0, 2.0):
        accepted = TCon(tau=tau).oracle_certainty(outputs, labels) >= 0.5
        assert accepted.any()
        assert correct[accepted].all()


def test_right_and_wrong_inputs_of_confidence_above_one_half_are_told_apart() -> None:
    outputs, labels = random_case()
    correct = outputs.logits.argmax(1) == labels
    certainty = TCon().oracle_certainty(outputs, labels)
    sure = Confidence().certainty(outputs) > 0.5
    assert certainty[sure & correct].min() > 0.5 > certainty[sure & ~correct].max()


def test_without_labels_it_refuses() -> None:
    with pytest.raises(TypeError, match="oracle"):
        TCon().certainty(random_case(3)[0])
    assert TCon.is_oracle


def test_it_shares_the_plain_checkpoint_whatever_its_temperature() -> None:
    assert training_key(TCon(tau=0.25), "t-con") == ""
