"""Scores at any temperature, from logits and head, against softmax written out and against hand-computed values."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import expit, softmax

from rrbench.figures.certainty import couple, log_odds, probability
from rrbench.figures.temperature import LOG2_TAU, sweep
from rrbench.metrics.measures import accept_at_tpr95


def problem(inputs: int = 400, classes: int = 4) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
    rng = np.random.default_rng(0)
    logits = (2 * rng.normal(size=(inputs, classes))).astype(np.float32)
    labels = np.where(rng.random(inputs) < 0.6, logits.argmax(axis=1), rng.integers(classes, size=inputs))
    return labels, logits, rng.normal(size=(inputs, 1)).astype(np.float32)


@pytest.mark.parametrize("tau", [0.25, 1.0, 8.0])
def test_the_probability_of_a_class_is_softmax_at_the_temperature(tau: float) -> None:
    labels, logits, _ = problem()
    expected = softmax(logits.astype(np.float64) / tau, axis=1)[np.arange(len(labels)), labels]
    assert probability(log_odds(logits, labels, tau)) == pytest.approx(expected)


def test_log_odds_keep_the_order_where_probabilities_are_rounded_to_one() -> None:
    logits = np.array([[9.0, 0.0, 1.0], [8.0, 0.0, 1.0], [7.0, 0.0, 1.0]])
    odds = log_odds(logits, np.zeros(3, dtype=int), 2.0**-10)
    assert probability(odds).tolist() == [1, 1, 1]
    assert (np.diff(odds) < 0).all()


def test_the_coupled_quantities_match_hand_computed_values() -> None:
    # Two classes: confidence 0.8; a right input with A = 3/4, and a wrong one (A* = 1/4) with the same A.
    logits = np.log([[0.8, 0.2], [0.8, 0.2]])
    points = couple(np.array([0, 1]), logits, np.log([[3.0], [3.0]]), 1.0)
    assert points.confidence == pytest.approx([0.8, 0.8])
    assert points.rectified == pytest.approx([0.6, 0.6])
    assert points.xi == pytest.approx([0.5, 1.0])
    assert points.passes.tolist() == [True, False]  # 0.8 > 1 / 1.5; xi is not below 1
    assert points.correct.tolist() == [True, False]


def test_a_lower_temperature_sharpens_both_confidence_and_the_ideal() -> None:
    logits = np.log([[0.8, 0.2]])
    points = couple(np.array([1]), logits, np.zeros((1, 1)), 0.5)
    assert points.confidence == pytest.approx([0.64 / 0.68])
    assert points.xi == pytest.approx([2 * abs(0.5 - 0.04 / 0.64)])


@pytest.mark.parametrize("log2_tau", [0, -1, -2, -3])
def test_what_passes_is_separated_at_one_half_at_every_temperature(log2_tau: int) -> None:
    labels, logits, head = problem(5000)
    points = couple(labels, logits, head, 2.0**log2_tau)
    assert points.passes.sum() > 50
    assert (points.rectified[points.passes & points.correct] > 0.5).all()
    assert (points.rectified[points.passes & ~points.correct] < 0.5).all()


def test_the_sweep_is_tpr95_and_means_of_softmax_scores() -> None:
    labels, logits, _ = problem()
    correct = logits.argmax(axis=1) == labels
    found = sweep(labels, logits, labels, "quantile")
    for log2_tau in (-1, 0, 3):
        score = softmax(logits.astype(np.float64) / 2.0**log2_tau, axis=1)[np.arange(len(labels)), labels]
        index = LOG2_TAU.index(log2_tau)
        accepted = accept_at_tpr95(score, correct, "quantile")
        assert found.acc_tpr95[index] == 100 * correct[accepted].mean()
        assert found.mean_right[index] == pytest.approx(score[correct].mean())
        assert found.mean_wrong[index] == pytest.approx(score[~correct].mean())


def test_the_rectifier_is_the_sigmoid_of_the_head() -> None:
    labels, logits, head = problem()
    points = couple(labels, logits, head, 1.0)
    assert points.rectified / points.confidence == pytest.approx(expit(head[:, 0].astype(np.float64)))
