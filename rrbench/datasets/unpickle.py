"""Reads the published pickles of CIFAR without running them: only bytes, numbers, containers and byte arrays come out.

No function outside this file is called: stand-ins replace numpy's names in a pickle.
"""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def read_pickle(path: Path) -> object:
    """Return what a pickle holds; refuse anything but plain data and arrays of bytes."""
    admitted = _stand_ins()

    class Reader(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            wanted = module.replace("numpy._core", "numpy.core"), name
            if wanted not in admitted:
                raise pickle.UnpicklingError(f"it asks for {module}.{name}, which no CIFAR file does")
            return admitted[wanted]

    with path.open("rb") as file:
        return Reader(file, encoding="bytes").load()


def _stand_ins() -> dict[tuple[str, str], Callable[..., object]]:
    """Make new stand-ins for each file, so that a pickle cannot change them for the next file."""

    class Kind:
        def __init__(self, code: bytes | str, *_: object) -> None:
            if code not in (b"u1", "u1"):
                raise pickle.UnpicklingError(f"it holds an array of {code!r} instead of bytes")

        def __setstate__(self, state: object) -> None:
            pass

    class Array:
        def __setstate__(self, state: tuple[object, tuple[int, ...], Kind, bool, bytes]) -> None:
            _, shape, _, is_fortran, content = state
            self.values = np.frombuffer(content, np.uint8).reshape(shape, order="F" if is_fortran else "C")

    def reconstruct(*_: object) -> Array:
        return Array()

    return {
        ("numpy.core.multiarray", "_reconstruct"): reconstruct,
        ("numpy", "ndarray"): Array,
        ("numpy", "dtype"): Kind,
    }
