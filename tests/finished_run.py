"""The files of a finished run, and how to change one of them, for the tests of `rrbench verify`."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rrbench.progress import Silent
from rrbench.store import read_cell, save_arrays
from rrbench.verify import Findings, verify_folder


def verify(folder: Path, *, rerun: bool = False) -> Findings:
    return verify_folder(folder, (), torch.device("cpu"), rerun=rerun, report=Silent())


def one_cell(folder: Path, rejector: str = "confidence", attack: str = "pgd3") -> Path:
    return next(
        path
        for path in sorted((folder / "cells").iterdir())
        if (row := json.loads(path.read_text())["row"])["rejector"] == rejector and row["attack"] == attack
    )


def one_score_file(folder: Path, rejector: str = "confidence", attack: str = "pgd3") -> Path:
    return folder / "scores" / f"{one_cell(folder, rejector, attack).stem}.npz"


def own_checkpoint(folder: Path) -> Path:
    return folder / "checkpoints" / f"{read_cell(one_cell(folder))[0].checkpoint}.safetensors"


def rewrite_scores(path: Path, change: Callable[[dict[str, Any]], object]) -> str:
    with np.load(path) as file:
        arrays = {name: file[name].copy() for name in file.files}
    change(arrays)
    return save_arrays(path, arrays)


def rewrite_cell(path: Path, *, forge: bool = False, **changes: Any) -> None:
    """Change the row in a cell file; `forge` also writes the hash that fits."""
    value = json.loads(path.read_text())
    value["row"] |= {name: new for name, new in changes.items() if name in value["row"]}
    value |= {name: new for name, new in changes.items() if name in value}
    if forge:
        text = json.dumps(value["row"], sort_keys=True)
        value["row_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    path.write_text(json.dumps(value))
