"""Hand-made per-example scores and their four files in a work folder, for tests of the readers."""

from pathlib import Path
from typing import Any

import numpy as np

from rrbench.files.arrays import save_arrays
from rrbench.metrics.measures import classes_of
from rrbench.rows.scores import ATTACKS, CLEAN, DATA, OF_CLASS, SCORES, Scores

NOTHING = np.empty(0)


def scores_of(prediction: Any, labels: Any, certainty: Any, threshold: float, **more: Any) -> Scores:
    """Make scores whose logits say `prediction`; the clean inputs are all right and certain."""
    logits = np.eye(int(max(prediction.max(), labels.max())) + 1, dtype=np.float32)[prediction]
    given: dict[str, Any] = {
        "ids": np.arange(len(labels)),
        "clean_certainty": np.ones(len(labels)),
        "clean_correct": np.ones(len(labels), dtype=np.bool_),
        "apart_certainty": NOTHING,
        "apart_correct": NOTHING.astype(np.bool_),
        "head": logits[:, :0],
        "distances": NOTHING,
        "reached": NOTHING.astype(np.bool_),
        "boldest_certainty": certainty,
    }
    fixed = {"labels": labels, "logits": logits, "certainty": certainty, "own_threshold": np.asarray(threshold)}
    found = given | fixed | more
    found |= zip(OF_CLASS, classes_of(found["logits"]), strict=True)
    return Scores(**found)


def save_scores(folder: Path, key: str, scores: Scores) -> dict[str, str]:
    """Write the files of a cell, and return what the cell file says of them."""
    attack = {name: getattr(scores, name) for name in ("logits", "head")}
    attack |= {name: part for name in ("distances", "reached") if (part := getattr(scores, name)).size}
    parts = {DATA: scores.of_data(), CLEAN: scores.of_clean(), ATTACKS: attack, SCORES: scores.of_cell()}
    return {f"{name}/{key}.npz": save_arrays(folder / name / f"{key}.npz", arrays) for name, arrays in parts.items()}
