"""The board's blind column: one attack for all lines of a table, so that they can be compared."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from rrbench.board.lines import find_lines
from rrbench.rows.row import ResultRow

MakeRow = Callable[..., ResultRow]


def shown(rows: Sequence[ResultRow]) -> dict[str, float | None]:
    """Return what the lines of one table show, by rejector."""
    (lines,) = find_lines(rows).values()
    return {line.rejector: line.blind.mean("acc_tpr95") if line.blind else None for line in lines}


def test_all_lines_show_the_blind_attack_that_most_of_them_met(make_row: MakeRow) -> None:
    met = [("a", "pgd100", 60.0), ("a", "gama-fw", 50.0), ("b", "pgd100", 58.0), ("c", "gama-fw", 49.0)]
    met += [("d", "pgd100", 57.0)]
    found = shown([make_row(rejector, attack, 70.0, acc_tpr95=value) for rejector, attack, value in met])
    assert found == {"a": 60.0, "b": 58.0, "c": None, "d": 57.0}, "b did not meet what leaves a 50"


def test_an_attack_that_was_measured_again_counts_once_and_as_it_is_now(make_row: MakeRow) -> None:
    now = make_row("a", "pgd100", 70.0, acc_tpr95=60.0)
    before = replace(now, acc_tpr95=51.0, revisions=json.dumps(json.loads(now.revisions) | {"attack": -1}))
    others = [("a", "gama-fw", 80.0), ("b", "gama-fw", 81.0)]
    rows = [before, now, *(make_row(rejector, attack, 70.0, acc_tpr95=value) for rejector, attack, value in others)]
    assert shown(rows) == {"a": 80.0, "b": 81.0}, "two lines met GAMA, one line met PGD-100 twice"
    rows.append(make_row("c", "pgd100", 70.0, acc_tpr95=20.0))
    assert shown(rows) == {"a": 60.0, "b": None, "c": 20.0}, "two lines each: PGD-100 leaves less"
