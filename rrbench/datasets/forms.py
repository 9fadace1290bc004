"""The three forms in which CIFAR is published, each read into the same arrays."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.datasets.search import reading
from rrbench.datasets.unpickle import read_pickle
from rrbench.files.arrays import reading_arrays

Part = Literal["train", "test"]
PARTS: tuple[Part, ...] = ("train", "test")
SHAPE = (3, 32, 32)
_PIXELS = 3 * 32 * 32


class Pixels(NamedTuple):
    """Images and labels as the files hold them."""

    pixels: NDArray[Any]  # (N, 3, 32, 32) uint8
    labels: NDArray[Any]  # (N,) integers


@dataclass(frozen=True)
class Form(ABC):
    """Files in a folder with a known name, or in the root itself."""

    folder: str
    train: tuple[str, ...]
    test: tuple[str, ...]

    def find(self, root: Path) -> Path | None:
        """Return the folder that has any of the files."""
        for place in (root / self.folder, root):
            if any(os.path.isfile(place / name) for name in self.train + self.test):
                return place
        return None

    def read(self, place: Path, part: Part, count: int, classes: int) -> Pixels:
        """Read and check the files of one part, which together hold `count` images."""
        names = self.train if part == "train" else self.test
        pieces = []
        for name in names:
            with reading(place / name):
                piece = self.read_file(place / name, part)
                check_arrays(piece, count // len(names), classes)
                pieces.append(piece)
        pixels, labels = (np.concatenate(parts) for parts in zip(*pieces, strict=True))
        return Pixels(np.ascontiguousarray(pixels), labels.astype(np.int64))

    @abstractmethod
    def read_file(self, path: Path, part: Part) -> Pixels:
        """Read one file."""


def check_arrays(arrays: Pixels, count: int, classes: int) -> None:
    """Refuse arrays that are not `count` CIFAR images with their labels."""
    pixels, labels = arrays
    if pixels.dtype != np.uint8 or pixels.shape[1:] != SHAPE:
        raise ValueError(f"its images are {pixels.dtype} of shape {pixels.shape} instead of uint8 colour of 32x32")
    if labels.dtype.kind not in "iu":
        raise ValueError(f"its labels are {labels.dtype} instead of integers")
    if len(pixels) != count or labels.shape != (count,):
        raise ValueError(f"it has {len(pixels)} images and {labels.size} labels instead of {count}")
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(f"its labels span {labels.min()}..{labels.max()} instead of 0..{classes - 1}")


@dataclass(frozen=True)
class Pickled(Form):
    """The folder that torchvision downloads."""

    label_key: bytes

    def read_file(self, path: Path, part: Part) -> Pixels:
        """Read one dictionary of an array and a list, without running code that a pickle may name."""
        content = read_pickle(path)
        if not isinstance(content, dict) or not {b"data", self.label_key} <= content.keys():
            raise ValueError(f"it is no dictionary with data and {self.label_key.decode()}")
        return Pixels(content[b"data"].values.reshape(-1, *SHAPE), np.array(content[self.label_key]))


@dataclass(frozen=True)
class Binary(Form):
    """The binary version: records of label bytes (the last one is the class) and pixels."""

    label_bytes: int

    def read_file(self, path: Path, part: Part) -> Pixels:
        """Read whole records."""
        content, length = np.fromfile(path, np.uint8), self.label_bytes + _PIXELS
        if content.size % length:
            raise ValueError(f"its {content.size} bytes are no whole number of {length}-byte records")
        records = content.reshape(-1, length)
        return Pixels(records[:, self.label_bytes :].reshape(-1, *SHAPE), records[:, self.label_bytes - 1])


@dataclass(frozen=True)
class Archive(Form):
    """An .npz of x_train, y_train, x_test, y_test, channels last."""

    def read_file(self, path: Path, part: Part) -> Pixels:
        """Read the two arrays of one part."""
        with reading_arrays(path), np.load(path, allow_pickle=False) as archive:
            pixels, labels = archive[f"x_{part}"], archive[f"y_{part}"]
        if pixels.ndim != 4:
            raise ValueError(f"x_{part} has shape {pixels.shape} instead of (N, 32, 32, 3)")
        # Some tools store labels as a column.
        return Pixels(pixels.transpose(0, 3, 1, 2), labels[:, 0] if labels.shape[1:] == (1,) else labels)
