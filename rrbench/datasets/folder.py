"""A user's own pictures in a folder, with one subfolder for each class (JPEG, PNG and others that Pillow reads)."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rrbench.datasets.given import describe
from rrbench.datasets.npz import HELD_OUT, check_path
from rrbench.errors import UseError, first_line
from rrbench.files.disk import Stamp, sha256, stamp
from rrbench.protocols import Batch, DataInfo, DataSource, Split
from rrbench.ranges import at_least

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm", ".tif", ".tiff")
PARTS: dict[Split, tuple[str, ...]] = {
    "test": ("test", "val", "valid", "validation"),
    "train": ("train",),
    "calibration": ("calibration", "val", "valid", "validation"),  # if they are not the test pictures
}
# Pillow's modes of one channel with more than 8 bits: it would clip their values at 255.
DEEP = ("I;16", "I;16B", "I;16L", "I;16N", "I", "F")
GREY = ("1", "L", *DEEP)
ORIENTATION = 0x0112  # the EXIF tag; what is to be done with the stored pixels for each of its values, but 1
TURNS = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}
SAMPLE = 256  # pictures whose mean and spread stand for those of all


class Picture(NamedTuple):
    """One file."""

    path: Path
    label: int
    id: int  # its position among all files, sorted


class Listing(NamedTuple):
    """The files of a folder; nothing of them is read yet."""

    pictures: Mapping[Split, Sequence[Picture]]
    is_held_out: bool


@dataclass(frozen=True)
class Folder(DataSource):
    """Subfolders test, train and calibration (or val) of one subfolder a class; or only the classes, then it is split.

    Classes are numbered in the order of their names, unless all names are numbers: these are the labels then.
    """

    revision = 2  # 2: EXIF orientation is followed, 16 bits keep their range, one colour picture makes all colour
    about = "your own pictures, one subfolder a class, as in folder(pictures,size=224)"

    path: str
    size: int | None = None  # pixels a side: pictures are scaled and cut to it; None: all have one size
    train: Fraction = Fraction(3, 5)  # share of training pictures if the folder is not split; the rest is halved
    seed: int = 0  # of the split

    def __post_init__(self) -> None:
        check_path(self.path)
        at_least(1, size=self.size or 1)
        if not 0 <= self.train < 1:
            raise UseError(f"train must be at least 0 and below 1, not {self.train}")

    @property
    def info(self) -> DataInfo:  # type: ignore[override] # read, since the pictures decide it
        """What the pictures say of themselves."""
        return _describe(self, _state(self.path))

    @property
    def splits(self) -> frozenset[Split]:
        """The splits that have pictures."""
        return frozenset(split for split, found in self._listed.pictures.items() if found)

    @property
    def is_held_out(self) -> bool:
        """Whether calibration pictures are taken from a folder of training pictures."""
        return self._listed.is_held_out

    @property
    def _listed(self) -> Listing:
        return _listing(self.path, self.train, self.seed, _state(self.path))

    def _read(self, pictures: Sequence[Picture]) -> Batch:
        is_grey = _is_grey(self.path, self.train, self.seed, _state(self.path))
        return _read(pictures, self.size, self.path, is_grey)

    def load(self, split: Split, roots: tuple[Path, ...]) -> Batch:
        """Read the pictures of one split."""
        return self._read(self._listed.pictures[split])

    def load_first(self, split: Split, roots: tuple[Path, ...], count: int) -> Batch:
        """Read the first pictures of one split, and no other."""
        return self._read(self._listed.pictures[split][:count])

    def content(self) -> str:
        """Hash names and bytes of all files."""
        return _hash(self.path, self.train, self.seed, _state(self.path))


def _state(path: str) -> tuple[Stamp, ...]:
    """Tell whether files were added or removed; what is inside a file is read once a process."""
    stamp(path)  # refuses a folder that is not there
    if not os.path.isdir(path):
        raise UseError(f"{path} is no folder")
    return tuple(stamp(folder) for folder, _, _ in sorted(os.walk(path)))


@lru_cache(maxsize=8)
def _listing(path: str, train: Fraction, seed: int, state: tuple[Stamp, ...]) -> Listing:
    """List the files of each split."""
    root = Path(path)
    parts: dict[Split, Path | None] = {}
    for split, names in PARTS.items():
        places = [root / name for name in names if (root / name).is_dir() and root / name not in parts.values()]
        if split == "calibration":  # a flat or empty folder for validation says nothing of classes
            places = [place for place in places if place.name == split or _pictures(place, _labels([place]), 0)]
        parts[split] = next(iter(places), None)
    if parts["test"] is not None and _classes(parts["test"]):
        labels = _labels([place for place in parts.values() if place is not None])
        found: dict[Split, Sequence[Picture]] = {}
        first = 0
        for split, place in parts.items():
            if place is not None:
                found[split] = _pictures(place, labels, first)
                first += len(found[split])
        is_held_out = "train" in found and "calibration" not in found
        if is_held_out:
            found["calibration"], found["train"] = _divided(found["train"], [Fraction(1, HELD_OUT)], seed)
        return Listing(found, is_held_out)
    pictures = _pictures(root, _labels([root]), 0)
    if not pictures:
        raise UseError(f"{path} has no subfolders with pictures: it needs one for each class")
    calibration, test, rest = _divided(pictures, [(1 - train) / 2] * 2, seed)
    return Listing({"test": test or pictures, "calibration": calibration, "train": rest}, False)


def _divided(pictures: Sequence[Picture], shares: Sequence[Fraction], seed: int) -> list[Sequence[Picture]]:
    """Draw shares of the pictures, then what is left; each in the order of the files."""
    order = np.random.default_rng(seed).permutation(len(pictures))
    ends = np.cumsum([0, *(round(len(pictures) * share) for share in shares)])
    pieces = [order[begin:end] for begin, end in zip(ends, [*ends[1:], len(order)], strict=True)]
    return [[pictures[index] for index in sorted(piece)] for piece in pieces]


def _classes(folder: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir() and not entry.name.startswith("."))


def _labels(folders: Sequence[Path]) -> dict[str, int]:
    """Return a label for each class: its place in the order of names, or its name if all names are numbers."""
    names = sorted({name for folder in folders for name in _classes(folder)})
    if names and all(name.isascii() and name.isdigit() and len(name) < 10 for name in names):
        return {name: int(name) for name in names}
    return {name: label for label, name in enumerate(names)}


def _pictures(folder: Path, labels: Mapping[str, int], first: int) -> list[Picture]:
    files = [
        (folder / name / file, labels[name])
        for name in _classes(folder)
        for file in sorted(os.listdir(folder / name))
        if file.lower().endswith(ENDINGS) and not file.startswith(".")
    ]
    return [Picture(path, label, first + index) for index, (path, label) in enumerate(files)]


@lru_cache(maxsize=8)
def _hash(path: str, train: Fraction, seed: int, state: tuple[Stamp, ...]) -> str:
    digest = hashlib.sha256()
    for split, pictures in sorted(_listing(path, train, seed, state).pictures.items()):
        for picture in pictures:
            name = picture.path.relative_to(path).as_posix()
            digest.update(f"{split} {name} {picture.label} {sha256(picture.path)}\n".encode())
    return digest.hexdigest()


@lru_cache(maxsize=8)
def _describe(folder: Folder, state: tuple[Stamp, ...]) -> DataInfo:
    """Read some pictures, spread over the folder, and count the others."""
    pictures = _listing(folder.path, folder.train, folder.seed, state).pictures
    known = pictures.get("train") or pictures["test"]
    sample = folder._read(known[:: -(-len(known) // SAMPLE)])
    last = max(picture.label for found in pictures.values() for picture in found)
    told = describe({"test": sample._replace(labels=torch.full_like(sample.labels, last))})
    sizes = {f"{split}_size": len(found) for split, found in pictures.items()}
    return DataInfo(told.classes, told.shape, told.mean, told.std, flip=True, **sizes)


@lru_cache(maxsize=8)
def _is_grey(path: str, train: Fraction, seed: int, state: tuple[Stamp, ...]) -> bool:
    """Tell whether no picture of any split has colours; only the heads of the files are read."""
    pictures = _listing(path, train, seed, state).pictures.values()
    return all(_mode(picture.path) in GREY for found in pictures for picture in found)


def _mode(path: Path) -> str:
    from PIL import Image  # takes a while, so only when used

    try:
        with Image.open(path) as opened:
            return opened.mode
    except Exception as error:  # a damaged picture can fail in any way
        raise UseError(f"cannot read {path}: {first_line(error)}") from None


def _read(pictures: Sequence[Picture], size: int | None, where: str, is_grey: bool) -> Batch:
    """Decode pictures, all as grey ones or all in colour."""
    from PIL import Image

    images = None
    for index, picture in enumerate(pictures):
        try:
            with Image.open(picture.path) as opened:
                decoded = _decoded(opened, is_grey)
        except Exception as error:
            raise UseError(f"cannot read {picture.path}: {first_line(error)}") from None
        if size is not None:
            decoded = _cut(decoded, size)
        # Clipped, as the mean of 255 and 255 may be a little more in floats.
        pixels = np.asarray(decoded).clip(0, 255).reshape(decoded.height, decoded.width, -1).transpose(2, 0, 1)
        if images is None:
            images = torch.empty(len(pictures), 1 if is_grey else 3, decoded.height, decoded.width)
        if tuple(images.shape[2:]) != pixels.shape[1:]:
            shapes = f"{decoded.width}x{decoded.height}, and the first one {images.shape[3]}x{images.shape[2]}"
            raise UseError(f"{picture.path} is {shapes}: give a size, as in folder({where},size={images.shape[2]})")
        images[index] = torch.from_numpy(pixels)  # one channel fills all three
    assert images is not None
    labels, ids = (torch.tensor([getattr(picture, name) for picture in pictures]) for name in ("label", "id"))
    return Batch(images.div_(255), labels, ids)


def _decoded(opened: Any, is_grey: bool) -> Any:  # Pillow is imported late
    """Return a picture with values from 0 to 255, which lies as its EXIF orientation says."""
    from PIL import Image

    if opened.mode in DEEP:
        if not _has_16_bits(opened):
            unknown = f"its values have no known range (mode {opened.mode})"
            raise UseError(f"{unknown}: save it with 8 or 16 bits, 0 is black")
        deep = np.asarray(_upright(opened), np.float32)
        return Image.fromarray(deep / 257)  # 65535 is 257 * 255
    return _upright(opened).convert("L" if is_grey else "RGB")


def _upright(opened: Any) -> Any:
    """Turn a picture as its EXIF says. Damaged EXIF says nothing: Pillow's own `exif_transpose` fails on it."""
    from PIL import Image

    opened.load()  # outside `suppress`: damaged pixels are refused
    turn = None
    with suppress(Exception):
        turn = TURNS.get(opened.getexif().get(ORIENTATION))
    return opened if turn is None else opened.transpose(Image.Transpose[turn])


def _has_16_bits(opened: Any) -> bool:
    """Tell whether values go from 0, black, to 65535. A TIFF may also have 12 or 32 bits, a sign, or 0 as white."""
    if opened.format == "TIFF":
        bits, interpretation = opened.tag_v2.get(258), opened.tag_v2.get(262)
        return bool(opened.mode != "I" and bits == (16,) and interpretation == 1)
    return opened.format in ("PNG", "PPM") and opened.mode != "F"


def _cut(picture, size: int):  # type: ignore[no-untyped-def] # Pillow is imported late
    """Scale a picture until its shorter side has `size` pixels, and cut its middle."""
    scale = size / min(picture.size)
    width, height = (max(size, round(side * scale)) for side in picture.size)
    scaled = picture.resize((width, height), resample=2, reducing_gap=3.0)  # bilinear
    left, top = (width - size) // 2, (height - size) // 2
    return scaled.crop((left, top, left + size, top + size))
