"""CIFAR-10-C: test images corrupted in 19 ways at 5 severities (Hendrycks and Dietterich, 2019, arXiv 1903.12261)."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, get_args

import numpy as np

from rrbench.datasets.cifar import Cifar, Cifar10, cifar_info, to_batch
from rrbench.datasets.forms import Pixels, check_arrays
from rrbench.datasets.search import Located, missing, reading
from rrbench.errors import UseError
from rrbench.names import unknown
from rrbench.protocols import Batch, Split

Corruption = Literal[
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "speckle_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "gaussian_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "spatter",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
    "saturate",
]
SEVERITIES = 5


@dataclass(frozen=True)
class Cifar10C(Located):
    """One corruption, at one severity or all five; ids are positions of the clean images."""

    info = cifar_info(10)
    uses_networks_of = "cifar10"
    about = "the CIFAR-10 test images under one of 19 corruptions, as in cifar10-c(fog,severity=3)"
    clean: ClassVar[Cifar] = Cifar10()  # gives the training and calibration images

    corruption: Corruption
    severity: int | None = None  # 1 to 5; None: all

    def __post_init__(self) -> None:
        if self.corruption not in get_args(Corruption):
            raise unknown("corruption", self.corruption, get_args(Corruption))
        if self.severity is not None and not 1 <= self.severity <= SEVERITIES:
            raise UseError(f"cifar10-c has severities 1 to {SEVERITIES}, not {self.severity}")

    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        """Return the corrupted test images; the other splits are those of CIFAR-10."""
        if split != "test":
            return self.clean.load(split, roots)
        arrays, size = self._read(self._folder(roots), self.corruption), self.clean.layout.test
        severities = range(1, SEVERITIES + 1) if self.severity is None else [self.severity]
        chosen = slice((severities[0] - 1) * size, severities[-1] * size)
        batch = to_batch(Pixels(np.ascontiguousarray(arrays.pixels[chosen]), arrays.labels[chosen]), chosen.start)
        # The clean image's position: a threshold that a clean image helped to fix must not judge its corrupted copy.
        return batch._replace(ids=batch.ids % size)

    @classmethod
    def _read(cls, folder: Path, corruption: str) -> Pixels:
        """Memory-map the images of one corruption, in order of severity, without reading them."""
        with reading(folder / "labels.npy"):
            labels = np.load(folder / "labels.npy", allow_pickle=False)
        path = folder / f"{corruption}.npy"
        with reading(path):
            pixels = np.load(path, mmap_mode="r", allow_pickle=False)
            arrays = Pixels(pixels.transpose(0, 3, 1, 2), labels)
            check_arrays(arrays, SEVERITIES * cls.clean.layout.test, cls.info.classes)
        return Pixels(arrays.pixels, labels.astype(np.int64))

    @classmethod
    def _folder(cls, roots: tuple[Path, ...]) -> Path:
        place = cls.where(roots)
        if place is None:
            raise missing("cifar10-c", roots, "unpack the published archive there as CIFAR-10-C")
        return Path(place)

    @classmethod
    def where(cls, roots: tuple[Path, ...]) -> str | None:
        """Return the folder that has the labels."""
        places = (place for root in roots for place in (root / "CIFAR-10-C", root / "CIFAR10-C", root))
        return next((str(place) for place in places if os.path.isfile(place / "labels.npy")), None)

    @classmethod
    def inspect(cls, roots: tuple[Path, ...]) -> str:
        """Check every corruption whose file exists."""
        folder, names = cls._folder(roots), get_args(Corruption)
        there = [name for name in names if os.path.isfile(folder / f"{name}.npy")]
        for name in there:
            cls._read(folder, name)
        return f"{len(there)} of {len(names)} corruptions"
