"""CIFAR-10-C: test images corrupted in 19 ways at 5 severities (Hendrycks and Dietterich, 2019, arXiv 1903.12261)."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rrbench.datasets.cifar import Cifar, Cifar10, to_batch
from rrbench.datasets.forms import Pixels, check_arrays
from rrbench.datasets.search import Located, missing, reading
from rrbench.errors import UseError
from rrbench.files.arrays import reading_arrays
from rrbench.names import unknown
from rrbench.protocols import Batch, DataInfo, Split

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
class Corrupted(Located):
    """The test images of CIFAR-10 under one corruption, at one severity or all five; ids are those of clean images."""

    uses_networks_of = "cifar10"
    name: ClassVar[str]
    corruptions: ClassVar[tuple[str, ...]]  # every corruption that can be named
    ending: ClassVar[str]  # of a corruption's file
    clean: ClassVar[Cifar] = Cifar10()  # gives the training and calibration images

    corruption: str
    severity: int | None = None  # 1 to 5; None: all

    def __post_init__(self) -> None:
        if self.corruption not in self.corruptions:
            raise unknown("corruption", self.corruption, self.corruptions)
        if self.severity is not None and not 1 <= self.severity <= SEVERITIES:
            raise UseError(f"{self.name} has severities 1 to {SEVERITIES}, not {self.severity}")

    @property
    def info(self) -> DataInfo:  # type: ignore[override] # computed, since the number of test images varies
        """CIFAR-10's, with the test images of every severity asked for."""
        return replace(self.clean.info, test_size=len(self._severities) * self.clean.layout.test)

    @property
    def _severities(self) -> Sequence[int]:
        return range(1, SEVERITIES + 1) if self.severity is None else [self.severity]

    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        """Return the corrupted test images; the other splits are those of CIFAR-10."""
        if split != "test":
            return self.clean.load(split, roots)
        batch = to_batch(self.read(self.folder(roots), self.corruption, self._severities), 0)
        # The clean image's position: a threshold that a clean image helped to fix must not judge its corrupted copy.
        return batch._replace(ids=batch.ids % self.clean.layout.test)

    @classmethod
    @abstractmethod
    def read(cls, folder: Path, corruption: str, severities: Sequence[int]) -> Pixels:
        """Read some severities of a corruption, one after the other; `severities` rise by 1."""

    @classmethod
    @abstractmethod
    def folder(cls, roots: tuple[Path, ...]) -> Path:
        """Return the data set's folder; a missing one is a UseError."""

    @classmethod
    def present(cls, folder: Path) -> list[str]:
        """Return the corruptions whose files exist; a folder of such a name counts, so that reading it is refused."""
        return [name for name in cls.corruptions if os.path.lexists(folder / f"{name}{cls.ending}")]


@dataclass(frozen=True)
class Cifar10C(Corrupted):
    """The published files."""

    about = "the CIFAR-10 test images under one of 19 corruptions, as in cifar10-c(fog,severity=3)"
    name = "cifar10-c"
    corruptions = get_args(Corruption)
    ending = ".npy"

    corruption: Corruption

    @classmethod
    def read(cls, folder: Path, corruption: str, severities: Sequence[int]) -> Pixels:
        """Read a part of the images; the rest of their file stays on the disk."""
        arrays, size = cls._mapped(folder, corruption), cls.clean.layout.test
        chosen = slice((severities[0] - 1) * size, severities[-1] * size)
        return Pixels(np.ascontiguousarray(arrays.pixels[chosen]), arrays.labels[chosen])

    @classmethod
    def _labels(cls, folder: Path) -> NDArray[Any]:
        path = folder / "labels.npy"
        with reading(path), reading_arrays(path):
            labels: NDArray[Any] = np.load(path, allow_pickle=False)
        return labels

    @classmethod
    def _mapped(cls, folder: Path, corruption: str) -> Pixels:
        """Memory-map the images of one corruption, in order of severity, without reading them."""
        labels = cls._labels(folder)
        path = folder / f"{corruption}.npy"
        with reading(path), reading_arrays(path):
            pixels = np.load(path, mmap_mode="r", allow_pickle=False)
            if isinstance(pixels, np.lib.npyio.NpzFile):
                pixels.close()
                raise ValueError("it is no published file; corruptions that were made here are cifar10-c-made")
            arrays = Pixels(pixels.transpose(0, 3, 1, 2), labels)
            check_arrays(arrays, SEVERITIES * cls.clean.layout.test, cls.clean.info.classes)
        return Pixels(arrays.pixels, labels.astype(np.int64))

    @classmethod
    def folder(cls, roots: tuple[Path, ...]) -> Path:
        """Return the folder that has the labels."""
        place = cls.where(roots)
        if place is None:
            remedy = "unpack the published archive there as CIFAR-10-C, or make and name cifar10-c-made instead"
            raise missing(cls.name, roots, remedy)
        return Path(place)

    @classmethod
    def where(cls, roots: tuple[Path, ...]) -> str | None:
        """Return the folder that has the labels; else one with something else in their place, which is then refused."""
        places = [place for root in roots for place in (root / "CIFAR-10-C", root / "CIFAR10-C", root)]
        found = (place for test in (os.path.isfile, os.path.lexists) for place in places if test(place / "labels.npy"))
        return next(map(str, found), None)

    @classmethod
    def inspect(cls, roots: tuple[Path, ...]) -> str:
        """Check every corruption whose file exists."""
        folder = cls.folder(roots)
        cls._labels(folder)
        there = cls.present(folder)
        for name in there:
            cls._mapped(folder, name)
        return f"{len(there)} of {len(cls.corruptions)} corruptions"
