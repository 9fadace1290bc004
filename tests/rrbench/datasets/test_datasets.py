"""Data sets against small made-up files whose content is known, and against damaged ones."""

import dataclasses
import hashlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from made_up_cifar import (
    TinyCifar10,
    TinyCifar100,
    assert_holds,
    content,
    planes,
    python2_pickle,
    refuse,
    sorted_by_content,
    write_npz,
    write_parts,
    write_pickled,
)
from rrbench.datasets.cifar import Cifar, Cifar10, Cifar100, Content
from rrbench.datasets.forms import PARTS, Part
from rrbench.datasets.search import roots
from rrbench.errors import UseError


def write_binary(source: type[Cifar], folder: Path, arrays: dict[str, Any]) -> None:
    def write(name: str, pixels: Any, labels: Any) -> None:
        coarse = [labels % 20] if source is TinyCifar100 else []
        columns = [*coarse, labels]
        packed = np.column_stack([*columns, planes(pixels)]).astype(np.uint8).tobytes()
        (folder / f"{name}.bin").write_bytes(packed)

    folder.mkdir(exist_ok=True)
    write_parts(source, arrays, write)


# CIFAR in its three forms


@pytest.mark.parametrize("source", [TinyCifar10, TinyCifar100])
@pytest.mark.parametrize("form", ["pickled", "binary", "npz"])
@pytest.mark.parametrize("in_root_itself", [False, True])
def test_all_forms_give_identical_tensors(source: type[Cifar], form: str, in_root_itself: bool, tmp_path: Path) -> None:
    arrays = content(source)
    pickled, binary, _ = source.layout.forms
    if form == "pickled":
        write_pickled(source, tmp_path if in_root_itself else tmp_path / pickled.folder, arrays)
    elif form == "binary":
        write_binary(source, tmp_path if in_root_itself else tmp_path / binary.folder, arrays)
    else:
        write_npz(source, tmp_path, arrays)
    assert_holds(source(), tmp_path, arrays)


def test_the_order_of_cifar100_is_its_content_s_whatever_order_was_read(tmp_path: Path) -> None:
    arrays = content(TinyCifar100)
    arrays["x_test"][1] = arrays["x_test"][0]  # twice, under two labels
    assert arrays["y_test"][0] != arrays["y_test"][1]
    random = np.random.default_rng(1)
    read = []
    for shuffle in (False, True):
        (root := tmp_path / str(shuffle)).mkdir()
        orders = {part: random.permutation(len(arrays[f"y_{part}"])) for part in ("train", "test")}
        shuffled = {name: array[orders[name[2:]]] if shuffle else array for name, array in arrays.items()}
        write_npz(TinyCifar100, root, shuffled)
        read.append([TinyCifar100().load(split, (root,)) for split in ("train", "test", "calibration")])
    for one, other in zip(*read, strict=True):
        assert all(torch.equal(first, second) for first, second in zip(one, other, strict=True))
    assert_holds(TinyCifar100(), tmp_path / "True", arrays)


def test_images_that_are_not_the_published_ones_are_found_by_their_hash(tmp_path: Path) -> None:
    arrays = content(TinyCifar100)
    write_npz(TinyCifar100, tmp_path, arrays)
    ordered = sorted_by_content(arrays)

    def hashed(array: Any) -> str:
        return hashlib.sha256(array.astype(np.uint8).tobytes()).hexdigest()

    hashes: dict[Part, Content] = {
        part: Content(hashed(ordered[f"x_{part}"]), hashed(ordered[f"y_{part}"])) for part in PARTS
    }

    class Published(TinyCifar100):
        layout = dataclasses.replace(TinyCifar100.layout, content=hashes)

    assert Published.inspect((tmp_path,)) == "200 train and 100 test images, 100 classes"
    write_npz(TinyCifar100, tmp_path, arrays | {"x_test": arrays["x_test"] ^ 1})
    with pytest.raises(UseError, match="its test images or labels are not the published ones"):
        Published.inspect((tmp_path,))
    write_npz(TinyCifar100, tmp_path, arrays | {"y_train": (arrays["y_train"] + 7) % 100})
    with pytest.raises(UseError, match="its train images or labels are not the published ones"):
        Published.inspect((tmp_path,))


def test_a_folder_pickled_by_python_3_and_numpy_2_is_read_too(tmp_path: Path) -> None:
    arrays = content(TinyCifar10)
    write_pickled(TinyCifar10, tmp_path, arrays, dump=lambda value: pickle.dumps(value, protocol=4))
    assert_holds(TinyCifar10(), tmp_path, arrays)


def test_an_array_in_fortran_order_keeps_its_pixels(tmp_path: Path) -> None:
    arrays = content(TinyCifar10)

    def dump(value: object) -> bytes:
        assert isinstance(value, dict)
        return python2_pickle({**value, b"data": np.asfortranarray(value[b"data"])})

    write_pickled(TinyCifar10, tmp_path, arrays, dump)
    assert_holds(TinyCifar10(), tmp_path, arrays)


def test_npz_labels_in_one_column_are_read_as_labels(tmp_path: Path) -> None:
    arrays = content(TinyCifar10)
    write_npz(TinyCifar10, tmp_path, {**arrays, "y_test": arrays["y_test"][:, None]})
    assert TinyCifar10().load("test", (tmp_path,)).labels.tolist() == arrays["y_test"].tolist()


def test_the_first_root_that_has_the_data_wins(tmp_path: Path) -> None:
    first, second = content(TinyCifar10), content(TinyCifar10)
    second["y_test"] = second["y_test"][::-1].copy()
    for name, arrays in (("a", first), ("b", second)):
        (tmp_path / name).mkdir()
        write_npz(TinyCifar10, tmp_path / name, arrays)
    order = (tmp_path / "none", tmp_path / "b", tmp_path / "a")
    assert TinyCifar10().load("test", order).labels.tolist() == second["y_test"].tolist()


def test_cifar_constants_are_those_of_the_paper() -> None:
    assert Cifar100.info.mean == Cifar10.info.mean == (0.4914, 0.4822, 0.4465)
    assert Cifar100.info.std == Cifar10.info.std == (0.2471, 0.2435, 0.2616)
    assert (Cifar10.info.pad, Cifar10.info.flip, Cifar100.info.classes) == (4, True, 100)
    assert (Cifar10.layout.train, Cifar10.layout.test, Cifar10.layout.calibration) == (50_000, 10_000, 1_000)


# what is refused


def test_a_missing_data_set_says_where_it_looked_and_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(UseError) as caught:
        Cifar10().load("test", (tmp_path / "a", tmp_path / "b"))
    for part in (str(tmp_path / "a"), str(tmp_path / "b"), "rrbench data get cifar10", "--data-dir", "RRBENCH_DATA"):
        assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("size", [0, 1, 3073 * 10 - 1, 3073 * 9, 3073 * 11])
def test_a_binary_file_of_the_wrong_size_is_named(size: int, tmp_path: Path) -> None:
    write_binary(TinyCifar10, tmp_path, content(TinyCifar10))
    damaged = tmp_path / "data_batch_3.bin"
    damaged.write_bytes((damaged.read_bytes() * 2)[:size])
    assert str(damaged) in refuse(TinyCifar10(), tmp_path, "train")


def test_a_missing_file_of_a_folder_is_named(tmp_path: Path) -> None:
    write_binary(TinyCifar10, tmp_path, content(TinyCifar10))
    (tmp_path / "data_batch_4.bin").unlink()
    assert refuse(TinyCifar10(), tmp_path, "train") == f"{tmp_path / 'data_batch_4.bin'} is missing"


def test_labels_out_of_range_are_refused_in_every_form(tmp_path: Path) -> None:
    arrays = content(TinyCifar10)
    arrays["y_test"][3] = 10
    for name, write in (("pickled", write_pickled), ("binary", write_binary)):
        write(TinyCifar10, tmp_path / name, arrays)
        assert "0..10 instead of 0..9" in refuse(TinyCifar10(), tmp_path / name)
    (tmp_path / "npz").mkdir()
    write_npz(TinyCifar10, tmp_path / "npz", arrays)
    assert "0..10 instead of 0..9" in refuse(TinyCifar10(), tmp_path / "npz")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x_test": np.zeros((20, 32, 32, 3), np.float32)}, "float32"),
        ({"x_test": np.zeros((20, 28, 28), np.uint8)}, "(20, 28, 28)"),
        ({"x_test": np.zeros((20, 3, 32, 32), np.uint8)}, "(20, 32, 3, 32)"),
        ({"x_test": np.zeros((19, 32, 32, 3), np.uint8)}, "19 images"),
        ({"y_test": np.zeros(20)}, "float64"),
        ({"y_test": np.zeros((20, 10), np.int64)}, "200 labels"),
        ({"y_test": np.full(20, None)}, "it holds Python objects, which are not read"),
    ],
)
def test_an_npz_of_something_else_is_refused(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    path = write_npz(TinyCifar10, tmp_path, {**content(TinyCifar10), **changes})
    message = refuse(TinyCifar10(), tmp_path)
    assert str(path) in message
    assert reason in message


def test_a_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = write_npz(TinyCifar10, tmp_path, content(TinyCifar10))
    path.write_bytes(path.read_bytes()[:5000])
    assert str(path) in refuse(TinyCifar10(), tmp_path)
    path.write_text("<html>404</html>")
    assert refuse(TinyCifar10(), tmp_path) == f"cannot read {path}: it is no .npz file"
    np.savez(path, images=np.zeros(3))
    assert "x_test" in refuse(TinyCifar10(), tmp_path)


# roots


def test_roots_are_the_option_then_the_environment_then_the_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    cache = tmp_path / ".cache" / "rrbench" / "data"
    monkeypatch.delenv("RRBENCH_DATA", raising=False)
    assert roots(None) == (cache,)
    monkeypatch.setenv("RRBENCH_DATA", "~/mine")
    assert roots(None) == (tmp_path / "mine", cache)
    assert roots(Path("here")) == (Path("here"), tmp_path / "mine", cache)
    assert roots(tmp_path / "mine") == (tmp_path / "mine", cache)
