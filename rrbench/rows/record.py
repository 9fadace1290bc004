"""A finished cell on disk: its row, what its keys were made of, and its files. Imports no torch."""

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from rrbench.errors import UseError
from rrbench.files.decoding import from_json
from rrbench.files.disk import read_json
from rrbench.plugins.config import MetricSettings
from rrbench.rows.row import COLUMNS, ResultRow, row_of_json
from rrbench.rows.scores import is_file_name


@dataclasses.dataclass(frozen=True)
class CellRecord:
    """A finished cell: its row, and what `verify` checks it with."""

    key: str
    attack: str  # the attack's key
    row: ResultRow
    cell: dict[str, Any]  # what the keys were made of, as `Cell.describe` returns it
    files: dict[str, str]  # {name below the work folder: SHA-256}; empty for a failed cell

    @property
    def checkpoint(self) -> str:
        """The checkpoint's key."""
        return str(self.cell["checkpoint"])

    @cached_property
    def metrics(self) -> MetricSettings:
        """How the row was computed from its scores."""
        return MetricSettings(self.cell["tpr_rule"], self.cell["resamples"])

    def row_sha256(self) -> str:
        """Hash the row: a changed field is noticed even if it cannot be recomputed."""
        return _row_sha256(dataclasses.asdict(self.row))


def _row_sha256(row: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def read_cell(path: Path) -> tuple[CellRecord, str]:
    """Read one cell file: the record, and the row hash that the file states."""
    try:
        value = cast(dict[str, Any], read_json(path))
    except UseError as error:
        raise UseError(f"{error}; delete it to measure the cell again") from None
    try:
        row_sha256, row = value.pop("row_sha256"), value["row"]
        record = from_json(CellRecord, {**value, "row": row_of_json(row)}, "a cell")
        if row.keys() < set(COLUMNS) and row_sha256 == _row_sha256(row):
            row_sha256 = record.row_sha256()  # an older version wrote the row, and it is unchanged
        texts = (row_sha256, record.cell["checkpoint"], *record.files.values())
        _ = record.metrics  # refuses what no version writes
        if not all(isinstance(text, str) for text in texts) or not all(map(is_file_name, record.files)):
            raise TypeError
        return record, row_sha256
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError, UseError):
        raise UseError(f"{path} is no cell file of this version; delete it to measure the cell again") from None


def read_sound_cells(folder: Path) -> tuple[list[tuple[CellRecord, str]], dict[Path, str]]:
    """Read the finished cells as `read_cells` does; return also {file that cannot be read: why}."""
    found, broken = list[tuple[CellRecord, str]](), dict[Path, str]()
    for path in sorted((folder / "cells").glob("*.json")):
        try:
            found.append(read_cell(path))
        except UseError as error:
            broken[path] = str(error)
    return found, broken


def read_cells(folder: Path) -> list[tuple[CellRecord, str]]:
    """Read every finished cell of a work folder, each with the row hash that its file states."""
    return [read_cell(path) for path in sorted((folder / "cells").glob("*.json"))]
