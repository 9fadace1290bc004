"""The cells of a work folder with their files: all data for figures."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.errors import UseError
from rrbench.measuring.store import Store
from rrbench.planning.sample import ALL_INPUTS, Sample
from rrbench.rows.currency import is_current
from rrbench.rows.notes import is_oracle
from rrbench.rows.published import check_scores
from rrbench.rows.record import CellRecord
from rrbench.rows.repeats import data_marks, marks_in_all_presets
from rrbench.rows.row import ResultRow, order
from rrbench.rows.scores import Scores, read_images, read_scores

PRESETS = ("paper", "official")  # preferred, in this order, if a cell was measured under several presets


@dataclass(frozen=True)
class Scored:
    """A measured cell; its files are read at first use."""

    record: CellRecord
    store: Store

    @property
    def row(self) -> ResultRow:
        """The cell's row."""
        return self.record.row

    @property
    def attack(self) -> tuple[str, dict[str, Any]]:
        """The attack's name and all its settings."""
        name, settings = self.record.cell["attack"]
        return name, settings

    @property
    def sample(self) -> Sample:
        """Which test inputs were measured."""
        return Sample.of_cell(self.record.cell)

    @property
    def has_all_inputs(self) -> bool:
        """Whether all test inputs were measured."""
        return self.sample == ALL_INPUTS

    @cached_property
    def scores(self) -> Scores:
        """The per-example results."""
        return read_scores(self.store.root, self.record.files)

    @property
    def whole_scores(self) -> Scores:
        """The per-example results of a cell that has the logits of all its inputs."""
        if len(self.scores.logits) < len(self.scores.ids):
            what = f"{self.row.trained_as} {self.row.rejector} {self.row.attack}"
            raise UseError(f"{self.store.root} has no logits of all inputs of {what}: measure it again elsewhere")
        return self.scores

    @property
    def images(self) -> NDArray[np.float32]:
        """The first attacked images."""
        return read_images(self.store.root, self.record.files)


def read_scored(folder: Path) -> list[Scored]:
    """Return the measured cells of a work folder in the order of rows.csv, without failed ones."""
    if folder.exists() and not (folder / "cells").is_dir():
        check_scores(folder, what="this figure")
        raise UseError(f"{folder} is no work folder of rrbench: it has no cells/")
    store = Store(folder)
    found = [Scored(record, store) for record, _ in store.cells() if record.row.status == "ok"]
    return sorted(found, key=lambda cell: order(cell.row))


def preference(row: ResultRow) -> tuple[object, ...]:
    """Sort key of rows of one cell: the paper's preset first, then more inputs, current code, and the first seed."""
    preset = PRESETS.index(row.preset) if row.preset in PRESETS else len(PRESETS)
    return preset, row.preset, -(row.n or 0), not is_current(row), row.seed, row.precision


def one_place(rows: Iterable[ResultRow]) -> tuple[str, str]:
    """Return the data set and network that all rows share; curves of different ones cannot be compared."""
    rows = list(rows)
    places = sorted({(row.dataset, row.network) for row in rows})
    if len(places) != 1:
        there = " or ".join(f"--dataset {dataset} --network {network}" for dataset, network in places)
        raise UseError(f"rows of several networks or data sets; choose {there}" if places else "no measured rows")
    if any(data_marks(rows).values()):
        raise UseError(f"rows on different test inputs, all called {places[0][0]}; measure each in a folder of its own")
    return places[0]


class Victim(NamedTuple):
    """Names a curve: two networks or rejectors may share their names, so a mark tells them apart."""

    trained_as: str
    rejector: str
    mark: str


def is_replaced(row: ResultRow, rows: Iterable[ResultRow]) -> bool:
    """Tell whether today's code measured again what an earlier one did: then only the later row is drawn."""
    same = ("trained_as", "rejector", "checkpoint_sha256", "data_sha256", "attack", "norm", "eps", "seed", "preset")
    return not is_current(row) and any(
        is_current(other) and all(getattr(row, name) == getattr(other, name) for name in same) for other in rows
    )


def victims_of(rows: Iterable[ResultRow]) -> dict[ResultRow, Victim]:
    """Return the victim of each row."""
    return {row: Victim(row.trained_as, row.rejector, mark) for row, mark in marks_in_all_presets(rows).items()}


def victim_label(row: ResultRow, mark: str = "") -> str:
    """Name a rejector and its checkpoint; an oracle is marked, as it is no defence."""
    own = ", ".join(filter(None, (row.trained_as, mark)))
    return f"{row.rejector} ({own})" + (", oracle" if is_oracle(row) else "")


def provenance_text(rows: Sequence[ResultRow], *, with_n: bool = True) -> str:
    """Say in one line what a figure was drawn from; `with_n` adds the number of test inputs."""
    values: list[tuple[str, set[object]]] = [
        ("preset", {row.preset for row in rows}),
        ("n =", {row.n for row in rows if with_n}),
        ("seed", {row.seed for row in rows}),
    ]
    parts = [f"{name} {'/'.join(sorted(map(str, found)))}" for name, found in values if found]
    return ", ".join([*one_place(rows), *parts])
