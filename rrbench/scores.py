"""Per-example results of one cell: what its three files hold together. Imports no torch.

data/<key>.npz      of the measured inputs: ids, labels, and which of them did not fix the deployed threshold
attacks/<key>.npz   of an attack, for all rejectors that it serves: logits, head, distances, the first images
scores/<key>.npz    of the cell alone: certainties and the threshold
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.arrays import load_arrays
from rrbench.errors import UseError
from rrbench.files import is_plain_name

DATA, ATTACKS, SCORES = "data", "attacks", "scores"
FOLDERS = (DATA, ATTACKS, SCORES)


class Scores(NamedTuple):
    """Per-example results of one cell."""

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    held_out: NDArray[np.bool_]  # did not fix the deployed threshold: counts for deploy_*
    logits: NDArray[np.float32]
    head: NDArray[np.float32]
    distances: NDArray[np.float64]  # (N,) of minimal distortion, else (0,)
    reached: NDArray[np.bool_]  # likewise
    certainty: NDArray[np.float64]
    boldest_certainty: NDArray[np.float64]  # best certainty reached while wrong; -inf where never wrong
    threshold: NDArray[np.float64]  # (): the deployed one, NaN without

    @property
    def prediction(self) -> NDArray[np.int64]:
        """The class with the largest logit."""
        return np.asarray(self.logits.argmax(1))

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which inputs are classified right."""
        return np.asarray(self.prediction == self.labels)

    def of_data(self) -> dict[str, NDArray[Any]]:
        """Return what all cells on these inputs share."""
        return {"ids": self.ids, "labels": self.labels, "held_out": self.held_out}

    def of_cell(self) -> dict[str, NDArray[Any]]:
        """Return what the rejector says."""
        parts = ("certainty", "boldest_certainty", "threshold")
        return {name: getattr(self, name) for name in parts}


def is_file_name(name: str) -> bool:
    """Tell whether a cell may name a file so: one of its three folders' own, and nothing elsewhere."""
    folder, _, file = name.partition("/")
    return folder in FOLDERS and file.endswith(".npz") and is_plain_name(file)


def file_in(files: Mapping[str, str], folder: str) -> str:
    """Return the one file of a folder that a cell names."""
    found = [name for name in files if is_file_name(name) and name.startswith(f"{folder}/")]
    if len(found) != 1:
        raise UseError(f"a cell names {len(found)} files in {folder}/ instead of one")
    return found[0]


def read_scores(root: Path, files: Mapping[str, str]) -> Scores:
    """Put together what the files of a cell hold."""
    data, attack, own = (load_arrays(root / file_in(files, folder)) for folder in FOLDERS)
    none = np.empty(0)
    try:
        scores = Scores(
            **{name: data[name] for name in ("ids", "labels", "held_out")},
            **{name: attack[name] for name in ("logits", "head")},
            distances=attack.get("distances", none),
            reached=attack.get("reached", none.astype(np.bool_)),
            **{name: own[name] for name in ("certainty", "boldest_certainty", "threshold")},
        )
    except KeyError as error:
        raise UseError(f"the files of a cell lack {error}") from None
    wrong = _misshapen(scores)
    if wrong:
        raise UseError(f"the files of a cell ({', '.join(files)}) hold {wrong}")
    return scores


def _misshapen(scores: Scores) -> str:
    """Say what is wrong with arrays that anybody may have written: their kinds, shapes or values; else nothing."""
    count = len(scores.ids) if scores.ids.ndim else 0
    some = (count,) if scores.distances.size or scores.reached.size else (0,)
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        **dict.fromkeys(("ids", "labels"), ("i", (count,))),
        "held_out": ("b", (count,)),
        **dict.fromkeys(("logits", "head"), ("f", (count, -1))),  # of any width
        "distances": ("f", some),
        "reached": ("b", some),
        **dict.fromkeys(("certainty", "boldest_certainty"), ("f", (count,))),
        "threshold": ("f", ()),
    }
    for name, (kind, shape) in wanted.items():
        array = getattr(scores, name)
        fits = array.ndim == len(shape)
        fits = fits and all(size in (-1, found) for size, found in zip(shape, array.shape, strict=True))
        if array.dtype.kind != kind or not fits:
            return f"{name} of type {array.dtype} and shape {array.shape} for {count} inputs"
    if count == 0:
        return "no input"
    if scores.labels.min() < 0 or scores.labels.max() >= scores.logits.shape[1]:
        return f"labels beyond the {scores.logits.shape[1]} classes"
    return "NaN certainties" if np.isnan(scores.certainty).any() else ""


def read_images(root: Path, files: Mapping[str, str]) -> NDArray[np.float32]:
    """Return the first attacked images of a cell."""
    path = root / file_in(files, ATTACKS)
    try:
        images = load_arrays(path)["images"]
    except KeyError:
        raise UseError(f"{path} holds no images") from None
    if images.ndim != 4 or images.dtype.kind != "f":
        raise UseError(f"{path} holds images of type {images.dtype} and shape {images.shape}")
    return images
