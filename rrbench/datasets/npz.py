"""A user's own inputs in one .npz file: images and labels to measure on and, if there are any, to train on."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from rrbench.datasets.check import check_batch
from rrbench.datasets.given import describe, to_images, to_labels
from rrbench.errors import UseError
from rrbench.files.arrays import load_arrays
from rrbench.files.disk import Stamp, sha256, stamp
from rrbench.protocols import Batch, DataInfo, DataSource, Split
from rrbench.ranges import at_least

# The names of images and labels; a file has one pair of each split.
NAMES: dict[Split, tuple[tuple[str, str], ...]] = {
    "test": (("x_test", "y_test"), ("images", "labels"), ("x", "y")),
    "train": (("x_train", "y_train"),),
    "calibration": (("x_calibration", "y_calibration"), ("x_val", "y_val")),
}
HELD_OUT = 10  # one in so many training inputs is kept for calibration, if the file has no calibration inputs
RESERVED = ",()="


@dataclass(frozen=True)
class Npz(DataSource):
    """Arrays x_test and y_test (or images and labels), and if there are any x_train, y_train, x_calibration, ..."""

    about = "your own images and labels, as in npz(images.npz): x_test, y_test and, to train, x_train, y_train"

    path: str
    classes: int | None = None  # None: as many as the labels say

    def __post_init__(self) -> None:
        check_path(self.path)
        if self.classes is not None:
            at_least(2, classes=self.classes)

    @property
    def info(self) -> DataInfo:  # type: ignore[override] # read, since the file decides it
        """What the inputs say of themselves."""
        return _describe(self.path, stamp(self.path), self.classes)

    @property
    def splits(self) -> frozenset[Split]:
        """The splits that the file has."""
        return _splits(self.info)

    @property
    def is_held_out(self) -> bool:
        """Whether the file has training inputs, but no calibration inputs of its own."""
        return "train" in self.splits and not _has_calibration(self.path, stamp(self.path))

    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        """Return one split; ids are positions in the file, and those of training inputs follow those of test inputs."""
        return _read(self.path, stamp(self.path))[split]

    def content(self) -> str:
        """Hash the file."""
        return _hash(self.path, stamp(self.path))


def check_path(path: str) -> None:
    """Refuse a path that cannot be written in a name, and so not in a row."""
    if any(sign in path for sign in RESERVED):
        raise UseError(f"{path}: a comma, a bracket or = in a path cannot be written in a name; rename the file")


def _splits(info: DataInfo) -> frozenset[Split]:
    sizes: dict[Split, int] = {
        "test": info.test_size,
        "train": info.train_size,
        "calibration": info.calibration_size,
    }
    return frozenset(split for split, size in sizes.items() if size)


@lru_cache(maxsize=8)
def _describe(path: str, state: Stamp, classes: int | None) -> DataInfo:
    return describe(_read(path, state), classes)


@lru_cache(maxsize=8)
def _has_calibration(path: str, state: Stamp) -> bool:
    return bool(load_arrays(Path(path), {images for images, _ in NAMES["calibration"]}))


@lru_cache(maxsize=8)
def _hash(path: str, state: Stamp) -> str:
    return sha256(Path(path))


@lru_cache(maxsize=1)  # one file's images may fill the memory
def _read(path: str, state: Stamp) -> Mapping[Split, Batch]:
    """Read and check the inputs of a file."""
    arrays = load_arrays(Path(path))
    found: dict[Split, Batch] = {}
    read: dict[str, None] = {}
    first = 0
    for split in NAMES:
        pairs = [pair for pair in NAMES[split] if pair[0] in arrays]
        if not pairs:
            continue
        if len(pairs) > 1:
            both = " and ".join(images for images, _ in pairs)
            raise UseError(f"{path} has {both}, which are names of the same images ({split}): leave one out")
        (pair,) = pairs
        read |= dict.fromkeys(pair)
        found[split] = _batch(arrays, pair, first, f"{path} ({pair[0]})")
        first += found[split].size
    if "test" not in found:
        names = " or ".join(images for images, _ in NAMES["test"])
        raise UseError(f"{path} has no images to measure on, {names}: it has {', '.join(arrays) or 'nothing'}")
    unread = sorted(arrays.keys() - read)
    if unread:
        warnings.warn(f"{path}: these arrays are not read: {', '.join(unread)}; it has {', '.join(read)}", stacklevel=2)
    if "train" in found and "calibration" not in found:
        found |= held_out(found["train"])
    return found


def held_out(train: Batch, seed: int = 0) -> dict[Split, Batch]:
    """Divide training inputs: one in ten, drawn by the seed, is kept for calibration."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(train.size, generator=generator)
    count = train.size // HELD_OUT
    if not count:
        return {"train": train}
    return {"train": train.at(order[count:].sort().values), "calibration": train.at(order[:count].sort().values)}


def _batch(arrays: Mapping[str, NDArray[Any]], pair: tuple[str, str], first: int, what: str) -> Batch:
    images_name, labels_name = pair
    if labels_name not in arrays:
        raise UseError(f"{what}: there is no {labels_name} beside it")
    try:
        images, labels = to_images(arrays[images_name]), to_labels(arrays[labels_name])
    except UseError as error:
        raise UseError(f"{what}: {error}") from None
    batch = Batch(images, labels, torch.arange(first, first + (len(labels) if labels.dim() else 0)))
    check_batch(batch, None, what)
    return batch
