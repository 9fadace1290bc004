"""Digits: the 1,797 handwritten digits inside scikit-learn (Alpaydin and Kaynak, 1998)."""

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rrbench.datasets.search import Located
from rrbench.errors import UseError
from rrbench.protocols import Batch, DataInfo, Split

_BOUNDS = {"train": slice(0, 1077), "calibration": slice(1077, 1437), "test": slice(1437, 1797)}


@cache
def read_digits() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return pixels of 0 to 16, an image a line, and labels; whoever changes them works on a copy.

    They are read from scikit-learn's own file: every process that loads scikit-learn for them waits for seconds.
    """
    spec = find_spec("sklearn")
    path = Path(spec.origin if spec and spec.origin else "").parent / "datasets" / "data" / "digits.csv.gz"
    if path.is_file():
        read = np.loadtxt(path, delimiter=",")
        return read[:, :-1], read[:, -1]
    from sklearn.datasets import load_digits  # a version that keeps them elsewhere

    digits = load_digits()
    return digits.data, digits.target


@dataclass(frozen=True)
class Digits(Located):
    """Real handwriting that needs no download; the default."""

    info = DataInfo(
        classes=10,
        shape=(1, 8, 8),
        mean=(0.3049,),  # mean and std are measured on the training split
        std=(0.3757,),
        train_size=1077,
        calibration_size=360,
        test_size=360,
    )
    about = "1,797 handwritten digits of 8x8 pixels; no download"

    def load(self, split: Split, roots: tuple[Path, ...] = ()) -> Batch:
        """Return one split of a fixed permutation; ids are positions in scikit-learn's order."""
        pixels, labels = read_digits()
        ids = np.random.default_rng(0).permutation(len(labels))[_BOUNDS[split]]
        images = torch.from_numpy(pixels[ids] / 16).float().reshape(-1, *self.info.shape)
        return Batch(images, torch.from_numpy(labels[ids]).long(), torch.from_numpy(ids).long())

    @classmethod
    def where(cls, roots: tuple[Path, ...]) -> str:
        """Return the package that holds the digits."""
        return "scikit-learn"

    @classmethod
    def inspect(cls, roots: tuple[Path, ...]) -> str:
        """Count the images of each split."""
        splits: tuple[Split, ...] = ("train", "calibration", "test")
        sizes = [cls().load(split).size for split in splits]
        if sizes != [1077, 360, 360]:
            raise UseError(f"scikit-learn's digits split into {sizes} instead of [1077, 360, 360]")
        return f"{sizes[0]} train, {sizes[1]} calibration and {sizes[2]} test images, {cls.info.classes} classes"
