"""The files of a finished run, and how to change one of them, for the tests of `rrbench verify`."""

import hashlib
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.measuring.evaluation import metrics_of
from rrbench.measuring.store import Store
from rrbench.planning.cells import attack_key, cell_key, clean_key, data_key
from rrbench.progress import Silent
from rrbench.rows.record import read_cell
from rrbench.rows.scores import ATTACKS, CLEAN, DATA, OF_CLASS, OF_CLEAN, SCORES, file_in, read_images, read_scores
from rrbench.verifying.findings import Findings
from rrbench.verifying.verify import Verifier, verify_folder

# Which of a cell's files holds what.
HOLDERS = {
    **dict.fromkeys(("ids", "labels"), DATA),
    **dict.fromkeys(OF_CLEAN, CLEAN),
    **dict.fromkeys(("logits", "head", "images", "distances", "reached"), ATTACKS),
    **dict.fromkeys(("certainty", "boldest_certainty"), SCORES),
}


def verify(folder: Path, *, rerun: bool = False) -> Findings:
    return verify_folder(folder, (), torch.device("cpu"), rerun=rerun, report=Silent())


def verify_cell(path: Path, *, rerun: bool = False) -> Findings:
    """Verify one cell of a folder: a rerun of all takes its time."""
    verifier = Verifier(Store(path.parent.parent), (), torch.device("cpu"))
    verifier.check(*read_cell(path), rerun=rerun)
    return verifier.findings


def one_cell(folder: Path, rejector: str = "confidence", attack: str = "pgd3") -> Path:
    return next(
        path
        for path in sorted((folder / "cells").iterdir())
        if (row := json.loads(path.read_text())["row"])["rejector"] == rejector and row["attack"] == attack
    )


def one_file(folder: Path, holder: str = SCORES, rejector: str = "confidence", attack: str = "pgd3") -> Path:
    """Return a cell's own scores, or the attack or the data that it shares with others."""
    return folder / file_in(read_cell(one_cell(folder, rejector, attack))[0].files, holder)


def own_checkpoint(folder: Path) -> Path:
    return folder / "checkpoints" / f"{read_cell(one_cell(folder))[0].checkpoint}.safetensors"


def rewrite_arrays(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    change(arrays)
    return save_arrays(path, arrays)


def forge_arrays(folder: Path, path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a file, and write its new hash into every cell that names it."""
    digest, name = rewrite_arrays(path, change), str(path.relative_to(folder))
    for cell in (folder / "cells").iterdir():
        value = json.loads(cell.read_text())
        if name in value["files"]:
            value["files"][name] = digest
            cell.write_text(json.dumps(value))


def rewrite_cell(path: Path, *, forge: bool = False, **changes: Any) -> None:
    """Change the row in a cell file; `forge` also writes the hash that fits."""
    value = json.loads(path.read_text())
    value["row"] |= changes
    if forge:
        value["row_sha256"] = row_hash(value["row"])
    path.write_text(json.dumps(value))


def row_hash(row: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(row, sort_keys=True).encode()).hexdigest()


def forge_scores(path: Path, holder: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change one of a cell's files and make every number and hash of the cell fit it."""
    folder = path.parent.parent
    forge_arrays(folder, folder / file_in(read_cell(path)[0].files, holder), change)
    record = read_cell(path)[0]
    scores = read_scores(folder, record.files)
    fitting = metrics_of(scores, record.metrics, record.row.seed)
    rewrite_cell(path, forge=True, **vars(fitting))


def in_old_layout(folder: Path) -> None:
    """Store a folder's arrays as older versions did: all of them, and in the types in which they were computed."""
    for path in (folder / "cells").iterdir():
        record = read_cell(path)[0]
        scores, images = read_scores(folder, record.files), read_images(folder, record.files)
        attack = load_arrays(folder / file_in(record.files, ATTACKS))
        wide = {name: getattr(scores, name) for name in OF_CLASS if name in attack}
        for holder, arrays in {
            ATTACKS: {**attack, **wide, "images": images},
            SCORES: {"certainty": scores.certainty, "boldest_certainty": scores.boldest_certainty},
            CLEAN: scores.of_clean(),
        }.items():
            forge_arrays(folder, folder / file_in(record.files, holder), partial(_become, arrays))
    for path in (folder / DATA).iterdir():
        found = load_arrays(path)
        arrays = {"ids": found["ids"], "labels": found["labels"].astype(np.int64)}
        forge_arrays(folder, path, partial(_become, arrays))


def _become(wanted: dict[str, Any], arrays: dict[str, Any]) -> None:
    arrays.clear()
    arrays.update(wanted)


def rekey(path: Path, *, row: dict[str, Any] | None = None, **cell: Any) -> Path:
    """Change what a cell says was measured; rename and hash everything to fit, as a patient forger does."""
    folder, value = path.parent.parent, json.loads(path.read_text())
    value["cell"] |= cell
    value["row"] |= row or {}
    makers = {ATTACKS: attack_key, CLEAN: clean_key, DATA: data_key, SCORES: cell_key}
    keys = {holder: make(value["cell"]) for holder, make in makers.items()}
    files = {}
    for old in value["files"]:
        holder = old.partition("/")[0]
        arrays = dict(load_arrays(folder / old)) | ({"key": np.asarray(keys[ATTACKS])} if holder == ATTACKS else {})
        files[f"{holder}/{keys[holder]}.npz"] = save_arrays(folder / holder / f"{keys[holder]}.npz", arrays)
    value |= {"key": keys[SCORES], "attack": keys[ATTACKS], "files": files, "row_sha256": row_hash(value["row"])}
    path.unlink()
    new = path.with_stem(keys[SCORES])
    new.write_text(json.dumps(value))
    return new
