import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.planning.cells import training_key
from rrbench.protocols import Outputs
from rrbench_baselines.ebd import Ebd

ZERO = torch.zeros(())


def says(logits: Tensor) -> Outputs:
    return Outputs(logits[:, :0], logits, logits[:, :0])


def at_levels(levels: list[float]) -> Tensor:
    """Logits (two classes, the first predicted) whose logsumexp is the level."""
    return torch.tensor([[math.log(0.75) + level, math.log(0.25) + level] for level in levels])


def test_it_is_logsumexp_and_not_its_negative() -> None:
    logits = torch.tensor([[0.0, math.log(2.0), math.log(5.0)], [100.0, 0.0, 0.0]])
    assert Ebd().certainty(says(logits)).tolist() == pytest.approx([math.log(8.0), 100.0])


def test_the_loss_has_the_value_worked_out_by_hand() -> None:
    # Right at 7 (no cost), 4 and 2; wrong at 1 (no cost) and 5.
    logits, labels = at_levels([7.0, 4.0, 2.0, 1.0, 5.0]), torch.tensor([0, 0, 0, 1, 1])
    hinges = (0 + 2.0**2 + 4.0**2) / 3 + (0 + 2.0**2) / 2
    for weight in (0.1, 1.0):
        loss = Ebd(weight=weight).training_loss(says(logits), labels, torch.tensor(0.25))
        assert loss.item() == pytest.approx(0.25 + weight * hinges, rel=1e-5)


def test_the_margins_are_settings() -> None:
    logits, labels = at_levels([7.0, 1.0]), torch.tensor([0, 1])
    loss = Ebd(m_in=8.0, m_out=-1.0, weight=1.0).training_loss(says(logits), labels, ZERO)
    assert loss.item() == pytest.approx(1 + 4, rel=1e-5)


def test_the_gradient_reaches_the_logits_of_right_and_wrong_inputs() -> None:
    logits = at_levels([4.0, 5.0]).requires_grad_()
    Ebd(weight=0.5).training_loss(says(logits), torch.tensor([0, 1]), ZERO).backward()
    # The slope of logsumexp is softmax = (3/4, 1/4): pulled up below m_in, pushed down above m_out.
    expected = torch.tensor([[-4.0 * 0.75, -4.0 * 0.25], [4.0 * 0.75, 4.0 * 0.25]]) / 2
    torch.testing.assert_close(logits.grad, expected)


@pytest.mark.parametrize("labels", [[0, 0, 0], [1, 1, 1]])
def test_a_batch_that_is_all_right_or_all_wrong_adds_nothing_and_leaves_the_gradient_alone(labels: list[int]) -> None:
    target = torch.tensor(labels)
    logits = at_levels([1.0, 4.5, 8.0]).requires_grad_()
    plain = F.cross_entropy(logits, target)
    (expected,) = torch.autograd.grad(plain, logits, retain_graph=True)
    loss = Ebd().training_loss(says(logits), target, plain)
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == plain.item()
    assert torch.equal(gradient, expected)


def test_huge_logits_do_not_overflow() -> None:
    logits = torch.tensor([[1e4, 0.0], [-1e4, -1e4]], requires_grad=True)
    loss = Ebd().training_loss(says(logits), torch.tensor([1, 0]), ZERO)
    loss.backward()
    assert loss.isfinite()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_the_training_key_names_what_is_not_the_paper_s() -> None:
    assert training_key(Ebd(), "ebd") == "ebd"
    assert training_key(Ebd(m_in=23.0, m_out=5.0, weight=1.0), "ebd") == "ebd(m_in=23,m_out=5,weight=1)"
    assert not Ebd().is_probability
