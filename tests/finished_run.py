"""The files of a finished run, and how to change one of them, for the tests of `rrbench verify`."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rrbench.progress import Silent
from rrbench.scores import ATTACKS, DATA, SCORES, file_in
from rrbench.store import read_cell, save_arrays
from rrbench.verify import Findings, verify_folder

# Which of a cell's files holds what.
HOLDERS = {
    **dict.fromkeys(("ids", "labels", "held_out"), DATA),
    **dict.fromkeys(("logits", "head", "images", "distances", "reached"), ATTACKS),
    **dict.fromkeys(("certainty", "boldest_certainty", "threshold"), SCORES),
}


def verify(folder: Path, *, rerun: bool = False) -> Findings:
    return verify_folder(folder, (), torch.device("cpu"), rerun=rerun, report=Silent())


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
        text = json.dumps(value["row"], sort_keys=True)
        value["row_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(value))
