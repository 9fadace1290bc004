"""Data sets against small made-up files whose content is known, and against damaged and hostile ones."""

import dataclasses
import io
import os
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, get_args

import numpy as np
import pytest
import torch

from rrbench.datasets import DATASETS
from rrbench.datasets.check import check_batch
from rrbench.datasets.cifar import Cifar, Cifar10, Cifar100
from rrbench.datasets.cifar10_c import Cifar10C, Corruption
from rrbench.datasets.search import roots
from rrbench.errors import UseError
from rrbench.names import parse, resolve
from rrbench.protocols import DataSource, Split

SPLITS: tuple[Split, ...] = ("train", "calibration", "test")


class TinyCifar10(Cifar10):
    layout = dataclasses.replace(Cifar10.layout, train=50, test=20, calibration=6, first_labels=())


class TinyCifar100(Cifar100):
    layout = dataclasses.replace(Cifar100.layout, train=200, test=100, calibration=6)


class TinyCifar10C(Cifar10C):
    clean = TinyCifar10()


def content(source: type[Cifar]) -> dict[str, Any]:
    """Return made-up pixels, channels last, with every class equally often."""
    random = np.random.default_rng(5)
    layout = source.layout
    return {
        "x_train": random.integers(0, 256, (layout.train, 32, 32, 3), np.uint8),
        "y_train": random.permutation(layout.train) % layout.classes,
        "x_test": random.integers(0, 256, (layout.test, 32, 32, 3), np.uint8),
        "y_test": random.permutation(layout.test) % layout.classes,
    }


def planes(pixels: Any) -> Any:
    return np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).reshape(len(pixels), -1)


def write_npz(source: type[Cifar], root: Path, arrays: dict[str, Any]) -> Path:
    np.savez(root / f"{source.layout.name}.npz", **arrays)
    return root / f"{source.layout.name}.npz"


def write_binary(source: type[Cifar], folder: Path, arrays: dict[str, Any]) -> None:
    def write(name: str, pixels: Any, labels: Any) -> None:
        coarse = [labels % 20] if source is TinyCifar100 else []
        columns = [*coarse, labels]
        (folder / name).write_bytes(np.column_stack([*columns, planes(pixels)]).astype(np.uint8).tobytes())

    folder.mkdir(exist_ok=True)
    if source is TinyCifar100:
        write("train.bin", arrays["x_train"], arrays["y_train"])
        write("test.bin", arrays["x_test"], arrays["y_test"])
        return
    for number in range(5):
        part = slice(10 * number, 10 * number + 10)
        write(f"data_batch_{number + 1}.bin", arrays["x_train"][part], arrays["y_train"][part])
    write("test_batch.bin", arrays["x_test"], arrays["y_test"])


def python2_pickle(value: object) -> bytes:
    """Pickle as Python 2 did for the published files: str for bytes, numpy's module under its old name."""

    class Pickler(pickle._Pickler):
        dispatch: ClassVar[dict[type, Any]] = dict(pickle._Pickler.dispatch)

        def save_string(self, text: bytes | str) -> None:
            raw = text if isinstance(text, bytes) else text.encode("latin1")
            self.write(pickle.BINSTRING + struct.pack("<i", len(raw)) + raw)  # type: ignore[attr-defined]

        dispatch[bytes] = dispatch[str] = save_string

    file = io.BytesIO()
    Pickler(file, 2).dump(value)
    return file.getvalue().replace(b"cnumpy._core.multiarray\n", b"cnumpy.core.multiarray\n")


def write_pickled(
    source: type[Cifar], folder: Path, arrays: dict[str, Any], dump: Callable[[object], bytes] = python2_pickle
) -> None:
    key = b"fine_labels" if source is TinyCifar100 else b"labels"

    def write(name: str, pixels: Any, labels: Any) -> None:
        entry = {b"batch_label": b"made up", key: labels.tolist(), b"data": planes(pixels), b"filenames": [b"a.png"]}
        (folder / name).write_bytes(dump(entry))

    folder.mkdir(exist_ok=True)
    if source is TinyCifar100:
        write("train", arrays["x_train"], arrays["y_train"])
        write("test", arrays["x_test"], arrays["y_test"])
        return
    for number in range(5):
        part = slice(10 * number, 10 * number + 10)
        write(f"data_batch_{number + 1}", arrays["x_train"][part], arrays["y_train"][part])
    write("test_batch", arrays["x_test"], arrays["y_test"])


def assert_holds(source: DataSource, root: Path, arrays: dict[str, Any]) -> None:
    for split in SPLITS:
        batch = source.load(split, (root,))
        part, start = ("train", 0) if split == "train" else ("test", 0 if split == "test" else -6)
        pixels, labels = arrays[f"x_{part}"][start:], arrays[f"y_{part}"][start:]
        expected = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
        assert torch.equal(batch.images, expected)
        assert batch.images.dtype == torch.float32
        assert batch.images.is_contiguous()
        assert batch.labels.tolist() == labels.tolist()
        first = len(arrays[f"y_{part}"]) - len(labels)
        assert batch.ids.tolist() == list(range(first, first + len(labels)))
        check_batch(batch, source.info.classes, "made-up data")


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


def refuse(source: DataSource, root: Path, split: Split = "test") -> str:
    with pytest.raises(UseError) as caught:
        source.load(split, (root,))
    assert "\n" not in str(caught.value)
    return str(caught.value)


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
        ({"y_test": np.full(20, None)}, "allow_pickle"),
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
    assert str(path) in refuse(TinyCifar10(), tmp_path)
    np.savez(path, images=np.zeros(3))
    assert "x_test" in refuse(TinyCifar10(), tmp_path)


# hostile pickles


class Runs:
    """Unpickled the usual way, this creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.path}",)


def test_a_hostile_pickle_runs_nothing(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    hostile = pickle.dumps({b"data": Runs(trace), b"labels": [0] * 20})
    (tmp_path / "test_batch").write_bytes(hostile)
    assert "posix.system" in refuse(TinyCifar10(), tmp_path)
    assert not trace.exists()
    pickle.loads(hostile)
    assert trace.exists()  # the same bytes do run where nothing is restricted


@pytest.mark.parametrize(
    "name",
    [
        "builtins\neval",
        "builtins\ngetattr",
        "os\nsystem",
        "numpy\nload",
        "numpy.core.multiarray\nfromfile",
        "numpy._core.multiarray\n_reconstruct.__globals__",
        "rrbench.datasets.unpickle\nread_pickle",
        "copyreg\n_reconstructor",
    ],
)
def test_no_other_name_is_ever_looked_up(name: str, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(b"c" + name.encode() + b"\n(Vx\ntR.")
    assert name.replace("\n", ".") in refuse(TinyCifar10(), tmp_path)


def test_what_a_pickle_does_to_the_stand_ins_dies_with_it(tmp_path: Path) -> None:
    arrays = content(TinyCifar10)
    write_pickled(TinyCifar10, tmp_path, arrays)
    good = (tmp_path / "test_batch").read_bytes()
    # BUILD with slots on the class itself: sets ndarray.__setstate__ to 1.
    (tmp_path / "test_batch").write_bytes(b"cnumpy\nndarray\n(N}V__setstate__\nI1\nstb.")
    refuse(TinyCifar10(), tmp_path)
    (tmp_path / "test_batch").write_bytes(good)
    assert_holds(TinyCifar10(), tmp_path, arrays)


@pytest.mark.parametrize(
    "content_of_file",
    [
        b"",
        b"<html>404</html>",
        pickle.dumps([1, 2]),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8)}),
        pickle.dumps({b"data": b"x", b"labels": [0]}),
        pickle.dumps({b"data": np.zeros((20, 3072)), b"labels": [0] * 20}, protocol=4),
        pickle.dumps({b"data": np.full((20, 3072), None), b"labels": [0] * 20}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3071), np.uint8), b"labels": [0] * 20}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": ["a"] * 20}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": [[0], [1, 2]]}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": [0] * 19}, protocol=4),
        pickle.dumps({b"data": np.zeros((20, 3072), np.uint8), b"labels": [0] * 20}, protocol=4)[:-900],
    ],
)
def test_a_pickle_of_something_else_is_refused_in_one_line(content_of_file: bytes, tmp_path: Path) -> None:
    (tmp_path / "test_batch").write_bytes(content_of_file)
    assert str(tmp_path / "test_batch") in refuse(TinyCifar10(), tmp_path)


# CIFAR-10-C


def write_corrupted(root: Path, folder: str = "CIFAR-10-C") -> tuple[Any, Any]:
    pixels = np.random.default_rng(1).integers(0, 256, (100, 32, 32, 3), np.uint8)
    labels = np.tile(content(TinyCifar10)["y_test"], 5)
    (root / folder).mkdir()
    np.save(root / folder / "fog.npy", pixels)
    np.save(root / folder / "labels.npy", labels)
    return pixels, labels


@pytest.mark.parametrize("folder", ["CIFAR-10-C", "CIFAR10-C"])
def test_a_severity_is_its_share_of_the_file_and_none_is_all(folder: str, tmp_path: Path) -> None:
    pixels, labels = write_corrupted(tmp_path, folder)
    whole = TinyCifar10C("fog").load("test", (tmp_path,))
    assert torch.equal(whole.images, torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255)
    assert whole.images.is_contiguous()
    assert whole.labels.tolist() == labels.tolist()
    assert whole.ids.tolist() == list(range(20)) * 5
    third = TinyCifar10C("fog", severity=3).load("test", (tmp_path,))
    for part, of_whole in zip(third, whole.at(slice(40, 60)), strict=True):
        assert torch.equal(part, of_whole)


def test_training_and_calibration_images_come_from_cifar10(tmp_path: Path) -> None:
    write_corrupted(tmp_path)
    with pytest.raises(UseError, match="rrbench data get cifar10"):
        TinyCifar10C("fog").load("calibration", (tmp_path,))
    arrays = content(TinyCifar10)
    write_npz(TinyCifar10, tmp_path, arrays)
    splits: tuple[Split, ...] = ("train", "calibration")
    for split in splits:
        lent = TinyCifar10C("fog").load(split, (tmp_path,))
        assert torch.equal(lent.images, TinyCifar10().load(split, (tmp_path,)).images)
    assert Cifar10C("fog").trains_as == "cifar10"


def test_all_nineteen_corruptions_can_be_named() -> None:
    table = {name: kind for name, kind in DATASETS.items() if isinstance(kind, type)}
    assert len(set(get_args(Corruption))) == 19
    for name in get_args(Corruption):
        choice = resolve("data set", parse(f"cifar10-c({name},severity=2)"), table, {})
        assert str(choice) == f"cifar10-c({name},severity=2)"
        assert Cifar10C(**dict(choice.settings)) == Cifar10C(name, 2)  # type: ignore[arg-type]


def test_unknown_corruptions_and_severities_are_refused() -> None:
    with pytest.raises(UseError, match="near: fog"):
        Cifar10C("fogg")  # type: ignore[arg-type]
    for severity in (0, 6):
        with pytest.raises(UseError, match="1 to 5"):
            Cifar10C("fog", severity)


def test_damaged_corruption_files_are_named(tmp_path: Path) -> None:
    assert "CIFAR-10-C" in refuse(TinyCifar10C("fog"), tmp_path)
    write_corrupted(tmp_path)
    folder = tmp_path / "CIFAR-10-C"
    assert refuse(TinyCifar10C("snow"), tmp_path) == f"{folder / 'snow.npy'} is missing"
    whole = (folder / "fog.npy").read_bytes()
    (folder / "fog.npy").write_bytes(whole[:-1])
    assert str(folder / "fog.npy") in refuse(TinyCifar10C("fog"), tmp_path)
    np.save(folder / "fog.npy", np.full((100, 32, 32, 3), None))
    assert str(folder / "fog.npy") in refuse(TinyCifar10C("fog"), tmp_path)
    np.save(folder / "fog.npy", np.zeros((90, 32, 32, 3), np.uint8))
    assert "instead of 100" in refuse(TinyCifar10C("fog"), tmp_path)


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
