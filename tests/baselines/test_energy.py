import math

import pytest
import torch
from torch import Tensor

from rrbench.protocols import Outputs
from rrbench_baselines.ebd import Ebd
from rrbench_baselines.energy import Energy


def says(logits: Tensor) -> Outputs:
    return Outputs(torch.zeros(len(logits), 0), logits, torch.zeros(len(logits), 0))


def test_it_is_the_log_of_the_sum_of_exponentials() -> None:
    outputs = says(torch.tensor([[math.log(1.0), math.log(2.0), math.log(5.0)], [3.0, 3.0, 3.0]]))
    assert Energy().certainty(outputs).tolist() == pytest.approx([math.log(8), 3 + math.log(3)], rel=1e-7)


def test_the_temperature_divides_inside_and_multiplies_outside() -> None:
    outputs = says(torch.tensor([[2 * math.log(1.0), 2 * math.log(7.0)]], dtype=torch.float64))
    assert Energy(tau=2.0).certainty(outputs).item() == pytest.approx(2 * math.log(8))


def test_it_is_what_ebd_trains_and_without_a_training_of_its_own() -> None:
    outputs = says(torch.randn(20, 5, generator=torch.Generator().manual_seed(0)))
    torch.testing.assert_close(Energy().certainty(outputs).float(), Ebd().certainty(outputs))
    assert Ebd().has_training()
    assert not Energy().has_training()


def test_one_more_on_every_logit_is_one_more_certainty() -> None:
    """What confidence cannot see: the height of the logits counts, and not only their differences."""
    logits = torch.randn(9, 4, generator=torch.Generator().manual_seed(1))
    energy = Energy().certainty(says(logits))
    torch.testing.assert_close(Energy().certainty(says(logits + 1)), energy + 1, rtol=1e-6, atol=1e-6)


def test_its_slope_is_the_softmax() -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(2)).requires_grad_()
    (slope,) = torch.autograd.grad(Energy(tau=2.0).certainty(says(logits)).sum(), logits)
    torch.testing.assert_close(slope, (logits.detach() / 2).softmax(1))


@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan])
def test_a_temperature_without_meaning_is_refused(tau: float) -> None:
    with pytest.raises(ValueError, match=r"tau must be above 0"):
        Energy(tau=tau)
