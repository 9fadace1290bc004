"""A row of another version of the code fills a cell until the cell is measured again, and is marked."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rrbench.measuring.materials import in_large_zoo
from rrbench.paper.matching import Rows
from rrbench.paper.planning import describe_missing, missing, plan_missing
from rrbench.paper.tabulate import Selection, tables_from
from rrbench.paper.wanted import wanted
from rrbench.rows.row import ResultRow, write_rows
from rrbench.zoo import Entry, write_index
from rrbench_attacks.pgd import Pgd

Make = Callable[..., list[ResultRow]]
SELECTION = Selection("table1")


def older(row: ResultRow, **changes: object) -> ResultRow:
    """Return a row as an earlier engine would have measured it."""
    revisions = json.dumps({**json.loads(row.revisions), "engine": 1}, sort_keys=True)
    return dataclasses.replace(row, **{"revisions": revisions, **changes})  # type: ignore[arg-type]


def attacked(rows: list[ResultRow]) -> list[ResultRow]:
    return [row for row in rows if row.eps]


def test_rows_of_today_fill_the_table_and_nothing_is_planned(rows_for: Make) -> None:
    rows = rows_for("table1")
    assert plan_missing(SELECTION, rows, (0,)).cells == ()
    tables = tables_from(SELECTION.cells(), rows, "")
    assert not any(each.measured.superseded for each in tables.judged)
    assert "superseded" not in tables.show("text")


def test_superseded_rows_are_shown_counted_and_planned_again(rows_for: Make) -> None:
    rows = [older(row) if row.eps else row for row in rows_for("table1")]
    now = tables_from(SELECTION.cells(), rows_for("table1"), "")
    tables = tables_from(SELECTION.cells(), rows, "")
    assert [each.measured.value for each in tables.judged] == [each.measured.value for each in now.judged]
    count = sum(bool(each.measured.superseded) for each in tables.judged)
    assert count == len([each for each in tables.judged if each.cell.eps])
    line = f"{count} cells are superseded (engine 1, now 2): rrbench run --paper measures them again."
    assert line in tables.show("text")
    assert tables.show("text").replace(f"\n{line}", "") == now.show("text")
    assert "superseded: engine 1, now 2" in tables.show("csv")
    planned = plan_missing(SELECTION, rows, (0,)).cells
    assert len(planned) == len(attacked(rows))
    assert all(cell.budget is not None for cell in planned)
    assert line in describe_missing(SELECTION, tables)


def test_where_a_row_of_today_is_there_the_superseded_one_is_not_shown_nor_averaged(rows_for: Make) -> None:
    current = attacked(rows_for("table1"))
    odd = [older(row, acc_all=1.0, acc_tpr95=1.0, auc=0.1, seed=seed) for row in current for seed in (0, 1)]
    for rows in (current + odd, odd + current):
        tables = tables_from(SELECTION.cells(), rows, "")
        expected = tables_from(SELECTION.cells(), current, "")
        assert [each.measured for each in tables.judged] == [each.measured for each in expected.judged]
        assert {len(lacking) for lacking in missing(SELECTION, rows, (1,)).values()} == {
            len(missing(SELECTION, current, (1,))[1])
        }


def test_superseded_rows_of_several_revisions_are_not_averaged(rows_for: Make) -> None:
    row = attacked(rows_for("table1"))[0]
    rows = [older(row), older(row, seed=1, revisions=json.dumps({**json.loads(row.revisions), "engine": 0}))]
    (each,) = [
        each
        for cells in SELECTION.cells().values()
        for cell in cells
        for each in wanted(cell, row.preset)
        if Rows(rows).find(each) and cell.metric == "acc_all"
    ]
    assert len(Rows(rows).find(each)) == 1
    assert not Rows(rows).fills(each, 0)
    assert Rows([row]).fills(each, 0)
    assert not Rows([row]).fills(each, 1)


def test_a_raised_revision_supersedes_every_row_of_its_attack(rows_for: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_for("table1")
    raised = ("attack", "pgd")
    monkeypatch.setattr("rrbench.rows.currency.installed", lambda *plugin: 2 if plugin == raised else 1)
    assert len(plan_missing(SELECTION, rows, (0,)).cells) == len(attacked(rows))


def test_the_command_says_which_rows_of_a_results_file_are_superseded(
    rows_for: Make, tmp_path: Path, command: Any
) -> None:
    write_rows(tmp_path / "rows.csv", [older(row) if row.eps else row for row in rows_for("table1")])
    assert "superseded: engine 1, now 2" in command("table", tmp_path).out


def test_a_zoo_does_not_serve_a_later_revision_of_what_trained_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    training = next(iter(plan_missing(SELECTION, [], (0,)).checkpoints()))
    entry = Entry(
        "a.safetensors", "0" * 64, training.key, "cifar10", "resnet18", training.trained_as, 0, 110, 83.0, 54.0, ""
    )
    write_index(tmp_path, [entry])
    (tmp_path / entry.file).touch()
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path))
    assert in_large_zoo(training)
    monkeypatch.setattr(Pgd, "revision", 2)  # it chooses the epoch
    assert not in_large_zoo(training)
