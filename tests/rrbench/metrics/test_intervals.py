"""95 % intervals against scipy."""

import statistics

import pytest
from scipy.stats import binomtest, t

from rrbench.metrics.intervals import mean_interval, share_interval, student


@pytest.mark.parametrize(("count", "total"), [(0, 10), (10, 10), (3, 7), (380, 400), (1, 10000)])
def test_the_interval_of_a_share_is_wilson_s(count: int, total: int) -> None:
    expected = binomtest(count, total).proportion_ci(0.95, method="wilson")
    assert share_interval(count, total) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("degrees", [1, 2, 5, 9, 10, 11, 20, 100])
def test_student_s_quantile(degrees: int) -> None:
    assert student(degrees) == pytest.approx(t.ppf(0.975, degrees), rel=2e-3)


def test_the_interval_of_a_mean_is_student_s() -> None:
    values = [57.0 + 0.3 * index for index in range(11)]
    half = t.ppf(0.975, 10) * statistics.stdev(values) / 11**0.5
    assert mean_interval(values) == pytest.approx((58.5 - half, 58.5 + half), abs=1e-2)
