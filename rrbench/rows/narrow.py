"""The arrays of a cell in the smallest types that hold their values: nothing is rounded. Imports no torch."""

from collections.abc import Container, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[Any]]

IMAGES = "images"
LEVELS = np.float32(255)  # of a pixel in an image file
CERTAINTIES = ("certainty", "boldest_certainty", "clean_certainty", "apart_certainty")
# The types that arrays have for their readers; then smaller ones for their files, the smallest first.
TYPES: dict[str, tuple[type[np.generic], ...]] = {
    **dict.fromkeys(("labels", "prediction"), (np.int64, np.int8, np.int16, np.int32)),
    **dict.fromkeys(CERTAINTIES, (np.float64, np.float32)),
    "confidence": (np.float64, np.float16, np.float32),
}


def narrowed(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return arrays for a file; `widened` gives the same bits back."""
    return {name: _narrow(name, array) for name, array in arrays.items()}


def widened(arrays: Arrays) -> dict[str, NDArray[Any]]:
    """Return the arrays of a file as their readers expect them; what is of another kind stays as it is."""
    return {name: _widen(name, array) for name, array in arrays.items()}


def has_same(one: Arrays, other: Arrays, passing: Container[str] = ()) -> bool:
    """Tell whether two files hold the same for their readers, bit by bit; arrays named in `passing` may differ."""
    mine, theirs = (
        {name: part for name, part in widened(each).items() if name not in passing} for each in (one, other)
    )
    return mine.keys() == theirs.keys() and all(is_same(mine[name], theirs[name]) for name in mine)


def is_same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Compare arrays bit by bit."""
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def _narrow(name: str, array: NDArray[Any]) -> NDArray[Any]:
    with np.errstate(invalid="ignore", over="ignore"):  # a value that does not fit comes back as another one
        if name == IMAGES:
            smaller = [np.rint(array * LEVELS).astype(np.uint8)] if array.dtype == np.float32 else []
        else:
            wide, *kinds = TYPES.get(name, (None,))
            smaller = [array.astype(kind) for kind in kinds] if array.dtype == wide else []
    return next((small for small in smaller if is_same(_widen(name, small), array)), array)


def _widen(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if name == IMAGES:
        return array.astype(np.float32) / LEVELS if array.dtype == np.uint8 else array
    wide, *_ = TYPES.get(name, (None,))
    is_of_kind = wide is not None and array.dtype.kind == np.dtype(wide).kind
    return array.astype(wide, copy=False) if is_of_kind else array
