"""Per-example results of one cell, read from its four files. Imports no torch.

data/<key>.npz      the measured inputs: ids and labels, and the first images
clean/<key>.npz     a victim, for all attacks on it: the rejector's scores on clean inputs, which fix the thresholds
attacks/<key>.npz   an attack, for all rejectors that share it: logits, head, distances, the first images;
                    for a single rejector: classes and their softmax, and logits of the first images only
scores/<key>.npz    the cell alone: certainties

What follows from other arrays is not stored: images that were not moved, certainties that are those of clean inputs,
boldest certainties that are those of the wrong answers. Arrays have the smallest type that holds them (`narrow.py`).
Files of older versions, which hold all this, are read as well.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.errors import UseError
from rrbench.files.arrays import load_arrays
from rrbench.files.disk import is_plain_name
from rrbench.metrics.deployment import CleanScores, fold_of
from rrbench.metrics.measures import classes_of
from rrbench.rows.narrow import CERTAINTIES, IMAGES, is_same, widened

DATA, CLEAN, ATTACKS, SCORES = "data", "clean", "attacks", "scores"
FOLDERS = (DATA, CLEAN, ATTACKS, SCORES)
OF_CLASS = ("prediction", "confidence")
MOVED = 2**-11  # more than half precision moves a softmax value
TIED = 1e-3  # share of distinct values that single precision may make equal
OF_CLEAN = ("clean_certainty", "clean_correct", "apart_certainty", "apart_correct", "own_threshold")


class Scores(NamedTuple):
    """Per-example results of one cell."""

    ids: NDArray[np.int64]
    labels: NDArray[np.int64]
    prediction: NDArray[np.int64]
    confidence: NDArray[np.float64]  # softmax of that class; NaN if an infinite logit leaves it undefined
    logits: NDArray[np.float32]  # of the first inputs, or of all if other rejectors may need them; head likewise
    head: NDArray[np.float32]
    distances: NDArray[np.float64]  # (N,) if the attack looks for minimal distortion, else (0,)
    reached: NDArray[np.bool_]  # as distances
    certainty: NDArray[np.float64]
    boldest_certainty: NDArray[np.float64]  # highest certainty seen while wrong; -inf if never wrong
    clean_certainty: NDArray[np.float64]  # of the same inputs before the attack
    clean_correct: NDArray[np.bool_]
    apart_certainty: NDArray[np.float64]  # (M,) of other clean inputs that only fix the threshold; often none
    apart_correct: NDArray[np.bool_]
    own_threshold: NDArray[np.float64]  # (): NaN unless the rejector brings its own

    @property
    def correct(self) -> NDArray[np.bool_]:
        """Which inputs are classified right."""
        return np.asarray(self.prediction == self.labels)

    @property
    def clean(self) -> CleanScores:
        """The clean scores that fix the deployed thresholds."""
        own = float(self.own_threshold)
        return CleanScores(
            certainty=self.clean_certainty,
            correct=self.clean_correct,
            folds=fold_of(self.ids),
            apart_certainty=self.apart_certainty,
            apart_correct=self.apart_correct,
            own_threshold=None if np.isnan(own) else own,
        )

    def of_data(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that all cells on these inputs share."""
        return {"ids": self.ids, "labels": self.labels}

    def of_clean(self) -> dict[str, NDArray[Any]]:
        """Return the arrays that all attacks on a victim share."""
        return {name: getattr(self, name) for name in OF_CLEAN}

    def of_cell(self) -> dict[str, NDArray[Any]]:
        """Return the arrays of this cell alone: the rejector's answers, as far as they do not follow from others."""
        known = {"certainty": self.clean_certainty, "boldest_certainty": where_wrong(self.certainty, self.correct)}
        return {name: part for name, follows in known.items() if not is_same(part := getattr(self, name), follows)}

    def rounded(self, like: "Scores | None" = None) -> "Scores":
        """Round certainties to single precision and confidences to half; with `like`, only as far as these are there.

        Rounding keeps the order, so it can only tie two certainties. It is not done where it would tie many. A
        threshold comes from certainties: it is rounded together with those that it judges, or not at all. Nothing is
        rounded across a threshold that the rejector brings. Nothing ranks or judges confidences: of a row's numbers
        only ECE comes from them.
        """
        certainties = self._in(like, CERTAINTIES, (np.float32,))
        if any(
            _is_tied(exact := getattr(self, name), small) or _crosses(self.own_threshold, exact, small)
            for name, small in certainties.items()
        ):
            certainties = {}
        # Rejectors that share an attack share its confidences, so no rejector's threshold may decide about these.
        small = certainties | self._in(like, ("confidence",), (np.float16, np.float32))
        changed = {name: part for name, part in small.items() if not is_same(part, getattr(self, name))}
        return self._replace(**changed) if changed else self

    def _in(
        self, like: "Scores | None", names: Sequence[str], kinds: Sequence[type[np.floating[Any]]]
    ) -> dict[str, Any]:
        """Return arrays in the first of these precisions; with `like`, in the first that holds its values, if any."""
        for kind in kinds:
            if like is None or all(is_same(part := getattr(like, name), _rounded(part, kind)) for name in names):
                return {name: _rounded(getattr(self, name), kind) for name in names}
        return {}


def where_wrong(certainty: NDArray[np.float64], correct: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the certainties of the wrong answers; -inf for the right ones."""
    return np.where(correct, -np.inf, certainty)


def _rounded(values: NDArray[np.float64], kind: type[np.floating[Any]]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        return values.astype(kind).astype(np.float64)


def _is_tied(values: NDArray[np.float64], rounded: NDArray[np.float64]) -> bool:
    """Tell whether rounding makes too many values equal, or a finite one infinite."""
    distinct, left = np.unique(values).size, np.unique(rounded).size
    return distinct - left > TIED * distinct or not np.array_equal(np.isinf(values), np.isinf(rounded))


def _crosses(threshold: NDArray[np.float64], values: NDArray[np.float64], rounded: NDArray[np.float64]) -> bool:
    """Tell whether rounding moves a value to the other side of a threshold; NaN, none, has no sides."""
    return not np.array_equal(values >= threshold, rounded >= threshold)


def is_file_name(name: str) -> bool:
    """Tell whether a cell may name this file: it must lie in one of the four folders."""
    folder, _, file = name.partition("/")
    return folder in FOLDERS and file.endswith(".npz") and is_plain_name(file)


def files_in(files: Mapping[str, str], folder: str) -> list[str]:
    """Return the files in a folder that a cell names: one, or none in clean/ for a cell of an older version."""
    return [name for name in files if is_file_name(name) and name.startswith(f"{folder}/")]


def file_in(files: Mapping[str, str], folder: str) -> str:
    """Return the one file of a folder that a cell names."""
    found = files_in(files, folder)
    if len(found) != 1:
        raise UseError(f"a cell names {len(found)} files in {folder}/ instead of one")
    return found[0]


def read_scores(root: Path, files: Mapping[str, str]) -> Scores:
    """Read the files of a cell and join their arrays."""
    if not files_in(files, CLEAN):
        raise UseError("a cell of an older version has no clean scores: measure it again")
    data, clean, attack, own = (widened(load_arrays(root / file_in(files, folder))) for folder in FOLDERS)
    none = np.empty(0)
    try:
        scores = Scores(
            **{name: data[name] for name in ("ids", "labels")},
            **_said(attack),
            distances=attack.get("distances", none),
            reached=attack.get("reached", none.astype(np.bool_)),
            certainty=(certainty := own.get("certainty", clean["clean_certainty"])),
            boldest_certainty=own.get("boldest_certainty", certainty),
            **{name: clean[name] for name in OF_CLEAN},
        )
    except KeyError as error:
        raise UseError(f"the files of a cell lack {error}") from None
    wrong = _misshapen(scores)
    if wrong:
        raise UseError(f"the files of a cell ({', '.join(files)}) hold {wrong}")
    if "boldest_certainty" in own:
        return scores
    return scores._replace(boldest_certainty=where_wrong(certainty, scores.correct))


def _said(attack: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the network's answers; classes come from the logits unless they are stored."""
    logits, head = attack["logits"], attack["head"]
    if logits.dtype.kind != "f":
        raise UseError(f"the files of a cell hold logits of type {logits.dtype}")
    try:
        said = dict(zip(OF_CLASS, classes_of(logits), strict=True))
    except ValueError as error:
        raise UseError(f"the files of a cell hold {error}") from None
    return said | {name: attack[name] for name in OF_CLASS if name in attack} | {"logits": logits, "head": head}


def _misshapen(scores: Scores) -> str:
    """Say what is wrong with the arrays' types, shapes or values, as anybody may have written them; else nothing."""
    count = len(scores.ids) if scores.ids.ndim else 0
    apart = scores.apart_certainty.size
    some = (count,) if scores.distances.size or scores.reached.size else (0,)
    shown = len(scores.logits)
    wanted: dict[str, tuple[str, tuple[int, ...]]] = {
        **dict.fromkeys(("ids", "labels", "prediction"), ("i", (count,))),
        "confidence": ("f", (count,)),
        **dict.fromkeys(("logits", "head"), ("f", (shown, -1))),  # of any width
        "distances": ("f", some),
        "reached": ("b", some),
        **dict.fromkeys(("certainty", "boldest_certainty", "clean_certainty"), ("f", (count,))),
        "clean_correct": ("b", (count,)),
        "apart_certainty": ("f", (apart,)),
        "apart_correct": ("b", (apart,)),
        "own_threshold": ("f", ()),
    }
    for name, (kind, shape) in wanted.items():
        array = getattr(scores, name)
        fits = array.ndim == len(shape)
        fits = fits and all(size in (-1, found) for size, found in zip(shape, array.shape, strict=True))
        if array.dtype.kind != kind or not fits:
            return f"{name} of type {array.dtype} and shape {array.shape} for {count} inputs"
    if count == 0:
        return "no input"
    if shown > count or not np.array_equal(scores.prediction[:shown], scores.logits.argmax(1)):
        return "classes that are not those of its logits"
    expected = classes_of(scores.logits)[1]
    if not np.allclose(scores.confidence[:shown], expected, rtol=0, atol=MOVED, equal_nan=True):
        return "softmax values that are not those of its logits"
    if scores.labels.min() < 0 or scores.labels.max() >= scores.logits.shape[1]:
        return f"labels beyond the {scores.logits.shape[1]} classes"
    said = (scores.certainty, scores.clean_certainty, scores.apart_certainty)
    return "NaN certainties" if any(np.isnan(part).any() for part in said) else ""


def read_images(root: Path, files: Mapping[str, str]) -> NDArray[np.float32]:
    """Return the first attacked images of a cell; if they were not moved, those of its data."""
    path = root / file_in(files, ATTACKS)
    found = widened(load_arrays(path, {IMAGES})).get(IMAGES)
    if found is None:
        found = widened(load_arrays(root / file_in(files, DATA), {IMAGES})).get(IMAGES)
    if found is None:
        raise UseError(f"{path} holds no images")
    if found.ndim != 4 or found.dtype.kind != "f":
        raise UseError(f"{path} holds images of type {found.dtype} and shape {found.shape}")
    return found
