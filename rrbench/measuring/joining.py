"""Joins work folders: the cells of several runs, made on one machine or on many, come into one folder.

Files of older versions become as small as new ones; no number changes by it. Short folders are smaller still.
"""

import dataclasses
import hashlib
import math
import shutil
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from rrbench.errors import UseError
from rrbench.files.arrays import load_arrays, packed, tightly_packed
from rrbench.files.disk import replacing, sha256, write_bytes
from rrbench.measuring.answers import without_logits
from rrbench.measuring.evaluation import columns_of
from rrbench.measuring.store import Store
from rrbench.progress import Report
from rrbench.rows.narrow import IMAGES, has_same, is_same, narrowed, widened
from rrbench.rows.record import CellRecord, read_sound_cells
from rrbench.rows.row import COLUMNS, ResultRow
from rrbench.rows.scores import ATTACKS, CLEAN, DATA, SCORES, Scores, file_in, read_images, read_scores

Arrays = dict[str, NDArray[Any]]


@dataclasses.dataclass
class Joined:
    """What became of the cells."""

    added: int = 0
    there: int = 0  # in the target already; these stay as they are, but a measured cell replaces a failed one
    unlike: list[str] = dataclasses.field(default_factory=list)  # of the cells there: keys measured with other numbers
    harmed: list[str] = dataclasses.field(default_factory=list)  # left out: their files are missing or changed
    unreadable: list[str] = dataclasses.field(default_factory=list)  # left out: why their cell files cannot be read
    rounded: int = 0  # of the added: scores were rounded, and the row computed again
    moved: dict[str, list[float]] = dataclasses.field(default_factory=dict)  # {column: by how much in each such row}

    def note_rounded(self, before: ResultRow, after: ResultRow) -> None:
        """Note which numbers of a row were moved by rounding its scores; a number that comes or goes moves by inf."""
        self.rounded += 1
        for name in COLUMNS:
            old, new = getattr(before, name), getattr(after, name)
            if old != new:
                self.moved.setdefault(name, []).append(math.inf if old is None or new is None else abs(new - old))


def join(sources: Sequence[Path], target: Path, report: Report, *, is_short: bool = False) -> Joined:
    """Copy the cells of the sources, their files, checkpoints and runs into the target; the sources stay as they are.

    `is_short`: attacks keep each input's class and its softmax instead of all logits: rows need no more. Certainties
    and these softmax values are rounded (`Scores.rounded`), and rows are computed again from what is stored. Files are
    packed more tightly.
    """
    stores = [Store(source) for source in sources]
    for store in stores:
        if store.root.resolve() == target.resolve():
            raise UseError(f"cannot join {target} to itself")
        if not any((store.root / "cells").glob("*.json")):
            raise UseError(f"{store.root} is no work folder with results")
    out = Store(target)
    out.prepare()
    joined, copier = Joined(), _Copier(out, is_short)
    with out.lock("join", report):  # cells of several attacks share files, which two joins might write differently
        for store in stores:
            copier.begin(store)
            cells, broken = read_sound_cells(store.root)
            joined.unreadable += broken.values()
            for record, _ in cells:
                _join_cell(store, record, copier, joined, report)
            _copy_checkpoints(store, out)
            for run in store.runs():
                if run not in out.runs():
                    out.add_to_manifest(run, report)
        out.rebuild_rows(report)
    return joined


def _join_cell(store: Store, record: CellRecord, copier: "_Copier", joined: Joined, report: Report) -> None:
    out = copier.out
    with out.lock(f"attack-{record.attack}", report):  # a run may be writing the same cell
        is_failed = record.row.status != "ok"
        if out.measured(record.key) is not None or (is_failed and out.cell(record.key) is not None):
            joined.there += 1
            there = out.cell(record.key)
            if there is not None and not is_failed and _is_unlike(there.row, record.row):
                joined.unlike.append(record.key)
        elif store.harmed(record.key) or store.unsound(record):
            joined.harmed.append(f"{store.root / 'cells' / record.key}.json")
        else:
            copied = copier.copy(record)
            out.save_cell(copied)
            joined.added += 1
            if copied.row is not record.row:
                joined.note_rounded(record.row, copied.row)


def _is_unlike(one: ResultRow, other: ResultRow) -> bool:
    """Tell whether two rows of one cell were measured on other networks, or have other answers; rounding aside."""
    return (one.checkpoint_sha256, one.acc_all) != (other.checkpoint_sha256, other.acc_all)


class _Copier:
    """Copies the files of cells; each keeps its name, by which `verify` knows whose file it is."""

    def __init__(self, out: Store, is_short: bool) -> None:
        self.out, self.is_short = out, is_short
        self._shared: dict[str, tuple[str, str]] = {}  # of the present source: {name: (name, hash) in the target}
        self._images: dict[str, NDArray[Any]] = {}  # of the present source: the first images by the name of their data

    def begin(self, source: Store) -> None:
        """Go on with another source."""
        self.source = source
        self._shared.clear()
        self._images = _clean_images(source)

    def copy(self, record: CellRecord) -> CellRecord:
        """Write the files of a cell and return its record in the target; a short one may have other numbers."""
        try:
            scores = read_scores(self.source.root, record.files)
        except UseError:  # a failed cell, or one of an older version: `verify` names it there as here
            return self._unchanged(record)
        names = {folder: file_in(record.files, folder) for folder in (DATA, CLEAN, ATTACKS, SCORES)}
        kept = self._rounded(scores, names[ATTACKS]) if self.is_short else scores
        for folder in (DATA, ATTACKS):
            if names[folder] not in self._shared:
                arrays = self._data(names) if folder == DATA else self._attack(names, kept)
                self._shared[names[folder]] = self._write(names[folder], arrays)
        files = dict(
            [
                self._shared[names[DATA]],
                self._write(names[CLEAN], kept.of_clean()),
                self._shared[names[ATTACKS]],
                self._write(names[SCORES], kept.of_cell()),
            ]
        )
        row = record.row
        if kept is not scores:
            row = dataclasses.replace(row, **columns_of(kept, record.metrics, row.seed))
        return dataclasses.replace(record, files=files, row=row)

    def _rounded(self, scores: Scores, attack: str) -> Scores:
        """Round scores; confidences as in the target's file of the attack, so that a further rejector can share it."""
        kept = scores.rounded()
        there = widened(_stored(self.out.root / attack)).get("confidence")
        if there is None:
            return kept
        alike = scores.rounded(like=scores._replace(confidence=there)).confidence
        return kept if is_same(kept.confidence, alike) else kept._replace(confidence=alike)

    def _data(self, names: dict[str, str]) -> Arrays:
        """Return ids and labels with the first images, which older versions stored with every clean attack."""
        arrays = self._read(names[DATA])
        found = self._images.get(names[DATA])
        return arrays if IMAGES in arrays or found is None else {**arrays, IMAGES: found}

    def _attack(self, names: dict[str, str], kept: Scores) -> Arrays:
        """Return an attack without images that are those of the data and, if it is short, without all its logits."""
        arrays = self._read(names[ATTACKS])
        if self.is_short:
            arrays = {**without_logits(arrays), "confidence": kept.confidence}
        clean = self._data(names).get(IMAGES)
        is_unmoved = IMAGES in arrays and clean is not None and is_same(arrays[IMAGES], clean)
        return {name: array for name, array in arrays.items() if name != IMAGES or not is_unmoved}

    def _read(self, name: str) -> Arrays:
        return widened(load_arrays(self.source.root / name))

    def _unchanged(self, record: CellRecord) -> CellRecord:
        contents = {name: (self.source.root / name).read_bytes() for name in record.files}
        return dataclasses.replace(record, files=dict(self._place(*each) for each in contents.items()))

    def _write(self, name: str, arrays: Arrays) -> tuple[str, str]:
        """Write arrays; if they are as small in the source, the file is copied."""
        small = narrowed(arrays)
        folder, _, stem = name.removesuffix(".npz").partition("/")
        for there in sorted((self.out.root / folder).glob(f"{stem.partition('-')[0]}*.npz")):
            if has_same(_stored(there), small):  # perhaps packed in another way, or in other types
                return f"{folder}/{there.name}", sha256(there)
        source = self.source.root / name
        content = source.read_bytes() if _is_same(_stored(source), small) else packed(small)
        return self._place(name, min(content, tightly_packed(small), key=len) if self.is_short else content)

    def _place(self, name: str, content: bytes) -> tuple[str, str]:
        """Write a file and return its name and hash: an attack that ran twice may have two answers under one name."""
        digest = hashlib.sha256(content).hexdigest()
        beside = f"{name.removesuffix('.npz').partition('-')[0]}-{digest[:8]}.npz"
        chosen = name if self._is_there(name, digest) or not (self.out.root / name).exists() else beside
        if not self._is_there(chosen, digest):
            write_bytes(self.out.root / chosen, content)
        return chosen, digest

    def _is_there(self, name: str, digest: str) -> bool:
        return (self.out.root / name).is_file() and sha256(self.out.root / name) == digest


def _stored(path: Path) -> Arrays:
    """Return the arrays of a file; none of a missing or damaged one."""
    try:
        return load_arrays(path)
    except UseError:
        return {}


def _is_same(one: Arrays, other: Arrays) -> bool:
    """Compare arrays, their order and their types bit by bit."""
    return list(one) == list(other) and all(is_same(one[part], other[part]) for part in one)


def _clean_images(store: Store) -> dict[str, NDArray[Any]]:
    """Return the first images of each file of inputs, from a cell whose images were not moved."""
    found: dict[str, NDArray[Any]] = {}
    for record, _ in read_sound_cells(store.root)[0]:
        if record.row.attack != "clean" or store.unsound(record):
            continue
        with suppress(UseError):  # a failed cell has no images
            if (name := file_in(record.files, DATA)) not in found:
                found[name] = read_images(store.root, record.files)
    return found


def _copy_checkpoints(store: Store, out: Store) -> None:
    """Copy the chosen checkpoints, which replays need; without those that only a further training needs."""
    for path in sorted((store.root / "checkpoints").glob("*.safetensors")):
        target = out.root / "checkpoints" / path.name
        if path.suffixes == [".safetensors"] and not target.exists():
            _copy_file(path, target)


def _copy_file(source: Path, target: Path) -> None:
    with replacing(target) as unfinished:
        shutil.copyfile(source, unfinished)
