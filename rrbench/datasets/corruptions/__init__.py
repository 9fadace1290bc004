"""Corruptions of images, after CIFAR-10-C (Hendrycks and Dietterich, 2019, arXiv 1903.12261). Needs the extra.

The published files were made without a seed, so what is made here is like them and not equal to them.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rrbench.compute.seeds import derive
from rrbench.datasets.corruptions.blurs import glass_blur, motion_blur, zoom_blur
from rrbench.datasets.corruptions.digital import contrast, elastic_transform, jpeg_compression
from rrbench.datasets.corruptions.noise import Images, Noise
from rrbench.datasets.corruptions.weather import brightness, fog, frost, snow

FROST = [(1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)]
# What the makers published for CIFAR: a function, and its constants at severities 1 to 5.
CORRUPTIONS: Mapping[str, tuple[Callable[..., Images], Sequence[tuple[Any, ...]]]] = {
    "glass_blur": (glass_blur, [(0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2)]),  # its delta is always 1
    "motion_blur": (motion_blur, [(6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)]),
    "zoom_blur": (zoom_blur, [(1.06,), (1.11,), (1.16,), (1.21,), (1.26,)]),
    "snow": (
        snow,
        [
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ],
    ),
    "frost": (frost, FROST),
    "frost_texture": (frost, FROST),  # other pictures
    "fog": (fog, [(0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)]),
    "brightness": (brightness, [(0.05,), (0.1,), (0.15,), (0.2,), (0.3,)]),
    "contrast": (contrast, [(0.75,), (0.5,), (0.4,), (0.3,), (0.15,)]),
    "elastic_transform": (
        elastic_transform,
        [(0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)],
    ),
    "jpeg_compression": (jpeg_compression, [(80,), (65,), (58,), (50,), (40,)]),
}


def corrupt(
    name: str, severity: int, images: Images, ids: NDArray[np.int64], seed: int, pictures: Sequence[Images] = ()
) -> Images:
    """Corrupt some images; what an image becomes depends on the seed and its id, not on the images beside it.

    Only frost uses `pictures`.
    """
    function, constants = CORRUPTIONS[name]
    noise = Noise(derive(seed, "cifar10-c-made", name, severity), ids)
    more = {"pictures": pictures} if function is frost else {}
    return function(images, noise, *constants[severity - 1], **more)
