import math

import numpy as np
import pytest
from numpy.typing import NDArray

from rrbench.metrics.theory import passes_coupled_filter, substeps, xi_error

Floats = NDArray[np.float64]


def softmax(logits: Floats) -> Floats:
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(axis=-1, keepdims=True))


def random_points(points: int, classes: int, seed: int) -> tuple[Floats, Floats, NDArray[np.bool_]]:
    """Draw confidence, the label's probability and correctness; about half of the points are right."""
    rng = np.random.default_rng(seed)
    probabilities = softmax(rng.normal(size=(points, classes)) * rng.uniform(0.1, 6, size=(points, 1)))
    predicted = probabilities.argmax(axis=1)
    labels = np.where(rng.random(points) < 0.5, predicted, rng.integers(classes, size=points))
    return probabilities.max(axis=1), probabilities[np.arange(points), labels], predicted == labels


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_above_one_half_the_true_confidence_separates_right_from_wrong(classes: int) -> None:
    confidence, true_confidence, correct = random_points(20_000, classes, seed=classes)
    sure = confidence > 0.5
    assert (sure & correct).sum() > 1000
    assert (sure & ~correct).sum() > 1000
    assert (true_confidence[sure & correct] > 0.5).all()
    assert (true_confidence[sure & ~correct] < 0.5).all()


def test_at_one_half_the_true_confidence_need_not_separate() -> None:
    right, wrong = softmax(np.zeros(2))[0], softmax(np.zeros(2))[1]
    assert right == wrong == 0.5


def test_xi_error_matches_hand_computed_values() -> None:
    assert xi_error([0.75, 0.25, 1.0, 0.0], [1.0, 1.0, 0.5, 0.0]).tolist() == [0.5, 1.5, 1.0, 0.0]


def test_xi_error_is_the_smallest_xi_that_satisfies_either_bound() -> None:
    grid = np.linspace(0, 1, 10_001)[:-1]
    for rectifier, ideal in np.random.default_rng(0).uniform(0.05, 1, size=(200, 2)):
        by_ratio = abs(math.log(rectifier / ideal)) <= np.log(2 / (2 - grid))
        by_difference = abs(rectifier - ideal) <= grid / 2
        allowed = grid[by_ratio | by_difference]
        xi = float(xi_error(rectifier, ideal))
        assert allowed[0] == pytest.approx(xi, abs=2e-4) if allowed.size else xi > 1 - 2e-4


@pytest.mark.parametrize("classes", [2, 3, 10])
@pytest.mark.parametrize("spread", [1.0, 0.1])
def test_what_passes_the_coupled_filter_is_separated_at_one_half(classes: int, spread: float) -> None:
    confidence, true_confidence, correct = random_points(50_000, classes, seed=10 + classes)
    ideal = true_confidence / confidence
    noise = np.random.default_rng(classes).uniform(-spread, spread, size=ideal.shape)
    rectifier = np.clip(ideal + noise, 0, 1)
    passes = passes_coupled_filter(confidence, xi_error(rectifier, ideal))
    rectified = confidence * rectifier
    assert (passes & correct).sum() > 500
    assert (passes & ~correct).sum() > 500
    assert (rectified[passes & correct] > 0.5).all()
    assert (rectified[passes & ~correct] < 0.5).all()


@pytest.mark.parametrize("xi", np.linspace(0, 0.99, 34).tolist())
def test_the_coupled_filter_lets_no_point_pass_beyond_its_border(xi: float) -> None:
    # The worst rectifiers: too low by xi/2 on a right point, too high by xi/2 on a wrong one with two live classes.
    border = 1 / (2 - xi)
    for confidence, is_inside in [(border + 1e-9, True), (border - 1e-9, False)]:
        too_low, too_high = 1 - xi / 2, (1 - confidence) / confidence + xi / 2
        for rectifier, ideal in [(too_low, 1.0), (too_high, (1 - confidence) / confidence)]:
            assert xi_error(rectifier, ideal) == pytest.approx(xi)
            assert passes_coupled_filter(confidence, xi_error(rectifier, ideal)) == is_inside
        assert (confidence * too_low > 0.5) == is_inside
        assert (confidence * too_high < 0.5) == is_inside


def test_the_coupled_filter_excludes_its_border_and_points_without_an_admissible_xi() -> None:
    confidence = [0.5, 0.5 + 1e-9, 1.0, 1.0, 1.0 + 1e-6, 1.0]
    xi = [0.0, 0.0, 0.999, 1.0, 1.0, 2.0]
    assert passes_coupled_filter(confidence, xi).tolist() == [False, True, True, False, False, False]


@pytest.mark.parametrize("rho", [0.1, 0.01, 0.001])
def test_an_error_of_a_tenth_takes_twenty_tasks(rho: float) -> None:
    assert substeps(rho, 0.1) == 20


def test_a_coarse_rho_takes_fewer_tasks() -> None:
    # ln 2 / ln (2 / 1.9) + 1 = 14.51, below 2 / 0.1
    assert substeps(0.5, 0.1) == 15


@pytest.mark.parametrize("xi", [0.013, 0.1, 0.3, 0.5, 0.77, 0.99])
def test_the_number_of_tasks_is_the_smallest_that_divides_the_interval_finely_enough(xi: float) -> None:
    evenly = next(n for n in range(1, 1000) if 1 / n <= xi / 2)
    for rho in (1e-6, 0.05, 0.4, 0.9):
        # One interval from 0 to rho, then intervals whose ends differ by a factor of 2 / (2 - xi).
        geometrically = next(n for n in range(2, 10_000) if rho * (2 / (2 - xi)) ** (n - 1) >= 1)
        assert substeps(rho, xi) == min(evenly, geometrically)


def test_rounding_adds_no_task() -> None:
    assert [substeps(1e-300, 2 / tasks) for tasks in range(3, 500)] == list(range(3, 500))


@pytest.mark.parametrize(("rho", "xi"), [(0.0, 0.1), (1.0, 0.1), (0.5, 0.0), (0.5, 1.0), (math.nan, 0.1)])
def test_a_rho_or_xi_outside_the_open_unit_interval_is_an_error(rho: float, xi: float) -> None:
    with pytest.raises(ValueError, match="strictly between 0 and 1"):
        substeps(rho, xi)


def test_temperature_can_turn_the_order_of_two_points_round() -> None:
    first, second = np.array([0.0, 3.0, -1000.0]), np.array([0.0, 2.0, 2.0])
    assert softmax(first)[0] == pytest.approx(1 / (1 + math.exp(3)))
    assert softmax(second)[0] == pytest.approx(1 / (1 + 2 * math.exp(2)))
    assert softmax(first)[0] < softmax(second)[0]
    assert softmax(first / 2)[0] > softmax(second / 2)[0]
