"""The input of a report: rows and, from a work folder, their cells and the manifest."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rrbench.errors import UseError
from rrbench.figures.scored import Scored
from rrbench.measuring.store import Store
from rrbench.rows.currency import noted
from rrbench.rows.repeats import data_marks
from rrbench.rows.row import ResultRow, check_numbers, order, read_rows
from rrbench.rows.weak_attacks import with_weak_notes


class Setting(NamedTuple):
    """What rows must share so that their numbers can be compared; seeds are averaged."""

    dataset: str
    network: str
    preset: str
    n: int | None
    precision: str
    data: str  # the hash of the test inputs, where others of this name and number were measured

    def __str__(self) -> str:
        inputs = f"{self.n} test inputs{f' (data {self.data})' if self.data else ''}"
        return f"{self.dataset}, {self.network}, preset {self.preset}, {inputs}, {self.precision}"


@dataclass(frozen=True)
class Results:
    """The rows of a CSV or of a work folder; `cells` maps a row to its scores, and is empty for a CSV."""

    source: Path
    rows: Sequence[ResultRow]
    has_cells: bool = False  # whether the source is a work folder
    cells: dict[ResultRow, Scored] = field(default_factory=dict)
    runs: Sequence[dict[str, object]] = ()  # of the manifest

    @property
    def measured(self) -> list[ResultRow]:
        """The rows that have numbers."""
        return [row for row in self.rows if row.status == "ok"]

    @property
    def failed(self) -> list[ResultRow]:
        """The rows of failed cells; they say why."""
        return [row for row in self.rows if row.status != "ok"]

    def settings(self) -> dict[Setting, list[ResultRow]]:
        """Return the measured rows of each setting."""
        groups: dict[Setting, list[ResultRow]] = {}
        for row, data in data_marks(self.measured).items():
            setting = Setting(row.dataset, row.network, row.preset, row.n, row.precision, data)
            groups.setdefault(setting, []).append(row)
        return groups


def read_results(source: Path) -> Results:
    """Read a work folder, a folder with only rows.csv, or a results CSV."""
    if not (source / "cells").is_dir():
        results = Results(source, sorted(noted(with_weak_notes(read_rows(source), is_whole=False)), key=order))
    else:
        store = Store(source)
        records = [record for record, _ in store.cells()]
        # Not rows.csv: a killed run may have finished cells after rows.csv was last written.
        rows = noted(with_weak_notes(record.row for record in records))
        cells = {row: Scored(record, store) for row, record in zip(rows, records, strict=True) if row.status == "ok"}
        results = Results(source, sorted(rows, key=order), True, cells, store.runs())
    if not results.rows:
        raise UseError(f"{source} holds no rows: nothing to report")
    try:
        for row in results.rows:
            check_numbers(row)
    except ValueError as error:
        raise UseError(f"{source}: {error}") from None
    return results
