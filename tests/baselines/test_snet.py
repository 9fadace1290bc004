import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from rrbench.planning.cells import training_key
from rrbench.protocols import Outputs
from rrbench_baselines.snet import Snet

ZERO = torch.zeros(())


def outputs_of(probabilities: list[list[float]], selector: list[float], auxiliary: list[list[float]]) -> Outputs:
    head = torch.cat([torch.tensor(selector)[:, None], torch.tensor(auxiliary).log()], 1)
    return Outputs(torch.zeros(len(selector), 0), torch.tensor(probabilities).log(), head)


def example() -> tuple[Outputs, Tensor]:
    """Two inputs with g = 1/2 and 3/4, true-class probabilities 1/2 and 1/4, auxiliary ones 0.8 and 0.4."""
    outputs = outputs_of([[0.5, 0.5], [0.75, 0.25]], [0.0, math.log(3)], [[0.8, 0.2], [0.6, 0.4]])
    return outputs, torch.tensor([0, 1])


def test_the_loss_has_the_value_worked_out_by_hand() -> None:
    auxiliary = -(math.log(0.8) + math.log(0.4)) / 2
    risk = (0.5 * math.log(2) + 0.75 * math.log(4)) / 1.25
    expected = 0.5 * auxiliary + 0.5 * 8 * (0.7 - 0.625) ** 2 + 0.5 * risk
    assert Snet().training_loss(*example(), ZERO).item() == pytest.approx(expected, rel=1e-6)


def test_enough_coverage_costs_nothing_and_the_weight_scales_the_rest() -> None:
    free, light, heavy = (
        Snet(weight=weight, coverage=coverage).training_loss(*example(), ZERO).item()
        for weight, coverage in ((8, 0.6), (8, 0.7), (32, 0.7))
    )
    assert light - free == pytest.approx(4 * 0.075**2, abs=1e-6)
    assert heavy - free == pytest.approx(16 * 0.075**2, abs=1e-6)


def test_the_framework_s_loss_is_left_out() -> None:
    losses = [Snet().training_loss(*example(), torch.tensor(value)).item() for value in (0.0, 100.0)]
    assert losses[0] == losses[1]


def numeric_slope(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    slopes = torch.zeros_like(at)
    for index in np.ndindex(*at.shape):
        step = torch.zeros_like(at)
        step[index] = 1e-6
        slopes[index] = (function(at + step) - function(at - step)) / 2e-6
    return slopes


def test_nothing_is_held_fixed() -> None:
    outputs, labels = example()
    logits, head = outputs.logits.double().requires_grad_(), outputs.head.double().requires_grad_()

    def loss(logits: Tensor, head: Tensor) -> Tensor:
        return Snet().training_loss(Outputs(outputs.features, logits, head), labels, ZERO)

    gradients = torch.autograd.grad(loss(logits, head), (logits, head))
    with torch.no_grad():
        numeric = (
            numeric_slope(lambda moved: loss(moved, head), logits),
            numeric_slope(lambda moved: loss(logits, moved), head),
        )
    for gradient, slope in zip(gradients, numeric, strict=True):
        torch.testing.assert_close(gradient, slope, atol=1e-6, rtol=1e-5)
        assert (gradient != 0).all()


def test_a_selector_that_refuses_everything_keeps_loss_and_gradient_finite() -> None:
    outputs, labels = example()
    head = outputs.head.clone()
    head[:, 0] = -200.0
    head.requires_grad_()
    loss = Snet().training_loss(outputs._replace(head=head), labels, ZERO)
    loss.backward()
    risk = (math.log(2) + math.log(4)) / 2
    auxiliary = -(math.log(0.8) + math.log(0.4)) / 2
    assert loss.item() == pytest.approx(0.5 * auxiliary + 4 * 0.7**2 + 0.5 * risk, rel=1e-5)
    assert head.grad is not None
    assert head.grad.isfinite().all()


def test_certainty_is_the_selector_and_rises_with_it() -> None:
    certainty = Snet().certainty(example()[0])
    torch.testing.assert_close(certainty, torch.tensor([0.5, 0.75], dtype=torch.float64), atol=1e-7, rtol=0)


def test_sure_answers_do_not_tie_and_equal_ones_do() -> None:
    outputs = outputs_of([[0.5, 0.5]] * 4, [20.0, 21.0, 21.0, -200.0], [[0.5, 0.5]] * 4)
    certainty = Snet().certainty(outputs)
    assert certainty[0] < certainty[1] == certainty[2]
    assert 0 < certainty[3] < 1e-80


def test_the_auxiliary_classifier_does_not_touch_certainty() -> None:
    outputs, _ = example()
    head = outputs.head.clone()
    head[:, 1:] = 7.0
    assert torch.equal(Snet().certainty(outputs._replace(head=head)), Snet().certainty(outputs))


def test_the_head_gives_one_column_and_one_for_each_class_and_passes_gradient_to_the_features() -> None:
    head = Snet().build_head(8, 5)
    features = torch.rand(4, 8, requires_grad=True)
    columns = head(features)
    assert columns.shape == (4, 6)
    for part in (columns[:, 0], columns[:, 1:]):
        (gradient,) = torch.autograd.grad(part.square().sum(), features, retain_graph=True)
        assert gradient.any()


def test_a_batch_of_one_has_a_loss_and_one_certainty() -> None:
    head = Snet().build_head(8, 3).eval()
    features = torch.rand(1, 8)
    outputs = Outputs(features, torch.rand(1, 3), head(features))
    assert Snet().training_loss(outputs, torch.tensor([2]), ZERO).shape == ()
    assert Snet().certainty(outputs).shape == (1,)


def test_the_training_key_names_what_is_not_the_paper_s() -> None:
    assert training_key(Snet(), "snet") == "snet"
    assert training_key(Snet(coverage=0.8, weight=32.0), "snet") == "snet(coverage=0.8,weight=32)"
