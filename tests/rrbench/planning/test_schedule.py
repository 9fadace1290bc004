"""Schedules compared with values computed by hand."""

from collections.abc import Sequence

import pytest

from rrbench.planning.plan import Request, make_plan
from rrbench.planning.units import Unit, longest_first, wall_seconds
from rrbench.plugins.config import load_preset

CELL = make_plan(Request(["rr"], ["clean"]), load_preset("quick")).cells[0]


def units(*after: Sequence[int]) -> list[Unit]:
    return [Unit(CELL.training, (CELL,), after=tuple(before)) for before in after]


def test_the_longest_come_first_and_equals_keep_their_order() -> None:
    assert longest_first([1.0, 5.0, 1.0, 3.0]) == [1, 3, 0, 2]
    assert longest_first([]) == []


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (1, 15.0),
        (2, 8.0),  # 5 + 2 + 1 beside 4 + 3
        (3, 5.0),  # 5; 4 + 1; 3 + 2
        (64, 5.0),  # nothing is shorter than its longest unit
    ],
)
def test_free_workers_take_the_longest_unit_that_is_left(workers: int, expected: float) -> None:
    assert wall_seconds(units((), (), (), (), ()), [1.0, 2.0, 3.0, 4.0, 5.0], workers) == expected


@pytest.mark.parametrize(
    ("workers", "expected"),
    [
        (1, 2 + 10 + 10 + 3 + 1),
        (2, 3 + 10 + 1),  # the other attack begins at 2; this one when the 3 is done
        (3, 2 + 10 + 1),
    ],
)
def test_a_unit_waits_for_what_it_comes_after(workers: int, expected: float) -> None:
    # A training (2), two attacks on it (10 each), an ensemble of these (1), and something else (3).
    planned = units((), (0,), (0,), (0, 1, 2), ())
    assert wall_seconds(planned, [2.0, 10.0, 10.0, 1.0, 3.0], workers) == pytest.approx(expected)


def test_no_work_takes_no_time() -> None:
    assert wall_seconds([], [], 8) == 0
