"""The work folder: each finished result has its own file, named by a hash of its inputs and written atomically.

rows.csv        all rows, rebuilt from cells/ in a fixed order
manifest.json   the runs that worked here: command, versions, machine
cells/          one JSON per finished cell: its row, everything that its key hashes, the hashes of its four files:
  data/         ids and labels of the measured inputs and the first images, for all cells on these inputs (.npz, no
                pickles)
  clean/        a rejector's certainties on clean inputs, for all attacks on it
  attacks/      the network's outputs on an attack's images, for all rejectors of a checkpoint
  scores/       the certainties of the cell's rejector on these images
training/       a checkpoint's features of its clean training images, if `--keep features` asks for them
fitted/         a rejector's fit to clean training outputs, and its calibration
checkpoints/    networks (.safetensors)
locks/          keep two runs from doing the same work at once
"""

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from numpy.typing import NDArray

from rrbench.errors import FileError, StoppedError, UseError, first_line
from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.files.disk import Files, parse_json, read_json, sha256, sweep, write_bytes, write_json
from rrbench.planning.deadline import Deadline
from rrbench.progress import Report
from rrbench.rows.narrow import has_same, narrowed
from rrbench.rows.record import CellRecord, read_cell, read_cells
from rrbench.rows.row import ResultRow, write_rows
from rrbench.rows.scores import ATTACKS, SCORES
from rrbench.rows.weak_attacks import with_weak_notes


class Store:
    """One work folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._hashes: dict[tuple[str, int, int], str] = {}

    def prepare(self) -> None:
        """Make the folder and sweep it; refuse one that cannot be written to, or a broken manifest, before any work."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            (self.root / "locks").mkdir(exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot use {self.root} as a work folder: {error.strerror or error}") from None
        write_bytes(self.root / "locks" / "writable", b"")
        for folder in (self.root, *(place for place in self.root.iterdir() if place.is_dir())):
            sweep(folder)
        self.runs()

    def checkpoint_files(self, key: str) -> Files:
        """Return the paths that a training writes."""
        folder = self.root / "checkpoints"
        return Files(
            folder / f"{key}.safetensors", folder / f"{key}.last.safetensors", folder / f"{key}.resume.safetensors"
        )

    def scores_path(self, key: str) -> Path:
        """Return where a cell's scores lie."""
        return self.root / SCORES / f"{key}.npz"

    def attack_path(self, key: str) -> Path:
        """Return where an attack's outputs lie."""
        return self.root / ATTACKS / f"{key}.npz"

    def whole_path(self, key: str) -> Path:
        """Return where an attack's features and images lie while they are needed."""
        return self.root / ATTACKS / f"{key}.whole.npz"

    def training_path(self, key: str) -> Path:
        """Return where a checkpoint's outputs on its training images lie."""
        return self.root / "training" / f"{key}.npz"

    def fitted_path(self, key: str) -> Path:
        """Return where a fitted rejector lies."""
        return self.root / "fitted" / f"{key}.safetensors"

    @contextmanager
    def lock(self, name: str, report: Report, deadline: Deadline | None = None) -> Iterator[None]:
        """Hold a named lock; the system frees it when its holder dies. Stop waiting for it when the time is over."""
        lock, is_told = FileLock(self.root / "locks" / f"{name}.lock"), False
        try:
            while not lock.is_locked:
                try:
                    lock.acquire(timeout=1)
                except Timeout:
                    if deadline is not None and deadline.is_over():
                        raise StoppedError(f"what another run on {self.root} is doing ({name})") from None
                    if not is_told:
                        report.line(f"waiting for another run on {self.root} ({name})")
                    is_told = True
        except OSError as error:
            raise FileError(f"cannot lock {self.root}: {error.strerror or error}") from None
        try:
            yield
        finally:
            lock.release()

    def save_cell(self, record: CellRecord) -> None:
        """Write one finished cell."""
        value = {**dataclasses.asdict(record), "row_sha256": record.row_sha256()}
        write_json(self.root / "cells" / f"{record.key}.json", value)

    def cell(self, key: str) -> CellRecord | None:
        """Return a finished cell; None if there is none of this key."""
        path = self.root / "cells" / f"{key}.json"
        return read_cell(path)[0] if path.is_file() else None

    def measured(self, key: str) -> CellRecord | None:
        """Return a finished cell if it did not fail and all its files are as they were written; else None."""
        record = self.cell(key)
        return record if record and record.row.status == "ok" and not self.harmed(key) else None

    def harmed(self, key: str) -> list[str]:
        """Name the missing or changed files of a cell, its own JSON file included."""
        own = self.root / "cells" / f"{key}.json"
        if not own.is_file():
            return []
        record, row_sha256 = read_cell(own)
        is_whole = record.key == key and record.row_sha256() == row_sha256
        return ([] if is_whole else [f"cells/{own.name}"]) + self.unsound(record)

    def unsound(self, record: CellRecord) -> list[str]:
        """Name the missing or changed files among those that a cell names."""
        return [name for name, digest in record.files.items() if self._hash(name) != digest]

    def is_sound(self, name: str) -> bool:
        """Tell whether a file has a hash that a cell states; if no cell names it, whether it can be read."""
        digests = self._named(name)
        return self._hash(name) in digests if digests else self._read(name) is not None

    def _hash(self, name: str) -> str:
        """Hash a file, once for all cells that name it; empty if the file is missing."""
        path = self.root / name
        try:
            state = path.stat()
        except OSError:
            return ""
        key = name, state.st_mtime_ns, state.st_size
        if key not in self._hashes:
            self._hashes[key] = sha256(path)
        return self._hashes[key]

    def add(
        self, folder: str, key: str, arrays: Mapping[str, NDArray[Any]], *, passing: Sequence[str] = ()
    ) -> tuple[str, str]:
        """Write a file that several cells will name, and return its name and hash.

        A file that is there already stays if it differs only in the arrays `passing`. A file that cells name is never
        overwritten: if an attack is run again and gives other answers, these get a file beside it.
        """
        name, arrays = f"{folder}/{key}.npz", narrowed(arrays)
        there, named = self._read(name), self._named(name)
        is_sound = there is not None and (not named or self._hash(name) in named)
        if there is not None and is_sound and has_same(there, arrays, passing):
            return name, sha256(self.root / name)
        if is_sound and named:
            content = hashlib.sha256(b"".join(arrays[part].tobytes() for part in sorted(arrays)))
            name = f"{folder}/{key}-{content.hexdigest()[:8]}.npz"
        return name, save_arrays(self.root / name, arrays)

    def _named(self, name: str) -> set[str]:
        """Return the hashes that cells state for a file."""
        return {record.files[name] for record, _ in self.cells() if name in record.files}

    def _read(self, name: str) -> Mapping[str, NDArray[Any]] | None:
        """Read arrays; None if the file is missing or damaged."""
        try:
            return load_arrays(self.root / name)
        except UseError:
            return None

    def set_damaged_aside(self, report: Report) -> None:
        """Rename cells and a manifest that are no JSON any more, so that the cells are measured again."""
        for path in (*sorted((self.root / "cells").glob("*.json")), self.root / "manifest.json"):
            try:
                parse_json(path.read_text(encoding="utf-8"))
            except OSError:  # not there, or not to be read: whoever needs it says so
                continue
            except ValueError as error:
                aside = path.with_name(f"{path.name}.damaged")
                with suppress(FileNotFoundError):  # another run on this folder may have been quicker
                    path.replace(aside)
                    what = "past runs are in it alone" if path.name == "manifest.json" else "the cell is measured again"
                    report.line(f"{path} is damaged ({first_line(error)}): moved to {aside.name}; {what}")

    def cells(self) -> list[tuple[CellRecord, str]]:
        """Return every finished cell with the hash of its row from its file."""
        return read_cells(self.root)

    def rebuild_rows(self, report: Report) -> dict[str, ResultRow]:
        """Rewrite rows.csv from the cells, locked so that no run writes an older list last; return the rows by key."""
        with self.lock("rows", report):
            records = [record for record, _ in self.cells()]
            rows = with_weak_notes(record.row for record in records)
            write_rows(self.root / "rows.csv", rows)
        return dict(zip((record.key for record in records), rows, strict=True))

    def runs(self) -> list[dict[str, Any]]:
        """Return the runs in manifest.json; none if there is no such file."""
        path = self.root / "manifest.json"
        if not path.is_file():
            return []
        content = read_json(path)
        runs = content.get("runs") if isinstance(content, dict) else None
        if not isinstance(runs, list) or not all(isinstance(run, dict) for run in runs):
            raise UseError(f"{path} is no manifest of rrbench; move it away")
        return runs

    def add_to_manifest(self, run: Mapping[str, object], report: Report) -> None:
        """Append a run to manifest.json."""
        with self.lock("manifest", report):
            write_json(self.root / "manifest.json", {"runs": [*self.runs(), run]})
