"""The curves behind the figures: risk against coverage with its band, and the bins of a reliability diagram."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from sklearn.calibration import calibration_curve

from rrbench.metrics import measures as metrics
from rrbench.metrics import resampling

Floats = NDArray[np.float64]
Scored = tuple[Floats, NDArray[np.bool_]]
TIED: Scored = (np.array([3.0, 3.0, 2.0, 2.0, 2.0, 1.0]), np.array([True, False, True, True, False, False]))


def drawn(inputs: int, seed: int, digits: int = 1) -> Scored:
    rng = np.random.default_rng(seed)
    correct = rng.random(inputs) < 0.6
    return np.round(rng.normal(size=inputs) + correct, digits), correct


def risk_at(certainty: Floats, correct: NDArray[np.bool_], coverage: float) -> float:
    """Accept from the top, whole ties at a time, until the share is covered."""
    for threshold in sorted(set(certainty.tolist()), reverse=True):
        accepted = certainty >= threshold
        if accepted.sum() >= coverage * len(certainty) - 1e-9:
            break
    return float(1 - correct[accepted].mean())


def test_risk_and_coverage_with_ties_match_hand_computed_values() -> None:
    coverage, risk = metrics.risk_coverage(*TIED)
    assert coverage == pytest.approx([2 / 6, 5 / 6, 1])
    assert risk == pytest.approx([1 / 2, 2 / 5, 3 / 6])


@settings(deadline=None, max_examples=50)
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans()), min_size=1, max_size=40))
def test_the_curve_agrees_with_accepting_by_hand_and_its_area_is_aurc(pairs: list[tuple[int, bool]]) -> None:
    certainty, correct = np.array([float(score) for score, _ in pairs]), np.array([right for _, right in pairs])
    coverage, risk = metrics.risk_coverage(certainty, correct)
    assert risk == pytest.approx([risk_at(certainty, correct, share) for share in coverage])
    assert np.diff(coverage, prepend=0) @ risk == pytest.approx(metrics.aurc(certainty, correct))


def test_the_band_agrees_with_a_loop_over_resamples() -> None:
    certainty, correct = drawn(50, seed=1)
    grid = np.array([0.07, 0.1, 0.5, 0.93, 1.0])
    draws = np.random.default_rng(5).integers(50, size=(80, 50))
    risks = [[risk_at(certainty[chosen], correct[chosen], share) for share in grid] for chosen in draws]
    low, high = resampling.risk_coverage_band(certainty, correct, grid, 80, 5)
    expected = np.percentile(risks, (2.5, 97.5), axis=0)
    assert low == pytest.approx(expected[0])
    assert high == pytest.approx(expected[1])


def test_the_band_at_full_coverage_holds_the_binomial_spread() -> None:
    certainty, correct = drawn(2000, seed=2, digits=6)
    low, high = resampling.risk_coverage_band(certainty, correct, np.array([1.0]), 400, 0)
    spread = np.sqrt(correct.mean() * (1 - correct.mean()) / 2000)
    assert high[0] - low[0] == pytest.approx(2 * 1.96 * spread, rel=0.2)
    assert low[0] < 1 - correct.mean() < high[0]


def test_the_bins_agree_with_scikit_learn_and_their_gaps_with_the_calibration_error() -> None:
    rng = np.random.default_rng(3)
    logits, labels = 2 * rng.normal(size=(800, 5)), rng.integers(5, size=800)
    labels = np.where(rng.random(800) < 0.5, logits.argmax(axis=1), labels)
    bins = metrics.reliability(*metrics.of_logits(labels, logits))
    assert bins is not None
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    confidence, correct = probabilities.max(axis=1), logits.argmax(axis=1) == labels
    accuracy, mean = calibration_curve(correct, confidence, n_bins=15)
    filled = bins.inputs > 0
    assert bins.right[filled] / bins.inputs[filled] == pytest.approx(accuracy)
    assert (bins.gap + bins.right)[filled] / bins.inputs[filled] == pytest.approx(mean)
    assert bins.inputs.sum() == 800
    assert np.abs(bins.gap).sum() / 800 == metrics.ece(*metrics.of_logits(labels, logits))


def test_an_infinite_logit_leaves_no_bins() -> None:
    assert metrics.reliability(*metrics.of_logits(np.array([0]), np.array([[np.inf, np.inf]]))) is None
