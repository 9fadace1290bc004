"""Damaged, foreign and missing files of a work folder: one line that names them, and no result is lost."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rrbench import zoo
from rrbench.engines.estimate import describe_plan
from rrbench.measuring.store import Store
from rrbench.progress import Silent
from rrbench.rows.row import read_rows
from rrbench.verifying.verify import verify_folder
from spoken import lines
from undisturbed import cells, timeless


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_work_folder_that_cannot_be_used_is_one_line(bench: Any, command: Any, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("in the way")
    bench.out = tmp_path / place
    answer = command("run", *bench.arguments(), "--rejectors", "confidence", "--attacks", "clean")
    assert answer.code == 2
    assert len(lines(answer.err)) == 1
    assert str(bench.out) in answer.err
    assert answer.out == ""
    assert (tmp_path / "file").read_text() == "in the way"


def damage(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def test_a_damaged_checkpoint_is_one_line_that_names_it(bench: Any, command: Any) -> None:
    arguments = ["run", *bench.arguments(), "--attacks", "pgd2", "--rejectors"]
    assert command(*arguments, "confidence").code == 0
    before = cells(bench.out)
    damaged = sorted((bench.out / "checkpoints").iterdir())
    for path in damaged:
        damage(path)
    answer = command(*arguments, "confidence,t-con")
    assert answer.code == 2
    message = lines(answer.err)[-1]
    assert message.startswith("rrbench: ")
    assert any(str(path) in message for path in damaged)
    assert "Traceback" not in answer.err
    assert {path: cells(bench.out)[path] for path in before} == before


@pytest.mark.parametrize("kind", ["cells", "manifest"])
def test_damaged_cells_are_kept_aside_and_measured_again_and_so_is_a_manifest(
    bench: Any, command: Any, kind: str
) -> None:
    arguments = ["run", *bench.arguments(), "--attacks", "pgd2", "--rejectors", "confidence"]
    assert command(*arguments).code == 0
    rows = timeless(read_rows(bench.out))
    damaged = [bench.out / "manifest.json"] if kind == "manifest" else sorted((bench.out / "cells").iterdir())
    for path in damaged:
        damage(path)
    broken = {path: path.read_bytes() for path in damaged}
    answer = command(*arguments)
    assert answer.code == 0
    assert timeless(read_rows(bench.out)) == rows
    assert command("verify", bench.out).code == 0
    for path, content in broken.items():
        aside = path.with_name(f"{path.name}.damaged")
        assert aside.read_bytes() == content
        assert f"{path} is damaged (" in answer.err
        assert f"moved to {aside.name}; " in answer.err
    assert len(Store(bench.out).runs()) == (1 if kind == "manifest" else 2)


def test_a_cell_of_another_version_is_left_where_it_is_and_named(bench: Any, command: Any) -> None:
    arguments = ["run", *bench.arguments(), "--attacks", "pgd2", "--rejectors", "confidence"]
    assert command(*arguments).code == 0
    path = min((bench.out / "cells").iterdir())
    path.write_text("{}")
    answer = command(*arguments)
    assert answer.code == 2
    assert f"{path} is no cell file of this version; delete it to measure the cell again" in answer.err
    assert path.read_text() == "{}"


def test_what_a_rejector_learnt_is_learnt_again_where_its_file_is_damaged(bench: Any) -> None:
    rows = bench.measure("kd", "pgd2")
    for path in [*(bench.out / "fitted").iterdir(), *(bench.out / "scores").iterdir()]:
        damage(path)
    assert timeless(bench.measure("kd", "pgd2")) == timeless(rows)
    assert [line for line in bench.report.lines if line.endswith("it is made again") and "fitted" in line]


def test_a_cell_file_of_another_cell_or_with_a_changed_row_is_named_and_measured_again(bench: Any) -> None:
    rows = bench.measure("confidence,t-con", "pgd2")
    first, second, third, _ = sorted((bench.out / "cells").iterdir())
    shutil.copyfile(second, first)
    value = json.loads(third.read_text())
    third.write_text(json.dumps(value | {"row": value["row"] | {"auc": 0.123}}))
    again = bench.measure("confidence,t-con", "pgd2")
    assert timeless(again) == timeless(rows)
    named = ", ".join(f"cells/{path.name}" for path in (first, third))
    (told,) = [line for line in bench.report.lines if "gone or changed" in line]
    assert set(told.partition(": ")[2].partition(";")[0].split(", ")) == set(named.split(", "))


def test_an_attack_file_under_another_attack_s_name_is_not_used(bench: Any) -> None:
    rows = bench.measure("confidence", "pgd2")
    one, other = sorted((bench.out / "attacks").iterdir())
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])
    for path in (bench.out / "cells").iterdir():
        path.unlink()
    assert timeless(bench.measure("confidence", "pgd2")) == timeless(rows)


def flip(path: Path) -> None:
    """Change a bit that the archive's own checks do not see: in the time of its first member."""
    content = bytearray(path.read_bytes())
    content[10] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("harm", [damage, flip, Path.unlink], ids=["cut", "changed", "gone"])
@pytest.mark.parametrize("kind", ["scores", "attacks", "data"])
def test_a_damaged_file_of_scores_attacks_or_data_is_named_and_measured_again(
    bench: Any, kind: str, harm: Callable[[Path], None]
) -> None:
    rows = bench.measure("confidence,t-con", "clean,pgd2")
    made = {path: path.read_bytes() for path in sorted((bench.out / kind).iterdir())}
    first, *others = made
    harmed = [record for record, _ in Store(bench.out).cells() if f"{kind}/{first.name}" in record.files]
    harm(first)
    job = bench.prepare("confidence,t-con", "clean,pgd2")
    assert describe_plan(job.plan, job.runner).count(" done\n") == 4 - len(harmed)
    modified = [path.stat().st_mtime_ns for path in others]
    again = bench.measure("confidence,t-con", "clean,pgd2")
    (told,) = [line for line in bench.report.lines if "gone or changed" in line]
    assert told == (
        f"gone or changed in {bench.out}: {kind}/{first.name}; cells that are measured again: {len(harmed)}"
    )
    assert len(bench.attacked()) == (kind == "attacks")
    assert timeless(again) == timeless(rows)
    assert [path.stat().st_mtime_ns for path in others] == modified
    if kind != "attacks":  # an attack's file says how long it took
        assert first.read_bytes() == made[first]
    assert verify_folder(bench.out, (), torch.device("cpu"), rerun=False, report=Silent()).problems == []


def test_a_damaged_checkpoint_of_the_zoo_is_one_line(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "zoo"
    folder.mkdir()
    (shipped,) = [entry for entry in zoo.entries(zoo.EMBEDDED) if entry.trained_as == "pgd-at"]
    shutil.copyfile(zoo.EMBEDDED / shipped.file, folder / "net.safetensors")
    zoo.write_index(folder, [dataclasses.replace(shipped, file="net.safetensors")])
    monkeypatch.setenv("RRBENCH_ZOO", str(folder))
    arguments = ["run", "--out", tmp_path / "out", "--zoo", "--limit", 60, "--rejectors", "confidence"]
    assert command(*arguments, "--attacks", "clean").code == 0
    read = bytearray((folder / "net.safetensors").read_bytes())
    read[-1] ^= 1
    (folder / "net.safetensors").write_bytes(read)
    answer = command(*arguments, "--attacks", "pgd1")
    assert answer.code == 2
    assert "does not have the SHA-256 of its index" in lines(answer.err)[-1]
    (folder / "index.json").write_text(json.dumps([{"file": "net.safetensors"}]))
    answer = command(*arguments, "--attacks", "pgd2")
    assert answer.code == 2
    assert "index.json" in lines(answer.err)[-1]


@pytest.mark.parametrize("text", ["[1]", '{"runs": 3}'])
def test_a_broken_manifest_is_refused_before_any_work(command: Any, bench: Any, text: str) -> None:
    bench.out.mkdir(exist_ok=True)
    (bench.out / "manifest.json").write_text(text)
    answer = command("run", *bench.arguments(), "--rejectors", "confidence", "--attacks", "pgd1")
    assert answer.code == 2
    assert lines(answer.err)[-1:] == [f"rrbench: {bench.out / 'manifest.json'} is no manifest of rrbench; move it away"]
    assert not list(bench.out.glob("cells/*"))
