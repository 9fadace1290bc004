"""Joins work folders: the cells of several runs, made on one machine or on many, come into one folder."""

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

from rrbench.errors import UseError
from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.files.disk import replacing, sha256
from rrbench.measuring.answers import without_logits
from rrbench.measuring.store import Store
from rrbench.progress import Report
from rrbench.rows.record import CellRecord
from rrbench.rows.scores import ATTACKS


@dataclasses.dataclass
class Joined:
    """What became of the cells."""

    added: int = 0
    there: int = 0  # in the target already; these stay as they are, but a measured cell replaces a failed one
    harmed: list[str] = dataclasses.field(default_factory=list)  # left out: their files are missing or changed


def join(sources: Sequence[Path], target: Path, report: Report, *, is_short: bool = False) -> Joined:
    """Copy the cells of the sources, their files, checkpoints and runs into the target; the sources stay as they are.

    `is_short`: attacks keep each input's class and its softmax instead of all logits: rows need no more.
    """
    stores = [Store(source) for source in sources]
    for store in stores:
        if store.root.resolve() == target.resolve():
            raise UseError(f"cannot join {target} to itself")
        if not store.cells():
            raise UseError(f"{store.root} is no work folder with results")
    out = Store(target)
    out.prepare()
    joined, copier = Joined(), _Copier(out, is_short)
    for store in stores:
        copier.begin(store)
        for record, _ in store.cells():
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
        elif store.harmed(record.key) or store.unsound(record):
            joined.harmed.append(f"{store.root / 'cells' / record.key}.json")
        else:
            files = dict(copier.copy(name, digest) for name, digest in record.files.items())
            out.save_cell(dataclasses.replace(record, files=files))
            joined.added += 1


class _Copier:
    """Copies the files of cells; each keeps its name, by which `verify` knows whose file it is."""

    def __init__(self, out: Store, is_short: bool) -> None:
        self.out, self.is_short = out, is_short
        self._copied: dict[str, tuple[str, str]] = {}  # of the present source: {name: (name, hash) in the target}

    def begin(self, source: Store) -> None:
        """Go on with another source."""
        self.source = source
        self._copied.clear()

    def copy(self, name: str, digest: str) -> tuple[str, str]:
        """Return the name and hash that a file has in the target."""
        if name not in self._copied:
            is_shortened = self.is_short and name.startswith(f"{ATTACKS}/")
            self._copied[name] = self._shorten(name) if is_shortened else (self._place(name, digest), digest)
        return self._copied[name]

    def _shorten(self, name: str) -> tuple[str, str]:
        """Write an attack's file without all its logits."""
        arrays = without_logits(load_arrays(self.source.root / name))
        target = self.out.root / name
        if target.exists():
            key = Path(name).stem.partition("-")[0]
            return self.out.add(ATTACKS, key, arrays, passing=("seconds",))
        return name, save_arrays(target, arrays)

    def _place(self, name: str, digest: str) -> str:
        """Copy a file and return its name: an attack that ran twice may have given two answers under one name."""
        beside = f"{name.removesuffix('.npz').partition('-')[0]}-{digest[:8]}.npz"
        chosen = name if self._is_there(name, digest) or not (self.out.root / name).exists() else beside
        if not self._is_there(chosen, digest):
            _copy_file(self.source.root / name, self.out.root / chosen)
        return chosen

    def _is_there(self, name: str, digest: str) -> bool:
        return (self.out.root / name).is_file() and sha256(self.out.root / name) == digest


def _copy_checkpoints(store: Store, out: Store) -> None:
    """Copy the chosen checkpoints, which replays need; without those that only a further training needs."""
    for path in sorted((store.root / "checkpoints").glob("*.safetensors")):
        target = out.root / "checkpoints" / path.name
        if path.suffixes == [".safetensors"] and not target.exists():
            _copy_file(path, target)


def _copy_file(source: Path, target: Path) -> None:
    with replacing(target) as unfinished:
        shutil.copyfile(source, unfinished)
