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


def file_in(files: Mapping[str, str], folder: str) -> str:
    """Return the one file of a folder that a cell names."""
    found = [name for name in files if name.startswith(f"{folder}/")]
    if len(found) != 1 or not found[0].endswith(".npz") or "/" in found[0].removeprefix(f"{folder}/"):
        raise UseError(f"a cell names {len(found)} files in {folder}/ instead of one")
    return found[0]


def read_scores(root: Path, files: Mapping[str, str]) -> Scores:
    """Put together what the files of a cell hold."""
    data, attack, own = (load_arrays(root / file_in(files, folder)) for folder in FOLDERS)
    none = np.empty(0)
    try:
        return Scores(
            **{name: data[name] for name in ("ids", "labels", "held_out")},
            **{name: attack[name] for name in ("logits", "head")},
            distances=attack.get("distances", none),
            reached=attack.get("reached", none.astype(np.bool_)),
            **{name: own[name] for name in ("certainty", "boldest_certainty", "threshold")},
        )
    except KeyError as error:
        raise UseError(f"the files of a cell lack {error}") from None


def read_images(root: Path, files: Mapping[str, str]) -> NDArray[np.float32]:
    """Return the first attacked images of a cell."""
    path = root / file_in(files, ATTACKS)
    try:
        return load_arrays(path)["images"]
    except KeyError:
        raise UseError(f"{path} holds no images") from None
