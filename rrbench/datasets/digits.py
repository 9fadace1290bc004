"""Digits: the 1,797 handwritten digits inside scikit-learn (Alpaydin and Kaynak, 1998)."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from rrbench.datasets.search import Located
from rrbench.errors import UseError
from rrbench.protocols import Batch, DataInfo, Split

_BOUNDS = {"train": slice(0, 1077), "calibration": slice(1077, 1437), "test": slice(1437, 1797)}


def _all_digits() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return all pixels, 0 to 16, and labels; from scikit-learn's file, as importing scikit-learn takes two seconds."""
    package = find_spec("sklearn")
    file = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz" if package and package.origin else None
    if file is None or not file.is_file():
        from sklearn.datasets import load_digits

        digits = load_digits()
        return digits.images, digits.target
    table = np.loadtxt(file, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


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
        pixels, labels = _all_digits()
        ids = np.random.default_rng(0).permutation(len(labels))[_BOUNDS[split]]
        images = torch.from_numpy(pixels[ids] / 16).float().unsqueeze(1)
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
