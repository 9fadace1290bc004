"""What `folder` reads out of single pictures: 16 bits, grey beside colour, pictures that a camera held on its side."""

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps

from rrbench import UseError
from rrbench.datasets.folder import ORIENTATION, Folder
from rrbench.protocols import Batch

pytestmark = pytest.mark.usefixtures("own_folder")
DEEP = np.array([[0, 256], [32896, 65535]], np.uint16)


def save(pixels: NDArray[Any], place: str, **more: Any) -> None:
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path, **more)


def read(size: int | None = None) -> Batch:
    """Read all pictures of the folder, which has one class and so few pictures that all are for measuring."""
    return Folder("pictures", size=size, train=Fraction(0)).load("test", ())


def orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[ORIENTATION] = value
    return exif


def tiff(values: bytes, **fields: int) -> bytes:
    """Write a TIFF of 2x2 values by hand, as Pillow does not write all kinds."""
    tags = {256: 2, 257: 2, 258: 16, 259: 1, 262: 1, 273: 0, 277: 1, 278: 2, 279: len(values), 339: 1}
    tags |= {int(name[1:]): value for name, value in fields.items()}
    tags[273] = 8 + 2 + 12 * len(tags) + 4
    entries = b"".join(
        tag.to_bytes(2, "little") + b"\3\0" + (1).to_bytes(4, "little") + value.to_bytes(4, "little")
        for tag, value in sorted(tags.items())
    )
    return b"II*\0\x08\0\0\0" + len(tags).to_bytes(2, "little") + entries + bytes(4) + values


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_16_bits_keep_their_range(ending: str) -> None:
    save(DEEP, f"pictures/a/0.{ending}")
    expected = torch.tensor([[0, 256 / 65535], [32896 / 65535, 1]])
    assert torch.allclose(read().images, expected[None, None], rtol=0, atol=1e-7)
    assert read(size=1).images.item() == pytest.approx(DEEP.mean() / 65535, abs=1e-6)
    assert Folder("pictures", train=Fraction(0)).info.shape == (1, 2, 2)


def test_16_bits_of_which_the_first_byte_is_the_highest_are_read() -> None:
    save(DEEP.astype(">u2"), "pictures/a/0.tif")
    with Image.open("pictures/a/0.tif") as opened:
        assert opened.mode == "I;16B"
    assert read().images.flatten().tolist() == pytest.approx([0, 256 / 65535, 32896 / 65535, 1], abs=1e-7)


def test_a_grey_picture_of_fewer_values_than_16_bits_is_scaled_by_the_highest() -> None:
    Path("pictures/a").mkdir(parents=True)
    Path("pictures/a/0.pgm").write_bytes(b"P5 2 1 1000 " + np.array([250, 1000], ">u2").tobytes())
    assert read().images.flatten().tolist() == pytest.approx([0.25, 1], abs=1e-4)


def test_white_of_16_bits_stays_white_when_it_is_scaled() -> None:
    save(np.full((7, 7), 65535, np.uint16), "pictures/a/0.png")
    assert read(size=3).images.unique().tolist() == [1]


@pytest.mark.parametrize(
    ("fields", "mode"),
    [({"t258": 12}, "I;16"), ({"t262": 0}, "I;16"), ({"t339": 2}, "I"), ({"t258": 32}, "I")],
    ids=["12 bits", "0 is white", "with a sign", "32 bits"],
)
def test_a_tiff_without_a_known_range_is_one_line_that_names_it(fields: dict[str, int], mode: str) -> None:
    Path("pictures/a").mkdir(parents=True)
    Path("pictures/a/odd.tif").write_bytes(tiff(bytes(range(16 if fields.get("t258") == 32 else 8)), **fields))
    with pytest.raises(UseError) as refused:
        read()
    said = f"its values have no known range (mode {mode}): save it with 8 or 16 bits, 0 is black"
    assert str(refused.value) == f"cannot read pictures/a/odd.tif: {said}"


def test_the_tiff_of_this_test_itself_is_right() -> None:
    Path("pictures/a").mkdir(parents=True)
    Path("pictures/a/0.tif").write_bytes(tiff(DEEP.tobytes()))
    assert read().images[0, 0].flatten().tolist() == pytest.approx((DEEP / 65535).flatten().tolist(), abs=1e-7)


def test_floats_are_refused() -> None:
    save(np.full((2, 2), 0.5, np.float32), "pictures/a/0.tif")
    with pytest.raises(UseError, match=r"^cannot read pictures/a/0\.tif: its values have no known range \(mode F\)"):
        read()


def test_one_colour_picture_makes_all_colour_wherever_it_is() -> None:
    save(np.full((2, 2), 51, np.uint8), "pictures/test/a/0.png")
    save(DEEP, "pictures/test/a/1.png")
    save(np.full((2, 2, 3), (255, 102, 0), np.uint8), "pictures/test/b/0.png")
    save(np.full((2, 2), 153, np.uint8), "pictures/train/a/0.png")
    folder = Folder("pictures")
    grey, deep, colour = folder.load("test", ()).images
    assert colour[:, 0, 0].tolist() == pytest.approx([1, 0.4, 0])
    assert grey[:, 1, 1].tolist() == pytest.approx([0.2] * 3)
    assert deep[:, 1, 0].tolist() == pytest.approx([32896 / 65535] * 3)
    assert folder.load("train", ()).images[0, :, 0, 0].tolist() == pytest.approx([0.6] * 3)
    assert folder.load_first("test", (), 1).images.shape == (1, 3, 2, 2)
    assert folder.info.shape == (3, 2, 2)
    Path("pictures/test/b/0.png").unlink()  # which changes the time of its folder
    save(np.full((2, 2), 255, np.uint8), "pictures/test/b/1.png")
    assert Folder("pictures").load("test", ()).images.shape == (3, 1, 2, 2), "grey pictures alone stay grey"


@pytest.mark.parametrize("ending", ["png", "tif", "jpg"])
def test_a_picture_lies_as_its_camera_says(ending: str) -> None:
    stored = np.zeros((8, 16, 3), np.uint8)
    stored[:, 8:] = 255  # turned a quarter to the right: the stored left side comes to the top
    save(stored, f"pictures/a/0.{ending}", exif=orientation(6))
    (image,) = read().images
    assert image.shape == (3, 16, 8)
    assert image[:, :7].max() < 0.1
    assert image[:, 9:].min() > 0.9


def test_a_picture_of_16_bits_is_turned_too() -> None:
    save(np.array([[0], [257], [65535]], np.uint16), "pictures/a/0.png", exif=orientation(3))  # upside down
    assert read().images.flatten().tolist() == pytest.approx([1, 1 / 255, 0])


@pytest.mark.parametrize("value", range(10))
def test_every_orientation_is_that_of_pillow(value: int) -> None:
    stored = np.random.default_rng(0).integers(0, 256, (3, 5, 3), np.uint8)
    save(stored, "pictures/a/0.png", exif=orientation(value))
    with Image.open("pictures/a/0.png") as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened))
    assert np.array_equal(read().images[0].mul(255).round().byte().permute(1, 2, 0).numpy(), expected)
    assert np.array_equal(expected, stored) == (value in (0, 1, 9))


def test_damaged_exif_says_nothing_of_how_a_picture_lies() -> None:
    stored = np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    save(stored, "pictures/a/0.png", exif=b"Exif\0\0no EXIF at all")
    assert np.array_equal(read().images[0].mul(255).round().byte().permute(1, 2, 0).numpy(), stored)
