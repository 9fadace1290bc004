"""Data files and pictures: any is accepted, or refused in one line."""

import io
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from fuzz_box import Box, mostly, tries
from hostile_values import archives, changed_bytes, changed_json
from made_up_cifar import TinyCifar10
from rrbench.datasets.check import check_batch
from rrbench.datasets.cifar10_c_made import FOLDER, Cifar10CMade, Mark
from rrbench.datasets.folder import Folder
from rrbench.datasets.npz import Npz
from rrbench.protocols import DataSource


class Little(Cifar10CMade):
    clean = TinyCifar10()


@given(data=st.data())
@tries(0.04)
def test_made_corruptions(box: Box, data: st.DataObject) -> None:
    mark = Mark(Little.name, "fog", Little.revision, 0, "", "", "")
    images = {f"severity{number}": np.zeros((20, 32, 32, 3), np.uint8) for number in (1, 2, 3, 4, 5)}
    text = data.draw(mostly(st.just(json.dumps(asdict(mark)).encode()), changed_json(asdict(mark))))
    there = {"mark": np.array(text.decode(errors="replace")), "labels": np.zeros(20, np.uint8), **images}
    path = box.inner / FOLDER / "fog.npz"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data.draw(archives(there)))
    with box.trying("made corruptions"):
        assert Little("fog").load("test", (box.inner,)).size == 100


IMAGES: dict[str, NDArray[Any]] = {
    "images": np.linspace(0, 1, 48, dtype=np.float32).reshape(3, 1, 4, 4),
    "labels": np.arange(3),
    "x_train": np.arange(192, dtype=np.uint8).reshape(12, 4, 4, 1),
    "y_train": np.arange(12) % 3,
}


@given(content=archives(IMAGES))
@tries(0.06)
def test_images_of_users(box: Box, content: bytes) -> None:
    Path("own.npz").write_bytes(content)
    with box.trying("own images"):
        _load_all(Npz("own.npz"))


def _load_all(source: DataSource) -> None:
    for split in source.splits:
        check_batch(source.load(split, ()), source.info.classes, split)
    assert len(source.content()) == 64


@given(data=st.data())
@tries(0.06)
def test_pictures_of_users(box: Box, data: st.DataObject) -> None:
    buffer = io.BytesIO()
    Image.fromarray(np.arange(192, dtype=np.uint8).reshape(8, 8, 3)).save(
        buffer, data.draw(st.sampled_from(("png", "jpeg", "tiff")))
    )
    shutil.rmtree("pictures", ignore_errors=True)
    for name in ("1", data.draw(st.sampled_from(("2", "cat", "20260101", ".hidden")))):
        for index in range(3):
            path = Path("pictures", name, f"{index}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(buffer.getvalue() if index else data.draw(changed_bytes(buffer.getvalue())))
    with box.trying("pictures"):
        _load_all(Folder("pictures", size=data.draw(st.sampled_from((None, 1, 5)))))
