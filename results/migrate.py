"""Fixes the deployed thresholds of published folders anew, from the clean scores that lie in them.

    python results/migrate.py results/cifar10 results/cifar10-steps results/cifar100

It was run once, at the commit that brought it; a folder that was rewritten is left alone. No attack was run: all
published attacks are blind, and no stored score changed. Before, the last 1,000 test images of CIFAR fixed a threshold
and the other 9,000 were measured; now all of them do both, by cross-fitting. Rows of the first 1,000 or 250 images keep
the last 1,000 apart, as a run does; their clean scores are those of the whole clean row in results/cifar10.
"""

import dataclasses
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.measuring.evaluation import metrics_of
from rrbench.measuring.store import Store
from rrbench.metrics.deployment import REVISION, deploy_threshold
from rrbench.planning.cells import attack_key, cell_key, clean_key
from rrbench.plugins.registry import build, restore
from rrbench.plugins.revisions import write
from rrbench.progress import Silent
from rrbench.protocols import Rejector
from rrbench.rows.record import CellRecord
from rrbench.rows.scores import ATTACKS, CLEAN, DATA, SCORES, file_in, read_scores

WHOLE = Path(__file__).resolve().parent / "cifar10"  # its clean rows are of all 10,000 images
APART = 1000  # of the last images


def clean_scores(folder: Path) -> dict[tuple[str, str], tuple[NDArray[np.float64], NDArray[np.bool_]]]:
    """Return certainty and correctness of each clean row of a folder, by checkpoint and rejector and size."""
    found = {}
    for record, _ in Store(folder).cells():
        if record.row.attack == "clean":
            data, attack, own = (load_arrays(folder / file_in(record.files, part)) for part in (DATA, ATTACKS, SCORES))
            name = record.row.checkpoint_sha256, f"{record.row.rejector} {record.row.n}"
            found[name] = own["certainty"], attack["logits"].argmax(1) == data["labels"]
    return found


def fixed_by(record: CellRecord, clean: Any, whole: Any, before: float) -> dict[str, NDArray[Any]]:
    """Return what fixes the thresholds of a cell; where inputs are kept apart, the old threshold must come of them."""
    row, rejector = record.row, build(Rejector, restore("rejector", record.cell["rejector"]))
    certainty, correct = clean[row.checkpoint_sha256, f"{row.rejector} {row.n}"]
    apart = np.empty(0), np.empty(0, dtype=np.bool_)
    if record.cell["limit"]:
        certainties, rights = whole[row.checkpoint_sha256, f"{row.rejector} 10000"]
        apart = certainties[-APART:], rights[-APART:]
        threshold = deploy_threshold(*apart)
        assert threshold is not None
        assert np.isclose(threshold, before, rtol=1e-4), (row.rejector, threshold, before)
    own = np.nan if rejector.own_threshold is None else rejector.own_threshold
    return {
        "clean_certainty": certainty,
        "clean_correct": correct,
        "apart_certainty": apart[0],
        "apart_correct": apart[1],
        "own_threshold": np.asarray(own, dtype=np.float64),
    }


def rewrite(record: CellRecord, old: Path, new: Path, clean: Any, whole: Any) -> None:
    """Rewrite one cell."""
    cell = {**record.cell, "revisions": {**record.cell["revisions"], "deployment": REVISION}}
    key, attack, scored = cell_key(cell), attack_key(cell), file_in(record.files, SCORES)
    assert attack == record.attack
    arrays = fixed_by(record, clean, whole, float(load_arrays(old / scored)["threshold"]))
    files = {name: digest for name, digest in record.files.items() if name != scored}
    for name in files:
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(old / name, new / name)
    (new / SCORES).mkdir(parents=True, exist_ok=True)
    shutil.copyfile(old / scored, new / SCORES / f"{key}.npz")
    files[f"{SCORES}/{key}.npz"] = record.files[scored]
    shared = f"{CLEAN}/{clean_key(cell)}.npz"
    files[shared] = save_arrays(new / shared, arrays)
    metrics = metrics_of(read_scores(new, files), cell["tpr_rule"], cell["resamples"], record.row.seed)
    found = vars(metrics)
    for name, value in found.items():
        before = getattr(record.row, name)
        assert name.startswith("deploy_") or value == before or np.isclose(value, before, rtol=1e-12), name
    columns = {name: value for name, value in found.items() if name.startswith("deploy_")}
    row = dataclasses.replace(record.row, **columns, revisions=write(cell["revisions"]))
    Store(new).save_cell(CellRecord(key, attack, row, cell, files))


def migrate(folder: Path) -> None:
    """Rewrite a folder beside itself, then put it in its place."""
    records = [record for record, _ in Store(folder).cells()]
    if any("deployment" in record.cell["revisions"] for record in records):
        sys.stdout.write(f"{folder} was rewritten before\n")
        return
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    clean, whole = clean_scores(folder), clean_scores(WHOLE)
    for record in records:
        rewrite(record, folder, new, clean, whole)
    store = Store(new)
    store.prepare()
    store.rebuild_rows(Silent())
    shutil.rmtree(new / "locks")
    shutil.copyfile(folder / "manifest.json", new / "manifest.json")
    assert len(list((new / "cells").iterdir())) == len(records)
    shutil.rmtree(folder)
    new.rename(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    sys.stdout.write(f"{folder}: {len(records)} cells, {size / 1e6:.1f} MB\n")


for name in sys.argv[1:]:
    migrate(Path(name))
