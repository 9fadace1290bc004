import pytest
import torch

from rrbench.compute.draws import HashedDraws
from rrbench.planning.cells import training_key
from rrbench.protocols import Outputs
from rrbench_baselines.confidence import probabilities
from rrbench_baselines.coupled import Coupled
from rrbench_baselines.rr import RR


def random_outputs(size: int = 5000) -> Outputs:
    ids = torch.arange(size)
    return Outputs(
        torch.zeros(size, 0), 3 * HashedDraws(4).normal(ids, (4,), 0), 2 + 3 * HashedDraws(5).normal(ids, (1,), 0)
    )


def accepts(rejector: Coupled, outputs: Outputs) -> torch.Tensor:
    assert rejector.own_threshold is not None
    return rejector.certainty(outputs) >= rejector.own_threshold


@pytest.mark.parametrize("gamma", [0.5, 0.6, 0.9])
@pytest.mark.parametrize("tau", [1.0, 0.25])
def test_it_accepts_exactly_where_both_conditions_hold(gamma: float, tau: float) -> None:
    outputs = random_outputs()
    confidence = probabilities(outputs, tau).amax(1)
    expected = (confidence > gamma) & (confidence * outputs.head[:, 0].double().sigmoid() > 0.5)
    assert torch.equal(accepts(Coupled(gamma=gamma, tau=tau), outputs), expected)
    assert 0.1 < expected.float().mean() < 0.9


def test_the_rule_is_strict() -> None:
    logits, nothing = torch.tensor([[0.0, 0.0]]), torch.zeros(1, 0)
    assert not accepts(Coupled(), Outputs(nothing, logits, torch.tensor([[100.0]]))).any()  # Con = 1/2 exactly
    sure = torch.tensor([[800.0, 0.0]])
    assert not accepts(Coupled(), Outputs(nothing, sure, torch.tensor([[0.0]]))).any()  # R-Con = 1/2 exactly
    assert accepts(Coupled(), Outputs(nothing, sure, torch.tensor([[1e-7]]))).all()
    assert accepts(Coupled(), Outputs(nothing, torch.tensor([[1e-7, 0.0]]), torch.tensor([[100.0]]))).all()


def test_certainty_is_the_condition_that_is_met_less() -> None:
    logits = torch.tensor([[0.8, 0.2], [0.8, 0.2]]).log()
    head = torch.tensor([0.9, 0.65]).logit()[:, None]
    certainty = Coupled(gamma=0.6).certainty(Outputs(torch.zeros(2, 0), logits, head))
    assert certainty.tolist() == pytest.approx([0.2, 0.02], abs=1e-6)


def test_points_of_small_error_are_told_apart_with_certainty() -> None:
    """The paper's claim: where xi = 2 |A - A*| < 2 - 1 / Con, R-Con > 1/2 means right and < 1/2 wrong."""
    outputs = random_outputs()
    labels = torch.arange(5000) % 4
    probability = probabilities(outputs)
    confidence, predicted = probability.max(1)
    rectifier = outputs.head[:, 0].double().sigmoid()
    error = 2 * (rectifier - probability.gather(1, labels[:, None]).squeeze(1) / confidence).abs()
    for gamma in (0.55, 0.7, 0.9):
        proven = accepts(Coupled(gamma=gamma), outputs) & (error < 2 - 1 / gamma)
        assert (predicted == labels)[proven].all()
        assert proven.any()


def test_it_judges_the_network_of_rr() -> None:
    assert training_key(Coupled(gamma=0.9), "coupled") == training_key(RR(), "rr") == "rr"
    assert not Coupled().is_probability
