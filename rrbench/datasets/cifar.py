"""CIFAR-10 and CIFAR-100 (Krizhevsky, 2009), in any of their published forms."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rrbench.datasets.forms import PARTS, SHAPE, Archive, Binary, Form, Part, Pickled, Pixels
from rrbench.datasets.search import Located, missing
from rrbench.errors import UseError
from rrbench.protocols import Batch, DataInfo, Split

_FIVE = tuple(f"data_batch_{number}" for number in range(1, 6))


class Content(NamedTuple):
    """Hashes that identify a sorted part."""

    pixels: str  # SHA-256 of the images, channels last
    labels: str  # SHA-256 of the labels, one byte each

    @classmethod
    def of(cls, arrays: Pixels) -> "Content":
        """Hash a part."""
        parts = channels_last(arrays.pixels), arrays.labels.astype(np.uint8)
        return cls(*(hashlib.sha256(part.tobytes()).hexdigest() for part in parts))


@dataclass(frozen=True)
class Layout:
    """What the published files of one CIFAR hold."""

    name: str
    classes: int
    forms: tuple[Form, ...]
    train: int = 50_000
    test: int = 10_000
    calibration: int = 1_000  # the last of the test images
    first_labels: tuple[int, ...] = ()  # of the test images
    # Hashes of the sorted parts; only for a data set that is sorted by content.
    content: Mapping[Part, Content] | None = None

    def size(self, part: Part) -> int:
        """Return the number of images of a part."""
        return self.train if part == "train" else self.test


def to_batch(arrays: Pixels, first_id: int) -> Batch:
    """Scale bytes to [0, 1]; ids start at `first_id`."""
    images = torch.from_numpy(arrays.pixels).float().div_(255)
    return Batch(images, torch.from_numpy(arrays.labels), torch.arange(first_id, first_id + len(images)))


def by_content(arrays: Pixels) -> Pixels:
    """Sort by (SHA-256 of the image, channels last; label): an id means the same image in any copy."""
    digests = [hashlib.sha256(image).digest() for image in channels_last(arrays.pixels)]
    order = sorted(range(len(digests)), key=lambda index: (digests[index], int(arrays.labels[index])))
    return Pixels(arrays.pixels[order], arrays.labels[order])


def channels_last(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Arrange images by height, width, channel."""
    return np.ascontiguousarray(pixels.transpose(0, 2, 3, 1))


def cifar_info(classes: int) -> DataInfo:
    """Return the constants of CIFAR-10, which the paper uses for CIFAR-100 too."""
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    return DataInfo(
        classes, SHAPE, mean, std, train_size=50_000, calibration_size=1_000, test_size=10_000, pad=4, flip=True
    )


@dataclass(frozen=True)
class Cifar(Located):
    """What CIFAR-10 and CIFAR-100 have in common; ids are positions in the train or test files."""

    layout: ClassVar[Layout]

    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        """Return the training images, all test images, or the last test images for calibration."""
        arrays = self.read("train" if split == "train" else "test", roots)
        start = self.layout.test - self.layout.calibration if split == "calibration" else 0
        return to_batch(Pixels(arrays.pixels[start:], arrays.labels[start:]), start)

    @classmethod
    def read(cls, part: Part, roots: tuple[Path, ...]) -> Pixels:
        """Read one part from the first folder that has the data set."""
        found = cls._find(roots)
        if found is None:
            raise missing(cls.layout.name, roots, f"run `rrbench data get {cls.layout.name}`")
        form, place = found
        arrays = form.read(place, part, cls.layout.size(part), cls.layout.classes)
        return arrays if cls.layout.content is None else by_content(arrays)

    @classmethod
    def _find(cls, roots: tuple[Path, ...]) -> tuple[Form, Path] | None:
        for root in roots:
            for form in cls.layout.forms:
                if place := form.find(root):
                    return form, place
        return None

    @classmethod
    def where(cls, roots: tuple[Path, ...]) -> str | None:
        """Return the folder that holds the data set."""
        found = cls._find(roots)
        return str(found[1]) if found else None

    @classmethod
    def inspect(cls, roots: tuple[Path, ...]) -> str:
        """Read both parts and check that every class has equally many images."""
        layout, place = cls.layout, cls.where(roots)
        parts = {part: cls.read(part, roots) for part in PARTS}
        for part, arrays in parts.items():
            counts = np.bincount(arrays.labels, minlength=layout.classes)
            if counts.min() != counts.max():
                raise UseError(f"{place}: its {part} classes have from {counts.min()} to {counts.max()} images")
            published = (layout.content or {}).get(part)
            if published not in (None, Content.of(arrays)):
                raise UseError(f"{place}: its {part} images or labels are not the published ones")
        if tuple(parts["test"].labels[: len(layout.first_labels)]) != layout.first_labels:
            raise UseError(f"{place}: its test images are not in their published order")
        return f"{layout.train} train and {layout.test} test images, {layout.classes} classes"


@dataclass(frozen=True)
class Cifar10(Cifar):
    """Ten classes."""

    info = cifar_info(10)
    about = "60,000 colour images of 32x32 pixels in 10 classes"
    layout = Layout(
        "cifar10",
        classes=10,
        forms=(
            Pickled("cifar-10-batches-py", _FIVE, ("test_batch",), b"labels"),
            Binary("cifar-10-batches-bin", tuple(f"{name}.bin" for name in _FIVE), ("test_batch.bin",), 1),
            Archive("", ("cifar10.npz",), ("cifar10.npz",)),
        ),
        first_labels=(3, 8, 8, 0, 6, 6, 1, 6, 3, 1),
    )


@dataclass(frozen=True)
class Cifar100(Cifar):
    """A hundred classes; the twenty coarse classes are not used.

    Images are sorted by their SHA-256, because published copies differ in order.
    """

    info = cifar_info(100)
    about = "60,000 colour images of 32x32 pixels in 100 classes"
    layout = Layout(
        "cifar100",
        classes=100,
        forms=(
            Pickled("cifar-100-python", ("train",), ("test",), b"fine_labels"),
            Binary("cifar-100-binary", ("train.bin",), ("test.bin",), 2),
            Archive("", ("cifar100.npz",), ("cifar100.npz",)),
        ),
        content={
            "train": Content(
                "314214c52cf8821c3fd95fc3391792a3b938be3130d8a6fa1472491c1bf41022",
                "ea2cd91837953d77eeafb4c1f9add4fc27247412f0a8f42474f75beb5a4319fd",
            ),
            "test": Content(
                "3649f267eb9a14c4acea5df2e2b437abe44b7a6b67c2ffd653ebea273d00305e",
                "5cf52a13f3e25074c5cfeba73ebc826b83f8fde92ff0e85cecbd9d7efb334a85",
            ),
        },
    )
