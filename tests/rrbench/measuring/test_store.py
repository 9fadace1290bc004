"""The work folder: what is written comes back, half a file is never there, and a damaged one is one line."""

import csv
import dataclasses
import errno
import io
import json
import os
import pickle
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from rrbench.errors import UseError
from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.files.disk import read_json, sha256, write_bytes, write_json
from rrbench.measuring.store import Store
from rrbench.progress import Silent
from rrbench.rows.record import CellRecord
from rrbench.rows.row import ResultRow, read_rows


def row(**changes: Any) -> ResultRow:
    identity = ("digits", "small-cnn", "pgd-at", "pgd-at", "confidence", "clean", "", "", 0, "quick", 60)
    return dataclasses.replace(ResultRow(*identity), **changes)


def record(key: str, **changes: Any) -> CellRecord:
    return CellRecord(
        key,
        "attack",
        row(**changes),
        {"checkpoint": "c", "tpr_rule": "quantile", "resamples": 0, "eta": [0.1, 1]},
        {"scores/a.npz": "hash"},
    )


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UseError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store(tmp_path / "runs")
    made.prepare()
    return made


def test_a_cell_comes_back_as_it_was_saved(store: Store) -> None:
    saved = record("a", acc_all=100 / 3, auc=None, error='ü — "quoted", with a comma', deploy_threshold=1e-300)
    store.save_cell(saved)
    assert store.cell("a") == saved
    assert store.cells() == [(saved, saved.row_sha256())]
    assert store.cell("b") is None


def test_every_field_of_a_row_enters_its_hash() -> None:
    plain = record("a").row_sha256()
    for field in dataclasses.fields(ResultRow):
        value = getattr(row(), field.name)
        other = 1 if value is None else value + 1 if isinstance(value, int) else f"{value}x"
        assert record("a", **{field.name: other}).row_sha256() != plain, field.name


def test_the_csv_is_rebuilt_from_the_cells_in_a_fixed_order(store: Store) -> None:
    wanted = [
        row(rejector="confidence"),
        row(rejector="confidence", attack="pgd10", norm="l2", eps="1/2"),
        row(rejector="confidence", attack="pgd10", norm="linf", eps="8/255"),
        row(rejector="confidence", attack="pgd10", norm="linf", eps="3/20"),
        row(rejector="confidence", attack="pgd10", norm="linf", eps="1"),
        row(rejector="confidence", seed=1),
        row(rejector="rr", acc_all=12.5),
    ]
    for key, each in zip("gfedcba", wanted, strict=True):
        store.save_cell(dataclasses.replace(record(key), row=each))
    store.rebuild_rows(Silent())
    assert read_rows(store.root) == wanted
    with (store.root / "rows.csv").open(newline="") as file:
        assert next(csv.reader(file))[:5] == ["dataset", "network", "framework", "trained_as", "rejector"]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '"text"', "null", "{}", '{"row_sha256": "x", "row": {"unknown": 1}}', '{"row_sha256": "x"}'],
)
def test_a_corrupt_cell_file_is_one_line_that_names_it(store: Store, content: str) -> None:
    store.save_cell(record("a"))
    (store.root / "cells" / "a.json").write_text(content)
    assert "a.json" in refusal(lambda: store.cell("a"))
    assert "a.json" in refusal(lambda: store.rebuild_rows(Silent()))


@pytest.mark.parametrize("content", ["", "[]", "3", "{}", '{"runs": 3}', "\x00\xff"])
def test_a_corrupt_manifest_is_one_line_that_names_it(store: Store, content: str) -> None:
    (store.root / "manifest.json").write_text(content, encoding="latin-1")
    assert "manifest.json" in refusal(lambda: store.add_to_manifest({"command": "x"}, Silent()))


@pytest.mark.parametrize("compress", [False, True])
def test_arrays_come_back_bit_by_bit_with_the_files_hash(tmp_path: Path, compress: bool) -> None:
    arrays = {
        "certainty": np.array([np.nan, -np.inf, 1e-300, 0.1]),
        "labels": np.arange(4),
        "own_threshold": np.asarray(0.5),
        "clean_correct": np.array([True, False, True, True]),
        "nothing": np.zeros((4, 0), dtype=np.float32),
    }
    path = tmp_path / "a.npz"
    assert save_arrays(path, arrays, compress=compress) == sha256(path)
    back = load_arrays(path)
    assert back.keys() == arrays.keys()
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        np.testing.assert_array_equal(back[name], array)


@pytest.mark.parametrize("compress", [False, True])
def test_an_array_file_damaged_anywhere_is_one_line_or_still_whole(tmp_path: Path, compress: bool) -> None:
    arrays = {"a": np.random.default_rng(0).normal(size=(40, 10)), "b": np.arange(50)}
    path = tmp_path / "a.npz"
    save_arrays(path, arrays, compress=compress)
    content = path.read_bytes()
    for position in range(0, len(content), 37):
        for damaged in (content[:position], content[:position] + b"\xa5\x5a" + content[position + 2 :]):
            path.write_bytes(damaged)
            back, complaint = attempt(path)
            if damaged[:2] == b"\xa5\x5a":  # nothing says what it was
                assert complaint == f"cannot read {path}: it is no .npz file"
                continue
            # Some bytes of a zip file say nothing, such as the time.
            assert "truncated or damaged" in complaint or all(np.array_equal(back[name], arrays[name]) for name in back)


def attempt(path: Path) -> tuple[dict[str, Any], str]:
    try:
        return load_arrays(path), ""
    except UseError as error:
        return {}, str(error)


def a_single_array() -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.zeros(3))
    return buffer.getvalue()


def an_array_of_objects() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, a=np.array([object()]))
    return buffer.getvalue()


def an_archive_of_text() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("a.npy", "no array")
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", " (truncated or damaged): No data left in file"),
        (b"<html>", ": it is no .npz file"),
        (pickle.dumps({}), ": it is no .npz file"),
        (a_single_array(), ": it is no .npz file"),
        (an_array_of_objects(), ": it holds Python objects, which are not read"),
        (an_archive_of_text(), " (truncated or damaged): a member is no array"),
    ],
    ids=["empty", "html", "pickle", "npy", "objects", "text"],
)
def test_what_is_no_array_file_is_refused_and_never_unpickled(tmp_path: Path, content: bytes, line: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    assert refusal(lambda: load_arrays(path)) == f"cannot read {path}{line}"


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"old": 1})

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    for name in ("fsync", "replace", "chmod"):
        with monkeypatch.context() as context:
            context.setattr(os, name, full)
            line = refusal(lambda: write_json(path, {"new": 2}))
        assert line == f"cannot write {path}: No space left on device"
        assert read_json(path) == {"old": 1}
        assert list(tmp_path.iterdir()) == [path]


def test_a_killed_writer_leaves_no_file_under_the_final_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", killed)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(tmp_path / "a", b"new")
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_may_be_read_by_others(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"x")
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_not_a_number_is_never_written_as_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"auc": float("nan")})
    assert not (tmp_path / "a.json").exists()


@pytest.mark.parametrize("place", ["file", "file/below", "/proc/nowhere/runs"])
def test_a_folder_that_cannot_be_used_is_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    line = refusal(Store(tmp_path / place).prepare)
    assert line.startswith("cannot use")


@contextmanager
def not_root() -> Iterator[None]:
    """Be somebody who may not write anywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)  # nobody
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder_is_one_line() -> None:
    with not_root(), TemporaryDirectory() as name:  # pytest's own folders are closed to others
        folder = Path(name)
        (folder / "locks").mkdir(mode=0o500)
        folder.chmod(0o500)
        line = refusal(Store(folder).prepare)
        folder.chmod(0o700)
    assert line == f"cannot write {folder / 'locks' / 'writable'}: Permission denied"


def test_a_read_only_disk_is_one_line(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*arguments: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr("rrbench.files.disk.tempfile.mkdtemp", read_only)
    assert "Read-only file system" in refusal(store.prepare)


def test_a_lock_lets_one_in_at_a_time(store: Store) -> None:
    inside, most = 0, 0
    guard = threading.Lock()

    def work() -> None:
        nonlocal inside, most
        for _ in range(5):
            with store.lock("x", Silent()):
                with guard:
                    inside += 1
                    most = max(most, inside)
                threading.Event().wait(0.002)
                with guard:
                    inside -= 1

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_whoever_waits_for_a_lock_says_so(store: Store) -> None:
    lines: list[str] = []

    class Saying(Silent):
        def line(self, text: str) -> None:
            lines.append(text)
            release.set()

    release, held = threading.Event(), threading.Event()

    def hold() -> None:
        with store.lock("rows", Silent()):
            held.set()
            release.wait(20)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(20)
    with store.lock("rows", Saying()):
        pass
    thread.join()
    assert lines == [f"waiting for another run on {store.root} (rows)"]


def test_the_manifest_keeps_earlier_runs(store: Store) -> None:
    for command in ("first", "second"):
        store.add_to_manifest({"command": command}, Silent())
    text = (store.root / "manifest.json").read_text()
    assert [run["command"] for run in json.loads(text)["runs"]] == ["first", "second"]


@pytest.mark.parametrize(
    "cell", [{"tpr_rule": "mine"}, {"tpr_rule": ["quantile"]}, {"resamples": -1}, {"resamples": "1"}]
)
def test_a_cell_with_metrics_that_no_version_computes_is_refused(tmp_path: Path, cell: dict[str, object]) -> None:
    store, saved = Store(tmp_path), record("a")
    store.save_cell(dataclasses.replace(saved, cell={**saved.cell, **cell}))
    with pytest.raises(UseError, match=r"a\.json is no cell file of this version; delete it"):
        store.cells()
