"""What happens in a computer: less contrast, an elastic transform, JPEG."""

import io

import numpy as np
from PIL import Image
from scipy import ndimage

from rrbench.datasets.corruptions.noise import Floats, Images, Noise, to_bytes, to_unit

# Levels of 0 to 255 of the elastic transform are rounded to so many decimals. For all test images of CIFAR-10 no level
# is nearer than 1e-9 to where this rounding turns, and last bits move a level by much less.
DECIMALS = 7


def contrast(images: Images, noise: Noise, kept: float) -> Images:
    """Move every pixel towards the mean of its channel."""
    pixels = to_unit(images)
    means = pixels.mean(axis=(1, 2), keepdims=True)
    return to_bytes((pixels - means) * kept + means)


def elastic_transform(images: Images, noise: Noise, alpha: float, sigma: float, affine: float) -> Images:
    """Turn and stretch the image a little, then move every pixel; the constants are shares of the image's size."""
    size = images.shape[1]
    sources = affine_sources(noise, size, affine * size)
    shifts = noise.uniform(-1, 1, (2, size, size), turn=1)
    shifts = ndimage.gaussian_filter(shifts, (0, 0, sigma * size, sigma * size), mode="reflect", truncate=3)
    places = np.mgrid[:size, :size] + alpha * size * shifts
    moved = np.empty(images.shape)
    for index, image in enumerate(to_unit(images)):
        for channel in range(image.shape[-1]):
            # Two interpolations one after the other, as published: each of them blurs.
            warped = ndimage.map_coordinates(image[..., channel], sources[index], order=1, mode="mirror")
            moved[index, ..., channel] = ndimage.map_coordinates(warped, places[index], order=1, mode="reflect")
    # Last bits of an interpolation depend on the machine. The other corruptions gave equal bytes wherever they were
    # made, and rounding theirs too would change them.
    return to_bytes(moved, DECIMALS)


def affine_sources(noise: Noise, size: int, reach: float) -> Floats:
    """Return where each pixel comes from, (N, 2, size, size), under affine maps that move three points by `reach`."""
    near, far = size // 2 - size // 3, size // 2 + size // 3
    points = np.array([[far, far], [near, far], [near, near]], dtype=np.float64)  # row, column
    ends = points + noise.uniform(-reach, reach, (3, 2))
    ones = np.ones((len(ends), 3, 1))
    maps = np.linalg.solve(np.concatenate([ends, ones], 2), np.broadcast_to(points, ends.shape))  # (N, 3, 2)
    rows, columns = np.mgrid[:size, :size]
    parts = (maps[:, index, :, None, None] for index in range(3))
    along, across, start = parts
    sources: Floats = along * rows + across * columns + start
    return sources


def jpeg_compression(images: Images, noise: Noise, quality: int) -> Images:
    """Write and read a JPEG."""
    return np.stack([_through_jpeg(image, quality) for image in images])


def _through_jpeg(image: Images, quality: int) -> Images:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))
