"""CIFAR-10-C as `rrbench data make` makes it: like the published files, not equal to them, and never read as them."""

import dataclasses
import json
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from rrbench.datasets.cifar import Content
from rrbench.datasets.cifar10_c import SEVERITIES, Corrupted
from rrbench.datasets.forms import Pixels, check_arrays
from rrbench.datasets.search import missing, reading
from rrbench.errors import UseError
from rrbench.files.arrays import reading_arrays
from rrbench.files.disk import parse_json

FOLDER = "CIFAR-10-C-made"
NOT_MADE = "`rrbench data make` did not make it"
MakeableCorruption = Literal[
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",  # from photographs
    "frost_texture",  # from a texture that is drawn: other data than frost
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "jpeg_compression",
]
# How often the bytes of one corruption alone changed. The data set's revision stays then: it is part of the keys of all
# corruptions' rows, and those of the others are still right.
CHANGED = {"elastic_transform": 1}


@dataclass(frozen=True)
class Mark:
    """What a made file says about itself: files without it are not read."""

    made: str  # the data set's name
    corruption: str
    revision: int  # of the code that made it, as `Cifar10CMade.file_revision` counts
    seed: int
    clean_sha256: str  # of the images that were corrupted, channels last
    pictures_sha256: str  # of the pictures of frost, at the size used; empty for other corruptions
    packages: str  # that made it: another version may make other pixels

    def is_same(self, other: "Mark") -> bool:
        """Tell whether two files were made of the same things; packages are a remark."""
        return dataclasses.replace(self, packages="") == dataclasses.replace(other, packages="")


class Made(NamedTuple):
    """A file of one corruption."""

    mark: Mark
    labels: NDArray[Any]  # (N,)
    severities: Sequence[NDArray[np.uint8]]  # (N, 32, 32, 3) each


@dataclass(frozen=True)
class Cifar10CMade(Corrupted):
    """The ten corruptions of the paper, made on this machine."""

    about = "ten corruptions like CIFAR-10-C's, made by `rrbench data make cifar10-c`, as in cifar10-c-made(fog)"
    name = "cifar10-c-made"
    corruptions = get_args(MakeableCorruption)
    ending = ".npz"  # the published files are .npy: neither is read as the other

    corruption: MakeableCorruption

    @classmethod
    def read(cls, folder: Path, corruption: str, severities: Sequence[int]) -> Pixels:
        """Read the images of some severities, of a file with the right mark."""
        path = folder / f"{corruption}{cls.ending}"
        with _opened(path) as (archive, mark):
            if (mark.made, mark.corruption) != (cls.name, corruption):
                raise ValueError(f"it says that it is {mark.made}({mark.corruption})")
            if mark.revision != (now := cls.file_revision(corruption)):
                raise ValueError(
                    f"revision {mark.revision} made it, now it is {now}: "
                    "delete it and run `rrbench data make cifar10-c`; "
                    "`rrbench verify` of a work folder then names the rows measured on it"
                )
            labels = archive["labels"]
            parts = [Pixels(archive[f"severity{each}"].transpose(0, 3, 1, 2), labels) for each in severities]
            for part in parts:
                check_arrays(part, cls.clean.layout.test, cls.clean.info.classes)
        pixels = np.ascontiguousarray(np.concatenate([part.pixels for part in parts]))
        return Pixels(pixels, np.tile(labels.astype(np.int64), len(parts)))

    @classmethod
    def file_revision(cls, corruption: str) -> int:
        """Return the revision of a corruption's file; it rises with the data set's revision too."""
        return cls.revision + CHANGED.get(corruption, 0)

    @classmethod
    def folder(cls, roots: tuple[Path, ...]) -> Path:
        """Return the folder of made files."""
        place = cls.where(roots)
        if place is None:
            raise missing(cls.name, roots, "run `rrbench data make cifar10-c`")
        return Path(place)

    @classmethod
    def where(cls, roots: tuple[Path, ...]) -> str | None:
        """Return the first folder that has a made file."""
        return next((str(place) for root in roots if cls.present(place := root / FOLDER)), None)

    @classmethod
    def inspect(cls, roots: tuple[Path, ...]) -> str:
        """Read every corruption whose file exists; if CIFAR-10 is there too, it must be what was corrupted."""
        folder = cls.folder(roots)
        there, clean = cls.present(folder), cls.clean.where(roots)
        source = Content.of(cls.clean.read("test", roots)).pixels if clean else ""
        for name in there:
            cls.read(folder, name, range(1, SEVERITIES + 1))
            path = folder / f"{name}{cls.ending}"
            if source and read_mark(path).clean_sha256 != source:
                raise UseError(f"{path} was made from other images than those in {clean}")
        return f"{', '.join(there)}; made, not the published files"


def write_made(path: Path, made: Made) -> None:
    """Write a file of one corruption."""
    images = {f"severity{number}": images for number, images in enumerate(made.severities, 1)}
    mark = np.array(json.dumps(dataclasses.asdict(made.mark)))
    with path.open("wb") as file:  # to a name, numpy would add an ending
        np.savez(file, allow_pickle=False, mark=mark, labels=made.labels.astype(np.uint8), **images)


def read_mark(path: Path) -> Mark:
    """Read what a made file says about itself."""
    with _opened(path) as (_, mark):
        return mark


@contextmanager
def _opened(path: Path) -> Iterator[tuple[Any, Mark]]:
    """Open a file that has a mark; any error, also of the caller's reading, becomes one line that names the file."""
    with reading(path):
        if path.is_file() and not zipfile.is_zipfile(path):
            raise ValueError(f"{NOT_MADE}: it is no .npz file")
        with reading_arrays(path), np.load(path, allow_pickle=False) as archive:
            if "mark" not in archive.files:
                raise ValueError(f"{NOT_MADE}: it has no mark")
            yield archive, _parsed(str(archive["mark"]))


def _parsed(text: str) -> Mark:
    values = parse_json(text)
    kinds = {field.name: field.type for field in dataclasses.fields(Mark)}
    if not isinstance(values, dict) or {key: type(value) for key, value in values.items()} != kinds:
        raise ValueError("its mark is none of this version")
    return Mark(**values)
