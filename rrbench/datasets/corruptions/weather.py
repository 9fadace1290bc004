"""Weather: snow, frost, fog, brightness."""

from collections.abc import Sequence

import numpy as np
from skimage import color

from rrbench.datasets.corruptions.blurs import motion_blurred, zoomed
from rrbench.datasets.corruptions.noise import Floats, Images, Noise, to_bytes, to_unit

LUMA = (0.299, 0.587, 0.114)  # grey from red, green, blue (ITU-R BT.601, as in OpenCV and Pillow)
WIBBLE = 100.0  # the noise of the first level of a plasma


def snow(
    images: Images,
    noise: Noise,
    mean: float,
    deviation: float,
    zoom: float,
    cut: float,
    radius: int,
    sigma: float,
    mix: float,
) -> Images:
    """Whiten the image, and let flakes fall on it from two sides."""
    size = images.shape[1:3]
    layer = zoomed(noise.normal(mean, deviation, (*size, 1)), zoom)
    layer[layer < cut] = 0
    flakes = to_unit(motion_blurred(to_bytes(layer), noise.uniform(-135, -45, turn=1), radius, sigma))
    pixels = to_unit(images)
    grey = sum(weight * pixels[..., channel, None] for channel, weight in enumerate(LUMA))
    pixels = mix * pixels + (1 - mix) * np.maximum(pixels, 1.5 * grey + 0.5)
    return to_bytes(pixels + flakes + flakes[:, ::-1, ::-1])


def frost(images: Images, noise: Noise, share: float, frost_share: float, pictures: Sequence[Images]) -> Images:
    """Add a random part of one of some pictures of frost."""
    height, width = images.shape[1:3]
    chosen = noise.below(len(pictures))
    room = np.array([(picture.shape[0] - height, picture.shape[1] - width) for picture in pictures])[chosen]
    # A picture of exactly an image's size has one part only.
    tops, lefts = (noise.below(np.maximum(room[:, axis], 1), turn=1 + axis) for axis in (0, 1))
    parts = np.stack(
        [
            pictures[picture][top : top + height, left : left + width]
            for picture, top, left in zip(chosen, tops, lefts, strict=True)
        ]
    )
    return np.clip(share * images + frost_share * parts, 0, 255).astype(np.uint8)


def fog(images: Images, noise: Noise, amount: float, decay: float) -> Images:
    """Add a plasma, and scale back to the image's own range."""
    pixels = to_unit(images)
    highest = pixels.max(axis=(1, 2, 3), keepdims=True)
    return to_bytes((pixels + amount * plasma(noise, images.shape[1], decay)[..., None]) * highest / (highest + amount))


def plasma(noise: Noise, size: int, decay: float) -> Floats:
    """Draw (N, size, size) periodic random landscapes in [0, 1] (diamond-square; `size` is a power of 2)."""
    heights = np.zeros((len(noise.ids), size, size))
    step, wibble, turn = size, WIBBLE, 0
    while step >= 2:
        half = step // 2
        corners = heights[:, ::step, ::step]
        below, right = np.roll(corners, -1, 1), np.roll(corners, -1, 2)
        centres = corners + below + right + np.roll(below, -1, 2)
        centres = centres / 4 + wibble * noise.uniform(-wibble, wibble, centres.shape[1:], turn)
        heights[:, half::step, half::step] = centres
        # A point between two corners has the two as neighbours, and the centres on its other sides.
        sides = {
            (0, half): corners + right + centres + np.roll(centres, 1, 1),
            (half, 0): corners + below + centres + np.roll(centres, 1, 2),
        }
        for number, ((down, across), total) in enumerate(sides.items(), 1):
            spread = wibble * noise.uniform(-wibble, wibble, total.shape[1:], turn + number)
            heights[:, down::step, across::step] = total / 4 + spread
        step, wibble, turn = half, wibble / decay, turn + 3
    heights -= heights.min(axis=(1, 2), keepdims=True)
    scaled: Floats = heights / heights.max(axis=(1, 2), keepdims=True)
    return scaled


def brightness(images: Images, noise: Noise, added: float) -> Images:
    """Add to the value of hue, saturation and value."""
    pixels = color.rgb2hsv(images)
    pixels[..., 2] = np.clip(pixels[..., 2] + added, 0, 1)
    return to_bytes(color.hsv2rgb(pixels))
