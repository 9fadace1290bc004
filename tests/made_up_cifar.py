"""Small made-up CIFAR files whose content is known, for the tests of data sets."""

import dataclasses
import hashlib
import io
import pickle
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from rrbench.datasets.check import check_batch
from rrbench.datasets.cifar import Cifar, Cifar10, Cifar100
from rrbench.errors import UseError
from rrbench.protocols import DataSource, Split

SPLITS: tuple[Split, ...] = ("train", "calibration", "test")


class TinyCifar10(Cifar10):
    layout = dataclasses.replace(Cifar10.layout, train=50, test=20, calibration=6, first_labels=())


class TinyCifar100(Cifar100):
    layout = dataclasses.replace(Cifar100.layout, train=200, test=100, calibration=6, content={})


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
    write_parts(source, arrays, write)


def write_parts(source: type[Cifar], arrays: dict[str, Any], write: Callable[[str, Any, Any], None]) -> None:
    """Hand every file's name, pixels and labels on, cut as the published archives are."""
    if source is TinyCifar100:
        write("train", arrays["x_train"], arrays["y_train"])
        write("test", arrays["x_test"], arrays["y_test"])
        return
    for number in range(5):
        part = slice(10 * number, 10 * number + 10)
        write(f"data_batch_{number + 1}", arrays["x_train"][part], arrays["y_train"][part])
    write("test_batch", arrays["x_test"], arrays["y_test"])


def sorted_by_content(arrays: dict[str, Any]) -> dict[str, Any]:
    """Sort as CIFAR-100 is: by the SHA-256 of an image's bytes, channels last, then by its label."""
    found = {}
    for part in ("train", "test"):
        pairs = zip(arrays[f"x_{part}"], arrays[f"y_{part}"], strict=True)
        ordered = sorted(pairs, key=lambda pair: (hashlib.sha256(pair[0].tobytes()).hexdigest(), int(pair[1])))
        found[f"x_{part}"] = np.stack([image for image, _ in ordered])
        found[f"y_{part}"] = np.array([label for _, label in ordered])
    return found


def assert_holds(source: DataSource, root: Path, arrays: dict[str, Any]) -> None:
    if isinstance(source, Cifar100):
        arrays = sorted_by_content(arrays)
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


def refuse(source: DataSource, root: Path, split: Split = "test") -> str:
    with pytest.raises(UseError) as caught:
        source.load(split, (root,))
    assert "\n" not in str(caught.value)
    return str(caught.value)
