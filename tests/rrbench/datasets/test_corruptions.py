"""Each corruption against a closed form, another library or a plain loop; what an image becomes is its own alone."""

import colorsys
import io
import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from skimage import transform

from rrbench.datasets.corruptions import CORRUPTIONS, corrupt, digital
from rrbench.datasets.corruptions.blurs import motion_blurred, motion_steps, motion_weights, zoom_blur
from rrbench.datasets.corruptions.digital import contrast, elastic_transform
from rrbench.datasets.corruptions.frost_pictures import photographs, textures
from rrbench.datasets.corruptions.noise import Floats, Images, Noise, to_bytes
from rrbench.datasets.corruptions.weather import fog, plasma, snow
from rrbench.errors import UseError
from rrbench.paper.cells import cells_of

SEVERITIES = range(1, 6)
NAMES = list(CORRUPTIONS)
PICTURES = textures(0)


def photos(count: int = 4) -> Images:
    """Return smooth made-up images, with bytes of every size."""
    noise = np.random.default_rng(3).normal(size=(count, 32, 32, 3))
    smooth = ndimage.gaussian_filter(noise, (0, 3, 3, 0))
    low, high = smooth.min(axis=(1, 2, 3), keepdims=True), smooth.max(axis=(1, 2, 3), keepdims=True)
    scaled: Images = np.rint(255 * (smooth - low) / (high - low)).astype(np.uint8)
    return scaled


def noise_of(count: int, stream: int = 11) -> Noise:
    return Noise(stream, np.arange(count))


def corrupted(name: str, severity: int, images: Images, ids: Any = None, seed: int = 0) -> Images:
    return corrupt(name, severity, images, np.arange(len(images)) if ids is None else ids, seed, PICTURES)


def plain(value: int, count: int = 2) -> Images:
    return np.full((count, 32, 32, 3), value, np.uint8)


# all of them


def test_the_corruptions_are_those_of_table_3_and_frost_from_a_texture() -> None:
    published = {cell.attack.removeprefix("corruption:") for cell in cells_of("table3")}
    assert set(CORRUPTIONS) == published | {"frost_texture"}
    assert all(len(constants) == 5 for _, constants in CORRUPTIONS.values())


@pytest.mark.parametrize("name", NAMES)
def test_an_image_becomes_the_same_whatever_is_beside_it(name: str) -> None:
    images, ids = photos(5), np.array([3, 9_999, 0, 17, 4])
    for severity in (1, 5):
        together = corrupted(name, severity, images, ids)
        assert together.dtype == np.uint8
        assert together.shape == images.shape
        alone = [corrupted(name, severity, images[[index]], ids[[index]])[0] for index in range(5)]
        assert np.array_equal(together, alone)
        order = [2, 0]
        assert np.array_equal(corrupted(name, severity, images[order], ids[order]), together[order])


DRAWN = [name for name in NAMES if name not in ("zoom_blur", "brightness", "contrast", "jpeg_compression")]


@pytest.mark.parametrize("name", DRAWN)
def test_seed_severity_and_id_decide_what_is_drawn(name: str) -> None:
    images = np.repeat(photos(1), 2, 0)
    first, second = corrupted(name, 3, images)
    assert not np.array_equal(first, second)
    assert not np.array_equal(corrupted(name, 3, images, seed=1)[0], first)
    assert not np.array_equal(corrupted(name, 4, images)[0], first)


def test_the_others_draw_nothing() -> None:
    images = np.repeat(photos(1), 2, 0)
    for name in set(NAMES) - set(DRAWN):
        first, second = corrupted(name, 3, images, seed=0)
        assert np.array_equal(first, second)


# blurs


@pytest.mark.parametrize(("severity", "rounds"), [(1, 1), (4, 2)])
def test_glass_blur_moves_pixels_as_a_loop_over_views_does(severity: int, rounds: int) -> None:
    """The published order, pixel by pixel: with numpy's views the swap is a copy. Without blur, to see that alone."""
    from rrbench.datasets.corruptions.blurs import glass_blur

    images = photos(1)
    expected, noise = images[0].copy(), noise_of(1)
    for turn in range(rounds):
        up, left = (noise.below(2, (30, 30), 2 * turn + axis)[0] for axis in (0, 1))
        for row in range(31, 1, -1):
            for column in range(31, 1, -1):
                other = row - up[row - 2, column - 2], column - left[row - 2, column - 2]
                expected[row, column], expected[other] = expected[other], expected[row, column]
    assert np.array_equal(glass_blur(images, noise, 0.05, rounds)[0], expected)
    assert [constants[1] for constants in CORRUPTIONS["glass_blur"][1]][severity - 1] == rounds


def test_glass_blur_blurs_before_and_after() -> None:
    """A plain image with one bright corner, which no pixel leaves: twice a Gaussian."""
    images = plain(0, 1)
    images[0, 0, 0] = 255
    (sigma, rounds) = CORRUPTIONS["glass_blur"][1][2]
    once = (ndimage.gaussian_filter(images[0] / 255, (sigma, sigma, 0), mode="nearest") * 255).astype(np.uint8)
    twice = (ndimage.gaussian_filter(once / 255, (sigma, sigma, 0), mode="nearest") * 255).astype(np.uint8)
    assert rounds == 1
    assert corrupted("glass_blur", 3, images)[0, 0, 0].tolist() == twice[0, 0].tolist()


@pytest.mark.parametrize(("degrees", "axis", "sign"), [(0.0, 2, 1), (90.0, 1, 1), (180.0, 2, -1), (-90.0, 1, -1)])
def test_motion_blur_along_an_axis_is_a_correlation_with_half_a_gaussian(degrees: float, axis: int, sign: int) -> None:
    images = photos(2)
    weights = motion_weights(6, 1.5)
    assert weights.sum() == pytest.approx(1)
    assert weights[2] / weights[0] == pytest.approx(math.exp(-(2**2) / (2 * 1.5**2)))
    assert len(weights) == 13
    kernel = np.concatenate([np.zeros(12), weights])[::sign]
    expected = ndimage.correlate1d(images.astype(np.float64), kernel, axis, mode="nearest")
    assert np.array_equal(motion_blurred(images, np.full(2, degrees), 6, 1.5), np.rint(expected))


def test_the_line_of_a_motion_goes_over_the_nearest_pixels() -> None:
    for degrees in (-45.0, -30.0, 10.0, 45.0, -135.0):
        down, right = motion_steps(np.array([degrees]), 19)
        exact = np.arange(19)[:, None] * [math.sin(math.radians(degrees)), math.cos(math.radians(degrees))]
        assert np.abs(np.stack([down[:, 0], right[:, 0]], 1) - exact).max() <= 0.5 + 1e-9


def test_zoom_blur_of_a_ramp_is_the_mean_of_stretched_ramps() -> None:
    ramp = np.broadcast_to(np.arange(32.0)[:, None, None] * 8, (32, 32, 3)).astype(np.uint8)
    for end, count in ((1.06, 6), (1.26, 26)):
        lines = [np.arange(32.0)]
        for hundredths in range(count):
            factor = 1 + hundredths / 100
            inner = math.ceil(32 / factor)
            large = round(inner * factor)
            first, cut = (32 - inner) // 2, (large - 32) // 2
            # The ends of the cut-out part stay ends.
            lines.append(first + (np.arange(32) + cut) * (inner - 1) / (large - 1))
        expected = np.mean(lines, 0) * 8
        found = zoom_blur(ramp[None], noise_of(1), end)[0]
        assert np.abs(found[:, 5, 1] + 0.5 - expected).max() <= 0.5 + 1e-6


# weather


def test_snow_on_a_plain_image_is_the_same_upside_down_and_whitens_by_its_constants() -> None:
    for severity in SEVERITIES:
        found = corrupted("snow", severity, plain(0))
        mix = CORRUPTIONS["snow"][1][severity - 1][-1]
        assert np.array_equal(found, found[:, ::-1, ::-1])
        assert found.min() == math.floor(255 * (1 - mix) * 0.5 + 1e-9)
        assert found.max() > found.min()


def test_snow_without_flakes_is_a_mixture_with_grey() -> None:
    images = photos(1)
    found = snow(images, noise_of(1), 0, 0, 1, 0.5, 8, 3, 0.8)
    pixels = images / 255
    grey = 0.299 * pixels[..., 0] + 0.587 * pixels[..., 1] + 0.114 * pixels[..., 2]
    expected = np.clip(0.8 * pixels + 0.2 * np.maximum(pixels, 1.5 * grey[..., None] + 0.5), 0, 1) * 255
    assert np.abs(found + 0.5 - expected).max() <= 0.5 + 1e-6


def test_frost_is_a_weighted_sum_with_a_part_of_a_picture() -> None:
    picture = np.arange(40 * 50 * 3).reshape(40, 50, 3).astype(np.uint8)
    images = photos(3)
    found = corrupt("frost", 3, images, np.arange(3), 0, [picture])
    parts = [picture[top : top + 32, left : left + 32] for top, left in itertools.product(range(9), range(19))]
    for image, frosted in zip(images, found, strict=True):
        possible = [np.clip(0.9 * image + 0.4 * part, 0, 255).astype(np.uint8) for part in parts]
        assert any(np.array_equal(frosted, each) for each in possible)
    several = corrupt("frost", 1, plain(0, 40), np.arange(40), 0, [plain(value, 1)[0] for value in (50, 100, 200)])
    assert set(np.unique(several)) == {10, 20, 40}


def test_fog_on_white_spans_from_its_share_to_white() -> None:
    for severity in SEVERITIES:
        amount = CORRUPTIONS["fog"][1][severity - 1][0]
        found = corrupted("fog", severity, plain(255))
        assert [image.min() for image in found] == [math.floor(255 / (1 + amount) + 1e-9)] * 2
        assert found.max() == 255
    black = fog(plain(0), noise_of(2), 1.0, 2)
    assert black.max() == 0  # it scales back to the image's own range


def test_a_plasma_spans_0_to_1_and_is_smoother_the_faster_its_noise_decays() -> None:
    def roughness(decay: float) -> float:
        return float(np.abs(np.diff(plasma(noise_of(50), 32, decay), axis=1)).mean())

    found = plasma(noise_of(3), 32, 2)
    assert found.shape == (3, 32, 32)
    assert found.min(axis=(1, 2)).tolist() == [0] * 3
    assert found.max(axis=(1, 2)).tolist() == [1] * 3
    assert roughness(1.75) > roughness(2) > roughness(2.5) > roughness(3)
    # Periodic: across the edge it is as smooth as elsewhere.
    many = plasma(noise_of(200), 32, 3)
    inside, across = np.abs(np.diff(many, axis=1)).mean(), np.abs(many[:, 0] - many[:, -1]).mean()
    assert across < 1.1 * inside


def test_brightness_is_what_the_standard_library_says() -> None:
    image = photos(1)[0, ::4]
    for severity in SEVERITIES:
        added = CORRUPTIONS["brightness"][1][severity - 1][0]
        found = corrupted("brightness", severity, photos(1))[0, ::4]
        for pixel, bright in zip(image.reshape(-1, 3), found.reshape(-1, 3), strict=True):
            hue, saturation, value = colorsys.rgb_to_hsv(*(pixel / 255))
            expected = colorsys.hsv_to_rgb(hue, saturation, min(value + added, 1))
            assert np.abs(bright + 0.5 - np.array(expected) * 255).max() <= 0.5 + 1e-6


# digital


def test_contrast_moves_two_values_towards_their_mean() -> None:
    images = plain(100, 1)
    images[:, 16:] = 200
    found = [sorted(np.unique(corrupted("contrast", severity, images)).tolist()) for severity in SEVERITIES]
    exact = [(150 - 50 * kept, 150 + 50 * kept) for kept in (0.75, 0.5, 0.4, 0.3, 0.15)]
    for pair, expected in zip(found, exact, strict=True):
        assert np.abs(np.array(pair) + 0.5 - expected).max() <= 0.5 + 1e-6
    channels = plain(0, 1)
    channels[..., 1] = 255  # each channel has its own mean
    assert np.array_equal(contrast(channels, noise_of(1), 0.5), channels)


def test_the_affine_part_of_the_elastic_transform_is_that_of_scikit_image() -> None:
    images, noise = photos(3), noise_of(3)
    reach = CORRUPTIONS["elastic_transform"][1][0][2] * 32
    points = np.array([[26, 26], [6, 26], [6, 6]])  # row, column
    ends = points + noise.uniform(-reach, reach, (3, 2))
    found = elastic_transform(images, noise, 0, 0, 0.08)
    for image, moved, end in zip(images, found, ends, strict=True):
        inverse = transform.AffineTransform.from_estimate(end[:, ::-1], points[:, ::-1])
        expected = transform.warp(image, inverse, order=1, mode="reflect") * 255
        assert np.abs(moved + 0.5 - expected).max() <= 0.5 + 1e-3


def test_the_elastic_part_moves_pixels_by_smoothed_noise() -> None:
    images, noise = photos(1), noise_of(1)
    assert np.array_equal(elastic_transform(images, noise, 0, 0.03, 0), images)  # nothing moves
    shifts = noise.uniform(-1, 1, (2, 32, 32), turn=1)[0]
    down, right = (ndimage.gaussian_filter(each, 0.04 * 32, mode="reflect", truncate=3) * 0.1 * 32 for each in shifts)
    rows, columns = np.mgrid[:32, :32]
    found = elastic_transform(images, noise, 0.1, 0.04, 0)[0, ..., 1]
    expected = ndimage.map_coordinates(images[0, ..., 1] / 255, [rows + down, columns + right], order=1, mode="reflect")
    assert np.abs(found + 0.5 - expected * 255).max() <= 0.5 + 1e-6
    assert np.abs(found.astype(int) - images[0, ..., 1]).mean() > 1


def test_bytes_of_the_elastic_transform_do_not_depend_on_last_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """On another machine, simulated: every level differs by 1e-12 of itself. Cut off alone, some bytes would differ."""
    floats: list[Floats] = []

    def kept(images: Floats, decimals: int) -> Images:
        floats.append(images)
        return to_bytes(images, decimals)

    monkeypatch.setattr(digital, "to_bytes", kept)
    images_with_plain_parts = photos() // 32 * 32  # there interpolated levels are whole
    found = [corrupted("elastic_transform", severity, images_with_plain_parts) for severity in SEVERITIES]
    random = np.random.default_rng(0)
    for images, here in zip(floats, found, strict=True):
        there = images * (1 + 1e-12 * random.choice([-1, 1], images.shape))
        assert np.array_equal(to_bytes(there, digital.DECIMALS), here)
        assert not np.array_equal(to_bytes(there), to_bytes(images))


def test_a_level_that_misses_a_whole_one_by_its_last_bits_is_that_one() -> None:
    levels = np.array([136.99999999999997, 137.0, 137.99999, 138.0 - 6e-8, 138.0 - 4e-8, -1e-9, 256.0])
    assert to_bytes(levels / 255, 7).tolist() == [137, 137, 137, 137, 138, 0, 255]
    assert to_bytes(levels / 255).tolist() == [136, 137, 137, 137, 137, 0, 255]


def test_jpeg_is_pillow_s() -> None:
    images = photos(2)
    for severity, quality in enumerate((80, 65, 58, 50, 40), 1):
        for image, found in zip(images, corrupted("jpeg_compression", severity, images), strict=True):
            file = io.BytesIO()
            Image.fromarray(image).save(file, format="jpeg", quality=quality)
            assert np.array_equal(found, np.array(Image.open(io.BytesIO(file.getvalue()))))


# what is drawn


def test_noise_has_the_moments_that_it_is_asked_for() -> None:
    noise = noise_of(200)
    normal = noise.normal(0.3, 0.2, (32, 32))
    assert normal.mean() == pytest.approx(0.3, abs=0.002)
    assert normal.std() == pytest.approx(0.2, rel=0.01)
    uniform = noise.uniform(-45, 45, (100,))
    assert (uniform.min() >= -45, uniform.max() < 45) == (True, True)
    assert uniform.std() == pytest.approx(90 / math.sqrt(12), rel=0.02)
    assert np.bincount(noise.below(4, (500,)).ravel()) == pytest.approx([25_000] * 4, rel=0.03)


# pictures of frost


def test_photographs_are_every_fifth_pixel_in_order_of_names(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    first, second = (random.integers(0, 256, (size, 200, 3), np.uint8) for size in (160, 250))
    Image.fromarray(second).save(tmp_path / "b.png")
    Image.fromarray(first).convert("RGBA").save(tmp_path / "a.PNG")
    (tmp_path / "README.md").write_text("not a picture")
    found = photographs(tmp_path, 32)
    assert len(found) == 2
    assert np.array_equal(found[0], first[2::5, 2::5])
    assert np.array_equal(found[1], second[2::5, 2::5])


def test_a_folder_without_good_photographs_is_refused_in_one_line(tmp_path: Path) -> None:
    def refused(folder: Path) -> str:
        with pytest.raises(UseError) as caught:
            photographs(folder, 32)
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "cannot read the folder of frost" in refused(tmp_path / "none")
    assert "holds no photograph" in refused(tmp_path)
    Image.new("RGB", (155, 300)).save(tmp_path / "a.png")
    assert "a.png is too small" in refused(tmp_path)
    (tmp_path / "a.png").write_bytes((tmp_path / "a.png").read_bytes()[:100])
    assert "cannot read" in refused(tmp_path)
    (tmp_path / "a.png").write_text("<html>404</html>")
    assert str(tmp_path / "a.png") in refused(tmp_path)


def test_textures_are_several_never_change_and_are_bluish() -> None:
    found = textures(0)
    assert all(np.array_equal(one, other) for one, other in zip(found, textures(0), strict=True))
    assert len({picture.tobytes() for picture in found}) == 5
    red, green, blue = np.mean(found, axis=(0, 1, 2))
    assert 60 < red < green < blue < 220
