"""Blurs: through glass, by motion, by zoom."""

import math

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from rrbench.datasets.corruptions.noise import Floats, Images, Noise, to_bytes, to_unit


def glass_blur(images: Images, noise: Noise, sigma: float, rounds: int) -> Images:
    """Blur, replace each pixel by one of its neighbours above and left or by itself, blur again."""
    moved = to_bytes(_blurred(to_unit(images), sigma))
    count, height, width, _ = moved.shape
    which, rows, columns = np.ogrid[:count, 2:height, 2:width]
    for turn in range(rounds):
        # The published code goes backwards through the pixels and means to swap each with the other, but copies the
        # other over it. The other comes later and is still unchanged, so that all can be copied at once.
        up, left = (noise.below(2, (height - 2, width - 2), 2 * turn + axis) for axis in (0, 1))
        moved[:, 2:, 2:] = moved[which, rows - up, columns - left]
    return to_bytes(_blurred(to_unit(moved), sigma))


def _blurred(images: Floats, sigma: float) -> Floats:
    blurred: Floats = ndimage.gaussian_filter(images, (0, sigma, sigma, 0), mode="nearest")
    return blurred


def motion_blur(images: Images, noise: Noise, radius: int, sigma: float) -> Images:
    """Blur along a line at an angle of -45 to 45 degrees."""
    return motion_blurred(images, noise.uniform(-45, 45), radius, sigma)


def motion_blurred(images: Images, degrees: Floats, radius: int, sigma: float) -> Images:
    """Blur as ImageMagick does: half a Gaussian on one side, whole pixels, edges repeated, bytes rounded."""
    weights = motion_weights(radius, sigma)
    count, height, width, _ = images.shape
    which, rows, columns = np.ogrid[:count, :height, :width]
    blurred = np.zeros(images.shape)
    for weight, down, right in zip(weights, *motion_steps(degrees, len(weights)), strict=True):
        row = np.clip(rows + down[:, None, None], 0, height - 1)
        column = np.clip(columns + right[:, None, None], 0, width - 1)
        blurred += weight * images[which, row, column]
    return np.clip(np.rint(blurred), 0, 255).astype(np.uint8)


def motion_weights(radius: int, sigma: float) -> Floats:
    """Return the weights of the pixels along the line; they sum to 1."""
    weights = np.exp(-(np.arange(2 * radius + 1) ** 2) / (2 * sigma**2))
    normed: Floats = weights / weights.sum()
    return normed


def motion_steps(degrees: Floats, count: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return how many rows down and columns right the line's pixels lie, (count, N) each."""
    along, angles = np.arange(count)[:, None], np.radians(degrees)
    down, right = (np.ceil(along * part - 0.5).astype(np.int64) for part in (np.sin(angles), np.cos(angles)))
    return down, right


def zoom_blur(images: Images, noise: Noise, end: float) -> Images:
    """Take the mean of the image and its zooms, in steps of 0.01 from 1 to below `end`."""
    factors = 1 + np.arange(round((end - 1) * 100)) / 100
    pixels = to_unit(images)
    total = pixels.copy()
    for factor in factors:
        total += zoomed(pixels, float(factor))
    return to_bytes(total / (len(factors) + 1))


def zoomed(images: Floats, factor: float) -> Floats:
    """Zoom into the centre of (N, height, width, channels), linearly, and cut the size back."""
    size = images.shape[1]
    inner = math.ceil(size / factor)
    start = (size - inner) // 2
    part = images[:, start : start + inner, start : start + inner]
    # Images become channels: along another axis of its own zoom would interpolate too, at twice the cost.
    layers = part.transpose(1, 2, 0, 3).reshape(inner, inner, -1)
    large = ndimage.zoom(layers, (factor, factor, 1), order=1)
    cut = (len(large) - size) // 2
    kept = large[cut : cut + size, cut : cut + size].reshape(size, size, len(images), -1)
    return np.ascontiguousarray(kept.transpose(2, 0, 1, 3))
