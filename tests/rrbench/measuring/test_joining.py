"""Work folders become one: every cell, file, checkpoint and run comes along, and what is damaged is named."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrbench.errors import UseError
from rrbench.figures.scored import read_scored
from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.measuring.joining import Joined, join
from rrbench.measuring.store import Store
from rrbench.progress import Silent
from rrbench.rows.row import read_rows
from rrbench.rows.scores import read_scores


@pytest.fixture
def halves(honest: Path, tmp_path: Path) -> list[Path]:
    """A finished run in two folders: each has all files and checkpoints, and one part of the cells."""
    made = [tmp_path / name for name in ("first", "second")]
    for index, half in enumerate(made):
        shutil.copytree(honest, half)
        for cell in sorted((half / "cells").iterdir())[index::2]:
            cell.unlink()
    return made


def files(folder: Path) -> dict[str, bytes]:
    """Return the arrays, cells, checkpoints and rows of a folder."""
    kept = ("data", "clean", "attacks", "scores", "cells", "checkpoints")
    paths = [path for name in kept for path in (folder / name).iterdir() if ".last." not in path.name]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in [*paths, folder / "rows.csv"]}


def test_two_halves_give_the_whole_that_verify_confirms(
    honest: Path, halves: list[Path], tmp_path: Path, command: Callable[..., Any]
) -> None:
    before = [files(half) for half in halves]
    out = tmp_path / "joined"
    said = command("join", *halves, "--out", out)
    cells = len(list((honest / "cells").iterdir()))
    assert (said.code, said.out) == (0, f"{out}: {cells} cells added, 0 were there already, 0 left out\n")
    assert files(out) == files(honest)
    assert [files(half) for half in halves] == before
    assert Store(out).runs() == Store(honest).runs(), "the run of both halves counts once"
    said = command("verify", out)
    assert said.code == 0, said.out
    assert f"{cells} cells: {cells} confirmed" in said.out
    said = command("join", *halves, "--out", out)
    assert said.out == f"{out}: 0 cells added, {cells} were there already, 0 left out\n"
    assert files(out) == files(honest)


def test_without_logits_all_rows_stay_and_the_first_logits(
    honest: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    out = tmp_path / "short"
    assert command("join", honest, "--out", out, "--short").code == 0
    assert (out / "rows.csv").read_bytes() == (honest / "rows.csv").read_bytes()
    shared = 0
    for record, _ in Store(honest).cells():
        (short,) = [found for found, _ in Store(out).cells() if found.key == record.key]
        mine, theirs = read_scores(out, short.files), read_scores(honest, record.files)
        shared += len(theirs.logits) == 60
        assert len(mine.logits) == len(mine.head) == 16
        for name in ("logits", "head"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)[:16])
        for name in {*mine._fields} - {"logits", "head"}:
            assert np.array_equal(getattr(mine, name), getattr(theirs, name), equal_nan=True), name
    assert shared > 0
    with pytest.raises(UseError, match=f"^{re.escape(str(out))} has no logits of all inputs of pgd-at"):
        _ = read_scored(out)[0].whole_scores
    assert len(read_scored(honest)[0].whole_scores.logits) == 60
    said = command("verify", out)
    assert said.code == 0, said.out


def test_a_cell_with_changed_files_is_named_and_left_out(
    honest: Path, halves: list[Path], tmp_path: Path, command: Callable[..., Any]
) -> None:
    record, _ = Store(halves[0]).cells()[0]
    (scores,) = [halves[0] / name for name in record.files if name.startswith("scores/")]
    arrays = load_arrays(scores)
    save_arrays(scores, {**arrays, "certainty": arrays["certainty"] + 1})
    out = tmp_path / "joined"
    said = command("join", *halves, "--out", out)
    cells = len(list((honest / "cells").iterdir()))
    assert said.code == 1
    assert said.out.splitlines() == [
        f"left out, its files are missing or changed: {halves[0] / 'cells' / record.key}.json",
        f"{out}: {cells - 1} cells added, 0 were there already, 1 left out",
    ]
    assert record.key not in {found.key for found, _ in Store(out).cells()}
    # A sound copy repairs what is missing.
    assert join([honest], out, Silent()).added == 1
    assert read_rows(out) == read_rows(honest)


def test_another_answer_of_the_same_attack_lies_beside_the_first(honest: Path, tmp_path: Path) -> None:
    """A GPU may give other answers in a second run: both stay with their own cells."""
    other = tmp_path / "other"
    shutil.copytree(honest, other)
    store = Store(other)
    records = [record for record, _ in store.cells() if record.row.attack == "pgd3"]
    kept = {record.key for record in records[:1]}
    for record, _ in store.cells():
        if record.key not in kept:
            (other / "cells" / f"{record.key}.json").unlink()
    (record,) = [found for found, _ in store.cells()]
    (name,) = [name for name in record.files if name.startswith("attacks/")]
    digest = save_arrays(other / name, {**load_arrays(other / name), "seconds": np.asarray(99.0)})
    record.files[name] = digest
    store.save_cell(record)
    target = tmp_path / "target"
    shutil.copytree(honest, target)
    (target / "cells" / f"{record.key}.json").unlink()
    assert join([other], target, Silent()).added == 1
    joined = Store(target).cell(record.key)
    assert joined is not None
    assert f"{name.removesuffix('.npz')}-{digest[:8]}.npz" in joined.files
    assert not Store(target).unsound(joined)
    assert all(not Store(target).unsound(found) for found, _ in Store(target).cells())
    assert join([other], tmp_path / "fresh", Silent()).added == 1
    fresh = Store(tmp_path / "fresh").cell(record.key)
    assert fresh == record


def test_a_measured_cell_replaces_a_failed_one_and_never_the_other_way(honest: Path, tmp_path: Path) -> None:
    failed, target = Store(tmp_path / "failed"), tmp_path / "target"
    failed.prepare()
    record, _ = Store(honest).cells()[0]
    reason = replace(record, row=replace(record.row, status="failed", error="out of memory"), files={})
    failed.save_cell(reason)
    assert join([failed.root], target, Silent()).added == 1
    assert join([failed.root], target, Silent()).there == 1
    assert Store(target).cell(record.key) == reason
    cells = len(Store(honest).cells())
    assert join([honest, failed.root], target, Silent()) == Joined(added=cells, there=1)
    assert Store(target).cell(record.key) == record


@pytest.mark.parametrize(
    ("sources", "out", "said"),
    [
        (["runs"], "runs", "cannot join runs to itself"),
        (["runs", "nowhere"], "out", "nowhere is no work folder with results"),
        (["runs"], "runs/rows.csv", "cannot use runs/rows.csv as a work folder: File exists"),
    ],
)
def test_what_cannot_be_joined_is_refused_in_one_line_before_anything_is_written(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sources: list[str], out: str, said: str
) -> None:
    shutil.copytree(honest, tmp_path / "runs")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UseError) as caught:
        join([Path(source) for source in sources], Path(out), Silent())
    assert str(caught.value) == said
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]
