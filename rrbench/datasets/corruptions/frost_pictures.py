"""Pictures of frost: photographs from a folder or, without one, a texture that is drawn."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from skimage.transform import resize

from rrbench.compute.seeds import derive
from rrbench.datasets.corruptions.noise import Images, Noise
from rrbench.datasets.corruptions.weather import plasma
from rrbench.errors import UseError, first_line

SUFFIXES = (".png", ".jpg", ".jpeg")
SCALE = 0.2  # of a photograph's size
TEXTURES, TEXTURE_SIZE = 5, 128
TINT = np.array([0.75, 0.9, 1.0])  # frost is bluish


def photographs(folder: Path, least: int) -> list[Images]:
    """Read every picture of a folder, in order of names, at a fifth of its size; at least `least` pixels are left."""
    try:
        paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)
    except OSError as error:
        raise UseError(f"cannot read the folder of frost {folder}: {error.strerror or error}") from None
    if not paths:
        raise UseError(f"{folder} holds no photograph of frost ({', '.join(SUFFIXES)})")
    return [_photograph(path, least) for path in paths]


def _photograph(path: Path, least: int) -> Images:
    try:
        with Image.open(path) as file:
            picture = np.asarray(file.convert("RGB"))
    except Exception as error:  # a damaged or hostile picture can fail in any way
        raise UseError(f"cannot read {path}: {first_line(error)}") from None
    height, width = (round(SCALE * size) for size in picture.shape[:2])
    if min(height, width) < least:
        raise UseError(f"{path} is too small: at {SCALE} of its size it must have {least}x{least} pixels")
    # Linear without smoothing: the published files keep the grain of the photographs.
    small = resize(picture, (height, width), order=1, anti_aliasing=False, preserve_range=True)
    rounded: Images = np.rint(small).astype(np.uint8)
    return rounded


def textures(seed: int) -> list[Images]:
    """Draw bluish ridges, about as bright as the published photographs; no photograph is needed."""
    noise = Noise(derive(seed, "frost texture"), np.arange(TEXTURES))
    ridges = 1 - np.abs(2 * plasma(noise, TEXTURE_SIZE, 1.4) - 1)
    return list((255 * (0.3 + 0.7 * ridges[..., None]) * TINT).astype(np.uint8))


def hashed(pictures: Sequence[Images]) -> str:
    """Hash pictures, so that files made from others are told apart."""
    digest = hashlib.sha256()
    for picture in pictures:
        digest.update(repr(picture.shape).encode() + picture.tobytes())
    return digest.hexdigest()
