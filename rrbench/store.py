"""The work folder: every finished thing in a file of its own, keyed by what made it, written atomically.

rows.csv        all rows, rebuilt from cells/ in a fixed order
manifest.json   the runs that worked here: command, versions, machine
cells/          one JSON a finished cell: its row, the hash of its score file
scores/         per-example scores of a cell (.npz, no pickles)
moved/          what the network said of an attack's images, shared by the rejectors of a checkpoint
training/       what a checkpoint says of its clean training images, where `--keep features` asks for it
fitted/         what a rejector learnt from clean training outputs, and its calibration
checkpoints/    networks (.safetensors)
locks/          so that two runs never do the same work at once
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from filelock import FileLock, Timeout

from rrbench.arrays import load_arrays as load_arrays
from rrbench.arrays import save_arrays as save_arrays
from rrbench.doubts import with_doubts
from rrbench.errors import UseError
from rrbench.files import Files, read_json, write_bytes, write_json
from rrbench.progress import Report
from rrbench.rows import ResultRow, from_json, write_rows


@dataclasses.dataclass(frozen=True)
class CellRecord:
    """A finished cell: its row, and what `verify` needs to find again."""

    key: str
    row: ResultRow
    checkpoint: str  # the checkpoint's key
    attack: str  # the attack's key
    scores_sha256: str  # empty for a failed cell
    cell: dict[str, Any]  # the choices with all their settings, as `Cell.describe` gives them

    def row_sha256(self) -> str:
        """Hash the row, so that a changed field is noticed even where it cannot be recomputed."""
        return hashlib.sha256(json.dumps(dataclasses.asdict(self.row), sort_keys=True).encode()).hexdigest()


class Store:
    """One work folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def prepare(self) -> None:
        """Make the folder; one that cannot be written to is refused before any work is done."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / "locks").mkdir(exist_ok=True)
        except OSError as error:
            raise UseError(f"cannot use {self.root} as a work folder: {error.strerror or error}") from None
        write_bytes(self.root / "locks" / "writable", b"")

    def checkpoint_files(self, key: str) -> Files:
        """Return where a training writes."""
        folder = self.root / "checkpoints"
        return Files(
            folder / f"{key}.safetensors", folder / f"{key}.last.safetensors", folder / f"{key}.resume.safetensors"
        )

    def scores_path(self, key: str) -> Path:
        """Return where a cell's scores lie."""
        return self.root / "scores" / f"{key}.npz"

    def moved_path(self, key: str) -> Path:
        """Return where an attack's outputs lie."""
        return self.root / "moved" / f"{key}.npz"

    def training_path(self, key: str) -> Path:
        """Return where a checkpoint's outputs on its training images lie."""
        return self.root / "training" / f"{key}.npz"

    def fitted_path(self, key: str) -> Path:
        """Return where a fitted rejector lies."""
        return self.root / "fitted" / f"{key}.safetensors"

    @contextmanager
    def lock(self, name: str, report: Report) -> Iterator[None]:
        """Hold a named lock; the system frees it when its holder dies."""
        lock = FileLock(self.root / "locks" / f"{name}.lock")
        try:
            lock.acquire(timeout=1)
        except Timeout:
            report.line(f"waiting for another run on {self.root} ({name})")
            lock.acquire()
        except OSError as error:
            raise UseError(f"cannot lock {self.root}: {error.strerror or error}") from None
        try:
            yield
        finally:
            lock.release()

    def save_cell(self, record: CellRecord) -> None:
        """Write one finished cell."""
        value = {**dataclasses.asdict(record), "row_sha256": record.row_sha256()}
        write_json(self.root / "cells" / f"{record.key}.json", value)

    def cell(self, key: str) -> CellRecord | None:
        """Return a finished cell, if it is there."""
        path = self.root / "cells" / f"{key}.json"
        return read_cell(path)[0] if path.is_file() else None

    def measured(self, key: str) -> CellRecord | None:
        """Return a finished cell that did not fail and whose scores are there."""
        record = self.cell(key)
        return record if record and record.row.status == "ok" and self.scores_path(key).is_file() else None

    def cells(self) -> list[tuple[CellRecord, str]]:
        """Return every finished cell with the row hash written beside it."""
        return [read_cell(path) for path in sorted((self.root / "cells").glob("*.json"))]

    def rebuild_rows(self, report: Report) -> dict[str, ResultRow]:
        """Rewrite rows.csv from the cells, under a lock so that no run writes an older list last; return it by key."""
        with self.lock("rows", report):
            records = [record for record, _ in self.cells()]
            rows = with_doubts(record.row for record in records)
            write_rows(self.root / "rows.csv", rows)
        return dict(zip((record.key for record in records), rows, strict=True))

    def add_to_manifest(self, run: Mapping[str, object], report: Report) -> None:
        """Append a run to manifest.json."""
        path = self.root / "manifest.json"
        with self.lock("manifest", report):
            content = read_json(path) if path.is_file() else {"runs": []}
            runs = content.get("runs") if isinstance(content, dict) else None
            if not isinstance(runs, list):
                raise UseError(f"{path} is no manifest of rrbench; move it away")
            write_json(path, {"runs": [*runs, run]})


def read_cell(path: Path) -> tuple[CellRecord, str]:
    """Read one cell file."""
    try:
        value = cast(dict[str, Any], read_json(path))
    except UseError as error:
        raise UseError(f"{error}; delete it to measure the cell again") from None
    try:
        row_sha256 = value.pop("row_sha256")
        return CellRecord(**{**value, "row": from_json(value["row"])}), row_sha256
    except (KeyError, TypeError, AttributeError, ValueError, ZeroDivisionError):
        raise UseError(f"{path} is no cell file of this version; delete it to measure the cell again") from None
