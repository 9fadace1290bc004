"""Corruptions that are made: whole or not at all, the same by any number of threads, never taken for the published."""

import dataclasses
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from made_up_cifar import TinyCifar10, content, refuse, write_npz
from rrbench.datasets.check import fingerprint
from rrbench.datasets.cifar10_c import Cifar10C, Corrupted
from rrbench.datasets.cifar10_c_made import FOLDER, Cifar10CMade, read_mark
from rrbench.datasets.corruptions import corrupt, making
from rrbench.datasets.corruptions.frost_pictures import photographs
from rrbench.errors import FileError, UseError
from rrbench.progress import Silent

TEN = [name for name in Cifar10CMade.corruptions if name != "frost_texture"]
WITHOUT_PHOTOGRAPHS = [name for name in Cifar10CMade.corruptions if name != "frost"]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Corrupted, "clean", TinyCifar10())


def make(root: Path, frost: Path | None = None, threads: int = 2) -> making.Result:
    if not (root / "cifar10.npz").exists():
        root.mkdir(exist_ok=True)
        write_npz(TinyCifar10, root, content(TinyCifar10))
    return making.make(root, (root,), frost, threads, Silent())


@pytest.fixture(scope="session")
def frost(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("frost")
    for name in ("one.png", "two.jpg"):
        pixels = np.random.default_rng(len(name)).integers(0, 256, (200, 180, 3), np.uint8)
        Image.fromarray(pixels).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, frost: Path) -> Path:
    """Return a data folder with all ten corruptions, to be copied before it is changed."""
    root = tmp_path_factory.mktemp("data")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Corrupted, "clean", TinyCifar10())
        make(root, frost)
    return root


@pytest.fixture
def own(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "own"))


def only(name: str) -> Callable[..., Any]:
    """Return `corrupt` that leaves every image as it is but under one corruption, to save time."""
    return lambda each, severity, images, *rest: corrupt(each, severity, images, *rest) if each == name else images


def test_every_severity_is_its_corruption_of_the_clean_images(made: Path, frost: Path) -> None:
    arrays = content(TinyCifar10)
    for name in TEN:
        expected = [
            corrupt(name, severity, arrays["x_test"], np.arange(20), 0, photographs(frost, 32))
            for severity in range(1, 6)
        ]
        whole = Cifar10CMade(name).load("test", (made,))
        assert torch.equal(whole.images, torch.from_numpy(np.concatenate(expected)).permute(0, 3, 1, 2) / 255)
        assert whole.images.is_contiguous()
        assert whole.labels.tolist() == np.tile(arrays["y_test"], 5).tolist()
        assert whole.ids.tolist() == list(range(20)) * 5
        third = Cifar10CMade(name, 3).load("test", (made,))
        for part, of_whole in zip(third, whole.at(slice(40, 60)), strict=True):
            assert torch.equal(part, of_whole)


def test_training_and_calibration_images_are_those_of_cifar10(made: Path) -> None:
    lent, own = (source.load("calibration", (made,)) for source in (Cifar10CMade("fog"), TinyCifar10()))
    assert torch.equal(lent.images, own.images)
    assert Cifar10CMade("fog").uses_networks_of == "cifar10"


def test_the_number_of_threads_changes_no_byte(
    made: Path, frost: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "AT_ONCE", 7)
    make(tmp_path, frost, threads=3)
    for name in TEN:
        assert (tmp_path / FOLDER / f"{name}.npz").read_bytes() == (made / FOLDER / f"{name}.npz").read_bytes()


def test_what_is_there_is_not_made_again(own: Path, frost: Path) -> None:
    (own / FOLDER / "fog.npz").unlink()
    (left := own / FOLDER / ".fog.npz.killed.ended").mkdir()  # of a killed command
    before = {path: path.stat().st_mtime_ns for path in (own / FOLDER).glob("*.npz")}
    result = make(own, frost)
    assert not left.exists()
    assert (result.made, result.kept) == (["fog"], [name for name in TEN if name != "fog"])
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())
    assert make(own, frost).made == []


def test_without_photographs_frost_is_a_texture_and_has_another_name(
    own: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "corrupt", only("frost_texture"))
    result = make(tmp_path / "new")
    assert result.made == WITHOUT_PHOTOGRAPHS
    assert "texture" in result.frost
    assert refuse(Cifar10CMade("frost"), tmp_path / "new").endswith("frost.npz is missing")
    drawn = Cifar10CMade("frost_texture", 3).load("test", (tmp_path / "new",))
    real = Cifar10CMade("frost", 3).load("test", (own,))
    assert fingerprint(drawn) != fingerprint(real)
    # Both may be in one folder, each under its own name; the others are the same.
    assert make(own).made == ["frost_texture"]
    assert fingerprint(Cifar10CMade("frost_texture", 3).load("test", (own,))) == fingerprint(drawn)
    (own / FOLDER / "frost_texture.npz").rename(own / FOLDER / "frost.npz")
    assert refuse(Cifar10CMade("frost"), own).endswith("it says that it is cifar10-c-made(frost_texture)")


def test_a_file_made_of_other_things_is_neither_kept_nor_overwritten(own: Path, frost: Path, tmp_path: Path) -> None:
    def refused(photographs: Path) -> str:
        before = (own / FOLDER / "frost.npz").read_bytes()
        with pytest.raises(UseError, match="move it away") as caught:
            make(own, photographs)
        assert (own / FOLDER / "frost.npz").read_bytes() == before
        return str(caught.value)

    other = Path(shutil.copytree(frost, tmp_path / "other"))
    (other / "one.png").unlink()
    assert refused(other).startswith(str(own / FOLDER / "frost.npz"))
    arrays = content(TinyCifar10)
    write_npz(TinyCifar10, own, arrays | {"x_test": arrays["x_test"] ^ 1})
    assert refused(frost).startswith(str(own / FOLDER / "glass_blur.npz"))


def test_an_interrupted_make_leaves_whole_files_only_and_goes_on(
    tmp_path: Path, frost: Path, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = only("zoom_blur")

    def interrupted(name: str, *rest: Any) -> Any:
        if name == "zoom_blur" and rest[0] == 3:
            raise KeyboardInterrupt
        return work(name, *rest)

    monkeypatch.setattr(making, "corrupt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make(tmp_path, frost)
    assert sorted(path.name for path in (tmp_path / FOLDER).iterdir()) == ["glass_blur.npz", "motion_blur.npz"]
    monkeypatch.setattr(making, "corrupt", work)
    assert make(tmp_path, frost).kept == ["glass_blur", "motion_blur"]
    name = "zoom_blur.npz"
    assert (tmp_path / FOLDER / name).read_bytes() == (made / FOLDER / name).read_bytes()


def test_missing_images_and_a_folder_that_cannot_be_written_are_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UseError, match="rrbench data get cifar10"):
        making.make(tmp_path, (tmp_path,), None, 1, Silent())
    monkeypatch.setattr(making, "corrupt", lambda *_: pytest.fail("worked first"))
    write_npz(TinyCifar10, tmp_path, content(TinyCifar10))
    (tmp_path / FOLDER).write_text("")
    with pytest.raises(FileError, match="cannot write"):
        make(tmp_path)


# made and published


def publish(root: Path, folder: str = "CIFAR-10-C") -> Any:
    pixels = np.random.default_rng(1).integers(0, 256, (100, 32, 32, 3), np.uint8)
    (root / folder).mkdir(parents=True, exist_ok=True)
    np.save(root / folder / "fog.npy", pixels)
    np.save(root / folder / "labels.npy", np.tile(content(TinyCifar10)["y_test"], 5))
    return pixels


def test_side_by_side_each_name_reads_its_own_files(own: Path) -> None:
    pixels = publish(own)
    published, made = (source.load("test", (own,)) for source in (Cifar10C("fog"), Cifar10CMade("fog")))
    assert torch.equal(published.images, torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255)
    assert fingerprint(published) != fingerprint(made)


@pytest.mark.parametrize("folder", ["CIFAR-10-C", "CIFAR10-C"])
def test_a_made_folder_is_never_read_as_the_published_one(own: Path, folder: str) -> None:
    assert "cifar10-c is not in" in refuse(Cifar10C("fog"), own)
    (own / FOLDER).rename(own / folder)
    assert "cifar10-c is not in" in refuse(Cifar10C("fog"), own)
    publish(own, folder)
    (own / folder / "fog.npz").replace(own / folder / "fog.npy")
    assert "it is no published file" in refuse(Cifar10C("fog"), own)


def test_a_published_folder_is_never_read_as_a_made_one(own: Path) -> None:
    publish(own, FOLDER)
    (own / FOLDER / "fog.npy").replace(own / FOLDER / "fog.npz")
    assert "did not make it" in refuse(Cifar10CMade("fog"), own)
    images: dict[str, Any] = {f"severity{number}": np.zeros((20, 32, 32, 3), np.uint8) for number in range(1, 6)}
    np.savez(own / FOLDER / "fog.npz", labels=np.zeros(20, np.uint8), **images)
    assert "it has no mark" in refuse(Cifar10CMade("fog"), own)


def spoiled(name: str, value: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda arrays: {**arrays, name: value}


def marked(**changes: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda arrays: {**arrays, "mark": np.array(json.dumps(json.loads(str(arrays["mark"])) | changes))}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (spoiled("mark", np.array("{")), "cannot read"),
        (spoiled("mark", np.array("[]")), "its mark is none of this version"),
        (marked(seed="0"), "its mark is none of this version"),
        (marked(more=1), "its mark is none of this version"),
        (marked(made="cifar10-c"), r"it says that it is cifar10-c\(fog\)"),
        (marked(corruption="snow"), r"it says that it is cifar10-c-made\(snow\)"),
        (marked(revision=0), "revision 0 made it, now it is 1"),
        (spoiled("severity3", np.zeros((19, 32, 32, 3), np.uint8)), "19 images and 20 labels instead of 20"),
        (spoiled("severity3", np.zeros((20, 32, 32, 3))), "float64"),
        (spoiled("severity3", np.zeros(3, np.uint8)), "cannot read"),
        (spoiled("labels", np.full(20, 10)), r"0\.\.9"),
    ],
)
def test_a_changed_file_is_refused_in_one_line(
    own: Path, change: Callable[[dict[str, Any]], dict[str, Any]], reason: str
) -> None:
    path = own / FOLDER / "fog.npz"
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    np.savez(path, **change(arrays))
    message = refuse(Cifar10CMade("fog"), own)
    assert str(path) in message
    with pytest.raises(UseError, match=reason):
        Cifar10CMade.inspect((own,))


def test_an_elastic_transform_made_before_its_bytes_changed_is_refused_and_the_others_stay(
    own: Path, frost: Path
) -> None:
    """Only its file has another revision: the data set's is in the keys of published rows."""
    assert {name: read_mark(own / FOLDER / f"{name}.npz").revision for name in TEN} == {
        name: 2 if name == "elastic_transform" else 1 for name in TEN
    }
    assert Cifar10CMade.revision == 1
    path = own / FOLDER / "elastic_transform.npz"
    with np.load(path, allow_pickle=False) as file:
        arrays = dict(file)
    np.savez(path, **marked(revision=1)(arrays))
    told = (
        f"cannot read {path}: revision 1 made it, now it is 2: delete it and run `rrbench data make cifar10-c`; "
        "`rrbench verify` of a work folder then names the rows measured on it"
    )
    assert refuse(Cifar10CMade("elastic_transform"), own) == told
    with pytest.raises(UseError, match="revision 1 made it"):
        Cifar10CMade.inspect((own,))
    with pytest.raises(UseError, match="by another version; move it away, then make it again"):
        make(own, frost)
    path.unlink()
    assert make(own, frost).made == ["elastic_transform"]
    assert Cifar10CMade("elastic_transform").load("test", (own,)).size == 100


@pytest.mark.parametrize("cut", [lambda content: content[:-1000], lambda _: b"<html>", lambda _: b""])
def test_a_truncated_file_or_another_one_is_refused(own: Path, cut: Callable[[bytes], bytes]) -> None:
    path = own / FOLDER / "fog.npz"
    path.write_bytes(cut(path.read_bytes()))
    message = refuse(Cifar10CMade("fog"), own)
    assert message.startswith(f"cannot read {path}: ")
    assert message.endswith("it is no .npz file")


def test_inspection_finds_files_that_were_made_from_other_images(own: Path) -> None:
    assert Cifar10CMade.inspect((own,)) == f"{', '.join(TEN)}; made, not the published files"
    arrays = content(TinyCifar10)
    write_npz(TinyCifar10, own, arrays | {"x_test": arrays["x_test"] ^ 1})
    with pytest.raises(UseError, match=r"glass_blur.npz was made from other images than those in"):
        Cifar10CMade.inspect((own,))
    (own / "cifar10.npz").unlink()
    assert Cifar10CMade.inspect((own,)).startswith("glass_blur")


def test_a_file_says_what_it_was_made_of(made: Path) -> None:
    mark = read_mark(made / FOLDER / "fog.npz")
    assert (mark.made, mark.corruption, mark.seed, mark.pictures_sha256) == ("cifar10-c-made", "fog", 0, "")
    assert "scikit-image" in mark.packages
    assert mark.is_same(dataclasses.replace(mark, packages="others"))
    assert read_mark(made / FOLDER / "frost.npz").pictures_sha256


def test_unknown_corruptions_and_severities_are_refused() -> None:
    with pytest.raises(UseError, match="near: frost"):
        Cifar10CMade("frosty")  # type: ignore[arg-type]
    with pytest.raises(UseError, match="unknown corruption 'gaussian_noise'"):
        Cifar10CMade("gaussian_noise")  # type: ignore[arg-type]
    for severity in (0, 6):
        with pytest.raises(UseError, match="cifar10-c-made has severities 1 to 5"):
            Cifar10CMade("fog", severity)


def test_a_data_folder_without_it_says_how_to_make_it(tmp_path: Path) -> None:
    assert "rrbench data make cifar10-c" in refuse(Cifar10CMade("fog"), tmp_path)


def test_reading_needs_none_of_the_packages_that_make(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] in ("skimage", "PIL")]:
        monkeypatch.setitem(sys.modules, name, None)
    assert Cifar10CMade("fog").load("test", (made,)).size == 100
