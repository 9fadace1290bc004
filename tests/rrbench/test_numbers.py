"""Counts and durations as people say them."""

import pytest

from rrbench.numbers import counted, duration, ordinal


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (119.4, "119 s"),
        (120, "2 min"),
        (26.4 * 60, "26 min"),
        (7199, "120 min"),
        (7200, "2.0 h"),
        (9.94 * 3600, "9.9 h"),
        (30.4 * 3600, "30 h"),
        (8355.6 * 3600, "348 days"),
        (3.2 * 365.25 * 86_400, "3 years"),
        (5e5 * 365.25 * 86_400, "500,000 years"),
    ],
)
def test_a_duration_has_the_unit_that_people_would_use(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_thing_is_not_several() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 12_345)] == ["0 rows", "1 row", "2 rows", "12,345 rows"]


def test_an_ordinal_has_the_ending_that_people_write() -> None:
    expected = ["2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "112th", "1002nd"]
    assert [ordinal(number) for number in (2, 3, 4, 11, 12, 13, 21, 112, 1002)] == expected
