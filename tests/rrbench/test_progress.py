"""Plain lines of progress, with a simulated clock."""

import time

import pytest

from rrbench.progress import PassedOn


@pytest.mark.parametrize(
    ("advances", "expected"),
    [
        # Every ten seconds at most, and never of what is done.
        ([(4, 10), (10, 20), (15, 20), (20, 45), (30, 5)], ["30 %, about 23 s left", "95 %, about 1 s left"]),
        # A slow beginning gives no estimate and does not count.
        ([(40, 0.5), (50, 9.5), (60, 10)], ["0 %", "10 %, about 95 s left", "20 %, about 82 s left"]),
        # Nor does a pause where the first hundredth ends: 1 a second, and 12 seconds in which nothing is done.
        (
            [(2, 0.5), (3, 0.5), (15, 0.25), (16, 1), (26, 10)],
            ["1 %", "12 %, about 179 s left"],
        ),
        # One that is worth something does.
        ([(40, 10), (50, 10)], ["10 %, about 360 s left", "20 %, about 200 s left"]),
        # Nothing done gives no speed.
        ([(10, 0), (20, 50), (40, 0)], ["50 %, about 10 s left", "50 %, about 30 s left"]),
    ],
    ids=["at most every ten seconds", "hardly begun", "pause", "slow", "nothing done"],
)
def test_lines_of_a_task_tell_how_far_it_is_and_how_long_it_takes(
    advances: list[tuple[float, float]], expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    with PassedOn(lines.append).task("training", 100) as advance:
        for now, done in advances:  # noqa: B007  (the clock reads it)
            advance(done)
    assert lines == ["training", *(f"training: {line}" for line in expected)]
