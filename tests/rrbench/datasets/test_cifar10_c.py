"""CIFAR-10-C against small made-up files whose content is known, and against damaged ones."""

from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from made_up_cifar import TinyCifar10, content, refuse, write_npz
from rrbench.datasets import DATASETS
from rrbench.datasets.cifar10_c import Cifar10C, Corruption
from rrbench.errors import UseError
from rrbench.names import parse, resolve
from rrbench.protocols import Split


class TinyCifar10C(Cifar10C):
    clean = TinyCifar10()


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
    assert (TinyCifar10C("fog").info.test_size, TinyCifar10C("fog", severity=3).info.test_size) == (100, 20)


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
    assert Cifar10C("fog").uses_networks_of == "cifar10"


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
    assert refuse(TinyCifar10C("fog"), tmp_path).startswith(f"cannot read {folder / 'fog.npy'}: ")
    np.save(folder / "fog.npy", np.zeros((90, 32, 32, 3), np.uint8))
    assert "instead of 100" in refuse(TinyCifar10C("fog"), tmp_path)
    for name in ("fog.npy", "labels.npy"):
        (folder / name).write_text("<html>404</html>")
        assert refuse(TinyCifar10C("fog"), tmp_path) == f"cannot read {folder / name}: it is no .npy file"
