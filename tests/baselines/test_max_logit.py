import torch

from rrbench.protocols import Outputs
from rrbench_baselines.energy import Energy
from rrbench_baselines.max_logit import MaxLogit


def says(logits: list[list[float]]) -> Outputs:
    return Outputs(torch.zeros(len(logits), 0), torch.tensor(logits), torch.zeros(len(logits), 0))


def test_it_is_the_largest_logit() -> None:
    assert MaxLogit().certainty(says([[0.5, -1.0, 2.5], [-3.0, -4.0, -5.0]])).tolist() == [2.5, -3.0]


def test_it_is_energy_at_a_temperature_next_to_zero() -> None:
    outputs = says([[0.5, -1.0, 2.5], [-3.0, -4.0, -5.0], [1.0, 0.0, 0.5]])
    torch.testing.assert_close(Energy(tau=1e-3).certainty(outputs), MaxLogit().certainty(outputs).double())


def test_only_the_predicted_class_receives_gradient() -> None:
    outputs = says([[0.5, -1.0, 2.5], [-3.0, -4.0, -5.0]])
    logits = outputs.logits.requires_grad_()
    (slope,) = torch.autograd.grad(MaxLogit().certainty(outputs).sum(), logits)
    assert slope.tolist() == [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
