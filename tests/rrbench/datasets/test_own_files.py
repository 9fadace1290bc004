"""The data sets `npz` and `folder`: what is read of users' own files, and training on it."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from own_network import inputs
from rrbench import UseError
from rrbench.compute import batching
from rrbench.compute.batching import batch_size
from rrbench.datasets.folder import Folder
from rrbench.datasets.npz import Npz
from rrbench.protocols import Split
from rrbench.rows.row import read_rows

pytestmark = pytest.mark.usefixtures("own_folder", "one_thread")
CONFIG = "[recipe]\nepochs = 1\nbatch = 16\n"


def paint(place: str, value: int, width: int = 6, height: int = 6, mode: str = "RGB") -> Path:
    path = Path(place)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, (width, height), value if mode == "L" else (value, 0, 255)).save(path)
    return path


def values(images: Tensor) -> list[int]:
    return (images[:, 0, 0, 0] * 255).round().int().tolist()


def test_classes_of_a_folder_are_split_once_and_for_all() -> None:
    for label, name in enumerate(("cat", "dog")):
        for index in range(10):
            paint(f"pictures/{name}/{index}.png", 100 * label + index)
    Path("pictures/cat/notes.txt").write_text("no picture")
    folder = Folder("pictures")
    splits: tuple[Split, ...] = ("train", "calibration", "test")
    parts = {split: folder.load(split, ()) for split in splits}
    assert [parts[split].size for split in splits] == [12, 4, 4]
    seen = [value for part in parts.values() for value in values(part.images)]
    assert sorted(seen) == [*range(10), *range(100, 110)], "each picture is in one split"
    for part in parts.values():
        assert part.labels.tolist() == [value // 100 for value in values(part.images)]
        assert part.ids.tolist() == [value if value < 100 else value - 90 for value in values(part.images)]
        assert torch.equal(part.images[:, 2], torch.ones_like(part.images[:, 2]))
    again = Folder("pictures").load("test", ())
    assert torch.equal(again.images, parts["test"].images)
    other = Folder("pictures", seed=1)
    assert other.load("test", ()).ids.tolist() != again.ids.tolist()
    assert other.content() != folder.content()
    assert (folder.info.classes, folder.info.shape, folder.info.train_size) == (2, (3, 6, 6), 12)
    assert Folder("pictures", train=Fraction(0)).splits == {"test", "calibration"}
    assert torch.equal(folder.load_first("test", (), 2).images, again.images[:2])


def test_given_parts_of_a_folder_are_kept_and_numbers_are_labels() -> None:
    for index in range(20):
        paint(f"pictures/train/{'7' if index % 2 else '03'}/{index}.png", index)
    paint("pictures/val/03/a.png", 100)
    paint("pictures/val/7/b.png", 101)
    folder = Folder("pictures")
    test = folder.load("test", ())
    assert (values(test.images), test.labels.tolist()) == ([100, 101], [3, 7])
    assert folder.info.classes == 8
    assert folder.is_held_out
    assert folder.splits_for(is_given=True) == {"test", "train"}
    held = folder.load("calibration", ())
    assert held.size == 2
    assert sorted(values(held.images) + values(folder.load("train", ()).images)) == list(range(20))


def test_validation_pictures_fix_the_threshold_beside_test_pictures() -> None:
    for index, part in enumerate(("train", "val", "test")):
        paint(f"pictures/{part}/a/0.png", 10 * index)
        paint(f"pictures/{part}/b/1.png", 10 * index + 1)
    folder = Folder("pictures")
    parts: tuple[Split, ...] = ("train", "calibration", "test")
    assert [values(folder.load(part, ()).images) for part in parts] == [[0, 1], [10, 11], [20, 21]]
    assert not folder.is_held_out
    paint("pictures/calibration/a/0.png", 90)
    assert values(Folder("pictures").load("calibration", ()).images) == [90]


@pytest.mark.parametrize("picture", ["", "pictures/val/flat.png"])
def test_a_folder_for_validation_without_classes_is_not_used(picture: str) -> None:
    for index in range(20):
        paint(f"pictures/train/{'ab'[index % 2]}/{index}.png", index)
    paint("pictures/test/a/0.png", 100)
    Path("pictures/val/a").mkdir(parents=True)
    if picture:
        paint(picture, 50)
    folder = Folder("pictures")
    assert folder.is_held_out
    assert folder.load("calibration", ()).size == 2


def test_pictures_of_other_sizes_are_scaled_and_cut_in_the_middle() -> None:
    wide = np.zeros((4, 16, 3), np.uint8)
    wide[:, 4:12] = 255  # only the middle is white
    Path("pictures/a").mkdir(parents=True)
    Image.fromarray(wide).save("pictures/a/wide.png")
    paint("pictures/a/zero.png", 0, 8, 8)
    folder = Folder("pictures", size=2, train=Fraction(0))
    both = torch.cat([folder.load(split, ()).images for split in ("test", "calibration")])
    assert both.shape == (2, 3, 2, 2)
    assert sorted(both[:, 1].mean((1, 2)).tolist()) == [0.0, 1.0]
    with pytest.raises(UseError, match=r"and the first one .* give a size, as in folder\(pictures,size="):
        Folder("pictures", train=Fraction(3, 5)).load("train", ())


@pytest.mark.parametrize(
    ("prepare", "line"),
    [
        (lambda: None, "cannot read pictures: No such file"),
        (lambda: Path("pictures").write_text("a file"), "pictures is no folder"),
        (lambda: Path("pictures").mkdir(), "pictures has no subfolders with pictures"),
        (lambda: paint("pictures/a/b.png", 0).write_bytes(b"damaged"), "cannot read pictures/a/b.png"),
    ],
    ids=["gone", "file", "empty", "damaged"],
)
def test_a_wrong_folder_is_one_clear_line(prepare: Callable[[], object], line: str) -> None:
    prepare()
    with pytest.raises(UseError) as refused:
        Folder("pictures").info  # noqa: B018  (reading it is the test)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_path_that_cannot_be_written_in_a_name_is_refused() -> None:
    with pytest.raises(UseError, match="cannot be written in a name"):
        Npz("a,b.npz")


@pytest.mark.parametrize("dataset", ["npz(own.npz)", "folder(own)"])
def test_a_network_is_trained_on_one_s_own_images(dataset: str, command: Callable[..., Any]) -> None:
    images, labels = inputs(80)
    train, train_labels = inputs(60, seed=1)
    np.savez(
        "own.npz", x_test=images.numpy(), y_test=labels.numpy(), x_train=train.numpy(), y_train=train_labels.numpy()
    )
    for index, (image, label) in enumerate(zip(images.mul(255).byte().numpy(), labels.tolist(), strict=True)):
        place = Path(f"own/{'ab'[label]}/{index}.png")
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[0]).save(place)
    Path("short.toml").write_text(CONFIG)
    said = command(
        *("run", "--dataset", dataset, "--network", "small-cnn(width=2)", "--rejectors", "confidence"),
        *("--attacks", "pgd1", "--config", "short.toml", "--device", "cpu"),
    )
    assert said.code == 0, said.err
    rows = read_rows(Path("runs"))
    assert {(row.dataset, row.trained_as, row.status) for row in rows} == {(dataset, "pgd-at", "ok")}
    assert rows[0].n == (80 if dataset.startswith("npz") else 16)
    assert command("verify", "runs").out.splitlines()[-1].endswith("all confirmed")


def test_a_network_that_was_trained_on_what_is_measured_is_noted(command: Callable[..., Any]) -> None:
    images, labels = (each.numpy() for each in inputs(80))
    Path("short.toml").write_text(CONFIG)
    for count, noted in ((0, ""), (60, "the network was trained on 60 of the inputs that it is measured on")):
        train, train_labels = (each.numpy().copy() for each in inputs(60, seed=1))
        train[:count], train_labels[:count] = images[:count], labels[:count]
        apart, apart_labels = (each.numpy() for each in inputs(40, seed=2))
        split: dict[str, Any] = {"x_test": images, "y_test": labels, "x_train": train, "y_train": train_labels}
        np.savez(f"{count}.npz", **split, x_calibration=apart, y_calibration=apart_labels)
        said = command(
            *("run", "--dataset", f"npz({count}.npz)", "--network", "small-cnn(width=2)", "--frameworks", "standard"),
            *("--rejectors", "confidence", "--attacks", "clean", "--config", "short.toml", "--device", "cpu"),
            *("--out", str(count)),
        )
        assert said.code == 0, said.err
        (row,) = read_rows(Path(str(count)))
        assert ("trained on" in row.note) == bool(noted)
        assert noted in row.note


def test_large_images_go_in_small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(batching, "free_on_cpu", lambda: 64 * 2.0**30)
    assert batch_size(cpu, (1, 8, 8)) == 512
    assert batch_size(cpu, (1, 28, 28)) == 250  # 64 x 3072 values
    assert batch_size(cpu, (3, 32, 32)) == batch_size(cpu, (3, 64, 64)) == 64
    assert batch_size(cpu, (3, 224, 224)) == 10  # 512 / 49
    monkeypatch.setattr(batching, "free_on_cpu", lambda: 2.0 * 2**30)
    assert batch_size(cpu, (3, 224, 224)) == 2  # of 49 x 16 MiB each
    assert batch_size(cpu, (3, 1024, 1024)) == 1


def test_two_pairs_of_arrays_for_the_same_images_are_refused() -> None:
    images, labels = (each.numpy() for each in inputs(6))
    np.savez("both.npz", images=images, labels=labels, x_test=images, y_test=labels[::-1])
    with pytest.raises(UseError, match=r"^both\.npz has x_test and images, which are names of the same images"):
        Npz("both.npz").load("test", ())


def test_an_array_that_is_not_read_is_told() -> None:
    images, labels = (each.numpy() for each in inputs(6))
    np.savez("misspelt.npz", x_test=images, y_test=labels, x_trian=images, y_trian=labels)
    said = r"^misspelt\.npz: these arrays are not read: x_trian, y_trian; it has x_test, y_test$"
    with pytest.warns(UserWarning, match=said):
        assert Npz("misspelt.npz").splits == {"test"}
