"""Makes CIFAR-10-C from CIFAR-10's test images, one file for each corruption."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rrbench.datasets.cifar import Content, channels_last
from rrbench.datasets.cifar10_c import SEVERITIES
from rrbench.datasets.cifar10_c_made import FOLDER, Cifar10CMade, Made, Mark, read_mark, write_made
from rrbench.datasets.corruptions import corrupt
from rrbench.datasets.corruptions.frost_pictures import hashed, photographs, textures
from rrbench.datasets.corruptions.noise import Images
from rrbench.errors import UseError
from rrbench.files.disk import replacing, sweep
from rrbench.progress import Advance, Report

SEED = 0
AT_ONCE = 250  # images: few enough for the processor's cache
PACKAGES = ("numpy", "scipy", "scikit-image", "pillow")


class Result(NamedTuple):
    """What was made, and what was there already."""

    folder: Path
    made: list[str]
    kept: list[str]
    frost: str  # what frost was made from


def make(root: Path, roots: tuple[Path, ...], frost: Path | None, threads: int, report: Report) -> Result:
    """Make in `root` every corruption that is not there yet; each file appears whole or not at all.

    `frost` is a folder of photographs; without it a texture is drawn, and its corruption has another name.
    """
    clean = Cifar10CMade.clean.read("test", roots)
    images = channels_last(clean.pixels)
    pictures = textures(SEED) if frost is None else photographs(frost, images.shape[1])
    absent = "frost" if frost is None else "frost_texture"
    folder, marks = root / FOLDER, {}
    for name in (name for name in Cifar10CMade.corruptions if name != absent):
        is_frost = name.startswith("frost")
        marks[name] = Mark(
            made=Cifar10CMade.name,
            corruption=name,
            revision=Cifar10CMade.file_revision(name),
            seed=SEED,
            clean_sha256=Content.of(clean).pixels,
            pictures_sha256=hashed(pictures) if is_frost else "",
            packages=", ".join(f"{package} {version(package)}" for package in PACKAGES),
        )
    kept = [name for name in marks if _is_there(folder / f"{name}{Cifar10CMade.ending}", marks[name])]
    made = [name for name in marks if name not in kept]
    sweep(folder)
    pool = ThreadPoolExecutor(threads)
    try:
        for name in made:
            # Begun before any work: a folder that cannot be written is an error at once.
            with replacing(folder / f"{name}{Cifar10CMade.ending}") as temporary:
                with report.task(name, SEVERITIES * len(images)) as advance:
                    severities = _severities(name, images, pictures, pool, advance)
                write_made(temporary, Made(marks[name], clean.labels, severities))
    finally:
        pool.shutdown(cancel_futures=True)
    about = "a texture that was drawn" if frost is None else f"{len(pictures)} photographs"
    return Result(folder, made, kept, about)


def _is_there(path: Path, wanted: Mark) -> bool:
    """Tell whether a file is made already; one that was made of other things is in the way."""
    if not os.path.lexists(path):
        return False
    if not read_mark(path).is_same(wanted):
        raise UseError(f"{path} was made from other images or by another version; move it away, then make it again")
    return True


def _severities(
    name: str, images: Images, pictures: Sequence[Images], pool: ThreadPoolExecutor, advance: Advance
) -> list[Images]:
    """Corrupt all images at every severity."""
    ids = np.arange(len(images))
    starts = range(0, len(images), AT_ONCE)

    def part(severity: int, start: int) -> Images:
        chosen = slice(start, start + AT_ONCE)
        return corrupt(name, severity, images[chosen], ids[chosen], SEED, pictures)

    found = []
    for severity in range(1, SEVERITIES + 1):
        parts = []
        for piece in pool.map(partial(part, severity), starts):
            parts.append(piece)
            advance(len(piece))
        found.append(np.concatenate(parts))
    return found
