"""Rewrites published folders of the first layout: every cell a file that held all of an attack's outputs again.

    python results/migrate.py results/cifar10 results/cifar10-steps

It was run once, at the commit that brought it; a folder that was rewritten is left alone. Numbers and hashes of
checkpoints and data stay. Keys, which hashed source files then, are made anew of the revisions that measured each row:
all of today's, but for l2 steps from before commit 8167dc6, which are of the engine's revision 1.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from rrbench.ascent import REVISION
from rrbench.cells import attack_key, cell_key, data_key
from rrbench.progress import Silent
from rrbench.protocols import Attack
from rrbench.registry import build, restore, revision
from rrbench.revisions import write
from rrbench.rows import from_json
from rrbench.store import CellRecord, Store, load_arrays, save_arrays

L2_STEP = "8167dc6"  # the commit that follows faint l2 gradients


def revisions(value: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, object]:
    """Return the revisions that measured a cell."""
    row, cell = value["row"], value["cell"]
    kinds = ("attack", "dataset", "network", "rejector")
    found: dict[str, object] = {kind: revision(kind, cell[kind][0]) for kind in kinds}
    if cell["budget"]:
        found["engine"] = 1 if cell["budget"].startswith("l2") and is_before(L2_STEP, row["commit"]) else REVISION
    packages = build(Attack, restore("attack", cell["attack"])).packages
    if packages:
        # As the manifest says of the runs of that commit.
        known = [run["packages"] for run in runs if run["commit"] == row["commit"]]
        found["packages"] = {name: version for names in known for name, version in names.items() if name in packages}
        assert found["packages"], "no run says which version computed it"
    return found


def is_before(change: str, commit: str) -> bool:
    """Tell whether code of a commit lacks a change; a tree with a `+` was not that of the commit, but near it."""
    done = subprocess.run(["git", "merge-base", "--is-ancestor", change, commit.rstrip("+")], check=False)
    assert done.returncode in (0, 1), f"there is no commit {commit}"
    return done.returncode == 1


def describe(value: dict[str, Any], runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what `Cell.describe` would say of a cell, in its order."""
    row, cell = value["row"], value["cell"]
    names = ("dataset", "trained_on", "network", "framework", "rejector", "attack", "members")
    attack = build(Attack, restore("attack", cell["attack"]))
    return {
        "checkpoint": value["checkpoint"],
        **{name: cell[name] for name in names},
        "is_adaptive": attack.is_adaptive,
        "budget": cell["budget"],
        "seed": row["seed"],
        "limit": cell["limit"],
        "precision": row["precision"],
        "preset": row["preset"],
        "tpr_rule": cell["tpr_rule"],
        "resamples": cell["resamples"],
        "revisions": revisions(value, runs),
    }


def once(path: Path, arrays: dict[str, Any]) -> str:
    """Write arrays, or make sure that the same are there; the seconds of an attack are those of its first row."""
    if path.is_file():
        there = load_arrays(path)
        assert there.keys() == arrays.keys(), path
        for name in arrays:
            assert name == "seconds" or there[name].tobytes() == arrays[name].tobytes(), (path, name)
        arrays = there
    return save_arrays(path, arrays)


def rewrite(value: dict[str, Any], old: Path, new: Path, runs: list[dict[str, Any]]) -> None:
    """Rewrite one cell."""
    cell = describe(value, runs)
    row = from_json({**value["row"], "revisions": write(cell["revisions"])})
    scores = load_arrays(old / "scores" / f"{value['key']}.npz")
    assert np.array_equal(scores["prediction"], scores["logits"].argmax(1))
    attack = {name: scores[name] for name in ("logits", "head", "images")}
    attack |= {name: scores[name] for name in ("distances", "reached") if scores[name].size}
    attack |= {name: np.asarray(getattr(row, name)) for name in ("seconds", "gradients", "forwards")}
    data = {"ids": scores["ids"], "labels": scores["labels"], "held_out": scores["is_deployed"]}
    own = {name: scores[name] for name in ("certainty", "boldest_certainty", "threshold")}
    files = {}
    for folder, key, arrays in (
        ("data", data_key(cell), data),
        ("attacks", attack_key(cell), attack),
        ("scores", cell_key(cell), own),
    ):
        files[f"{folder}/{key}.npz"] = once(new / folder / f"{key}.npz", arrays)
    Store(new).save_cell(CellRecord(cell_key(cell), attack_key(cell), row, cell, files))


def migrate(folder: Path) -> None:
    """Rewrite a folder beside itself, then put it in its place."""
    paths = sorted((folder / "cells").glob("*.json"))
    values = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    if any("files" in value for value in values):
        sys.stdout.write(f"{folder} was rewritten before\n")
        return
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    runs = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["runs"]
    for value in values:
        rewrite(value, folder, new, runs)
    store = Store(new)
    store.prepare()
    store.rebuild_rows(Silent())
    shutil.rmtree(new / "locks")
    shutil.copyfile(folder / "manifest.json", new / "manifest.json")
    assert len(list((new / "cells").iterdir())) == len(values)
    shutil.rmtree(folder)
    new.rename(folder)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    sys.stdout.write(f"{folder}: {len(values)} cells, {size / 1e6:.1f} MB\n")


for name in sys.argv[1:]:
    migrate(Path(name))
