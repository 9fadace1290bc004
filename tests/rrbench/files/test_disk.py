import errno
import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rrbench.errors import FileError, UseError
from rrbench.files.disk import GRACE, HERE, parse_json, read_json, replacing, sha256, sweep, write_bytes, write_json


def test_a_file_is_written_into_folders_that_are_made(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "file.bin"
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o644
    assert os.listdir(path.parent) == ["file.bin"]


@pytest.mark.parametrize("step", ["fsync", "replace", "chmod"])
def test_a_write_that_fails_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "file.bin"
    write_bytes(path, b"old")

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, step, full)
    with pytest.raises(UseError, match=r"^cannot write \S+file\.bin: No space left on device$"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_an_interrupt_while_writing_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file.bin"
    write_bytes(path, b"old")

    def interrupted(handle: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file.bin"]


def test_the_new_content_is_on_the_disk_before_it_takes_the_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def noted_fsync(handle: int) -> None:
        fsync(handle)
        done.append("fsync")

    def noted_replace(old: str, new: Path) -> None:
        replace(old, new)
        done.append("replace")

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(os, "replace", noted_replace)
    write_bytes(tmp_path / "file.bin", b"new")
    assert done == ["fsync", "replace"]


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    # The tests may run as root, who may write anywhere: a file stands where the folder should.
    (tmp_path / "taken").write_text("a file")
    with pytest.raises(UseError, match=r"^cannot write [^\n]*rows\.csv: [^\n]+$"):
        write_bytes(tmp_path / "taken" / "rows.csv", b"new")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UseError, match=r"^cannot write [^\n]*folder: [^\n]+$"):
        write_bytes(tmp_path / "folder", b"new")
    assert sorted(os.listdir(tmp_path)) == ["folder", "taken"]


def test_json_comes_back_in_its_order_and_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "value.json"
    value = {"b": [1, 2.5, None, True], "a": "größer"}
    write_json(path, value)
    assert read_json(path) == value
    assert list(value) == list(dict(read_json(path)))  # type: ignore[call-overload]
    assert "größer" in path.read_text(encoding="utf-8")


def test_json_never_holds_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "value.json", {"a": float("nan")})
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe"])
def test_a_broken_json_file_is_named_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "value.json"
    path.write_bytes(content)
    with pytest.raises(UseError, match=r"^cannot read [^\n]*value\.json: [^\n]+$"):
        read_json(path)
    with pytest.raises(UseError, match=r"^cannot read [^\n]*missing\.json: [^\n]+$"):
        read_json(tmp_path / "missing.json")


@pytest.mark.parametrize("number", ["1e400", "-1e999", "NaN", "Infinity", "-Infinity"])
def test_a_number_that_is_not_finite_is_refused_in_one_line(tmp_path: Path, number: str) -> None:
    (tmp_path / "value.json").write_text(f'[{{"clean_accuracy": {number}}}]')
    with pytest.raises(UseError, match=rf"^cannot read [^\n]*value\.json: '{number}' is no finite number$"):
        read_json(tmp_path / "value.json")
    assert parse_json("[1e300, -2.5, 3]") == [1e300, -2.5, 3]


def test_the_hash_of_a_file_is_that_of_its_bytes(tmp_path: Path) -> None:
    content = bytes(range(256)) * 5000
    (tmp_path / "file.bin").write_bytes(content)
    assert sha256(tmp_path / "file.bin") == hashlib.sha256(content).hexdigest()
    with pytest.raises(FileError, match=r"^cannot read [^\n]*missing: No such file"):
        sha256(tmp_path / "missing")


WRITER = """
import sys, time
from pathlib import Path
from rrbench.files.disk import replacing
with replacing(Path(sys.argv[1])) as temporary:
    temporary.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


def test_the_temporary_folder_of_a_killed_writer_is_swept_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    other = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "writing\n"
    with replacing(path) as temporary:
        temporary.write_bytes(b"whole")
        sweep(tmp_path)
        assert len(os.listdir(tmp_path)) == 2, "both write still"
        other.kill()
        other.wait()
        sweep(tmp_path)
        assert os.listdir(tmp_path) == [temporary.parent.name]
    assert path.read_bytes() == b"whole"
    assert os.listdir(tmp_path) == ["file.bin"]


class Killed(BaseException):
    """Ends a writer on the spot, as SIGTERM does."""


@pytest.mark.parametrize("moment", ["rename", "unlink", "rmdir"])
def test_a_writer_that_is_killed_while_it_cleans_up_leaves_what_is_swept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    def die(*given: object, **more: object) -> None:
        raise Killed

    def write() -> None:
        with replacing(tmp_path / "file.bin") as temporary:
            temporary.write_bytes(b"whole")
            monkeypatch.setattr(os, moment, die)

    with pytest.raises(Killed):
        write()
    monkeypatch.undo()
    assert len(os.listdir(tmp_path)) == 2
    sweep(tmp_path)
    assert os.listdir(tmp_path) == ["file.bin"]


def test_only_what_writers_made_is_swept(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    stay = [".config", f".lockless.{HERE}.writing", ".elsewhere.0123abcd.writing", f".new.{HERE}.begun"]
    go = [f".died.{HERE}.writing", f".old.{HERE}.writing", ".old-elsewhere.0123abcd.writing"]
    go += [f".old.{HERE}.begun", f".done.{HERE}.ended", ".elsewhere.0123abcd.ended"]
    for folder in (outside, *(inside / name for name in stay + go)):
        folder.mkdir(parents=True)
    for name in (".config", ".elsewhere.0123abcd.writing", f".died.{HERE}.writing", ".old-elsewhere.0123abcd.writing"):
        (inside / name / "held").touch()  # by nobody
    (outside / "held").touch()
    (inside / f".link.{HERE}.writing").symlink_to(outside)
    (inside / f".file.{HERE}.writing").write_text("no folder")
    long_ago = time.time() - GRACE - 1
    for name in (".config", f".old.{HERE}.writing", f".old.{HERE}.begun", ".old-elsewhere.0123abcd.writing"):
        os.utime(inside / name, (long_ago, long_ago))
    sweep(inside)
    assert sorted(os.listdir(inside)) == sorted([*stay, f".file.{HERE}.writing", f".link.{HERE}.writing"])
    assert (outside / "held").is_file()
    sweep(tmp_path / "nowhere")


def test_without_locks_a_file_is_written_and_what_is_young_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("rrbench.files.disk.fcntl.flock", refuse)
    with replacing(tmp_path / "file.bin") as temporary:
        temporary.write_bytes(b"new")
        sweep(tmp_path)
    assert os.listdir(tmp_path) == ["file.bin"]
