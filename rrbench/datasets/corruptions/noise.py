"""Images as corruptions take and give them, and the random numbers of each image."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rrbench.compute.draws import HashedDraws

Images = NDArray[np.uint8]  # (N, height, width, 3)
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Noise:
    """Random numbers for some images: each image has its own, whatever images are beside it.

    `turn` tells apart the draws of one image for different purposes.
    """

    stream: int  # derived from the seed, the corruption and the severity
    ids: NDArray[np.int64]  # of the images

    def uniform(self, low: float, high: float, shape: tuple[int, ...] = (), turn: int = 0) -> Floats:
        """Return (N, *shape) numbers in [low, high)."""
        return low + (high - low) * self._drawn("uniform", shape, turn)

    def normal(self, mean: float, deviation: float, shape: tuple[int, ...], turn: int = 0) -> Floats:
        """Return (N, *shape) normal numbers."""
        return mean + deviation * self._drawn("normal", shape, turn)

    def below(self, count: int | NDArray[Any], shape: tuple[int, ...] = (), turn: int = 0) -> NDArray[np.int64]:
        """Return (N, *shape) whole numbers from 0 to `count` - 1; every image may have its own `count`."""
        return np.floor(count * self._drawn("uniform", shape, turn)).astype(np.int64)

    def _drawn(self, kind: str, shape: tuple[int, ...], turn: int) -> Floats:
        draw = getattr(HashedDraws(self.stream), kind)
        drawn: Floats = draw(torch.from_numpy(self.ids), shape, turn).numpy().astype(np.float64)
        return drawn


def to_unit(images: Images) -> Floats:
    """Scale bytes to [0, 1]."""
    return images / 255.0


def to_bytes(images: Floats, decimals: int | None = None) -> Images:
    """Clip to [0, 1] and cut off to bytes, as the published files do; they do not round.

    With `decimals`, levels of 0 to 255 are first rounded to so many decimals. A level that is whole but for its last
    bits, such as 136.99999999999997, then gives the same byte on every machine.
    """
    levels = np.clip(images, 0, 1) * 255
    return (levels if decimals is None else np.round(levels, decimals)).astype(np.uint8)
