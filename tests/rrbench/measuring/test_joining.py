"""Work folders become one: every cell, file, checkpoint and run comes along, and what is damaged is named."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finished_run import forge_scores, in_old_layout, one_cell, one_file, verify, verify_cell
from rrbench.errors import UseError
from rrbench.figures.scored import read_scored
from rrbench.files.arrays import load_arrays, save_arrays, tightly_packed
from rrbench.measuring.evaluation import columns_of
from rrbench.measuring.joining import Joined, join
from rrbench.measuring.store import Store
from rrbench.progress import Silent
from rrbench.rows.narrow import is_same
from rrbench.rows.record import read_cell
from rrbench.rows.row import read_rows
from rrbench.rows.scores import ATTACKS, CLEAN, SCORES, Scores, file_in, read_images, read_scores
from rrbench.verifying.tolerance import EXACT


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


def test_a_folder_of_an_older_version_becomes_small_and_keeps_every_number(
    honest: Path, folder: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    in_old_layout(folder)
    wide = load_arrays(one_file(folder, SCORES, attack="clean")), load_arrays(one_file(folder, ATTACKS, attack="clean"))
    assert wide[0].keys() == {"certainty", "boldest_certainty"}
    assert wide[1]["images"].dtype == np.float32
    for record, _ in Store(honest).cells():  # the old layout is read as the new one
        mine, theirs = read_scores(folder, record.files), read_scores(honest, record.files)
        assert all(is_same(getattr(mine, name), getattr(theirs, name)) for name in mine._fields)
        assert is_same(read_images(folder, record.files), read_images(honest, record.files))
    said = command("verify", folder)
    assert "9 cells: 9 confirmed" in said.out, said.out
    out = tmp_path / "small"
    assert command("join", folder, "--out", out).code == 0
    assert files(out) == files(honest)
    assert (out / "rows.csv").read_bytes() == (folder / "rows.csv").read_bytes()


def test_a_short_folder_has_the_first_logits_rounded_scores_and_the_rows_of_these(
    honest: Path, tmp_path: Path, command: Callable[..., Any]
) -> None:
    out = tmp_path / "short"
    said = command("join", honest, "--out", out, "--short")
    assert said.code == 0
    shared, gaps = 0, dict[str, list[float]]()
    for record, _ in Store(honest).cells():
        short = Store(out).cell(record.key)
        assert short is not None
        mine, theirs = read_scores(out, short.files), read_scores(honest, record.files)
        shared += len(theirs.logits) == 60
        assert len(mine.logits) == len(mine.head) == 16
        for name in ("logits", "head"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)[:16])
        for name in {*mine._fields} - {"logits", "head"}:
            exact, found = getattr(theirs, name), getattr(mine, name)
            kind = np.float16 if name == "confidence" else np.float32 if "certainty" in name else exact.dtype
            expected = exact.astype(kind).astype(exact.dtype)
            assert np.array_equal(found, expected, equal_nan=True), name
        columns = columns_of(mine, record.metrics, record.row.seed)
        assert short.row == replace(record.row, **columns)
        for name, value in columns.items():
            if value != getattr(record.row, name):
                gaps.setdefault(name, []).append(abs(value - getattr(record.row, name)))
    assert shared > 0
    assert {"deploy_threshold", "ece"} <= gaps.keys()
    line = said.out.splitlines()[0]
    count = sum(map(len, gaps.values()))
    assert line.startswith(f"9 rows computed again from rounded scores: {count} numbers moved, at most by: ")
    most = dict(each.split(" ") for each in line.partition("at most by: ")[2].split(", "))
    assert most == {name: f"{max(found):.2g}" for name, found in gaps.items()}
    stored = load_arrays(one_file(out, ATTACKS)), load_arrays(one_file(out, SCORES)), load_arrays(one_file(out, CLEAN))
    assert {name: array.dtype.name for arrays in stored for name, array in arrays.items()}.items() >= {
        ("confidence", "float16"),
        ("prediction", "int8"),
        ("certainty", "float32"),
        ("clean_certainty", "float32"),
    }
    with pytest.raises(UseError, match=f"^{re.escape(str(out))} has no logits of all inputs of pgd-at"):
        _ = read_scored(out)[0].whole_scores
    assert len(read_scored(honest)[0].whole_scores.logits) == 60


def test_a_short_folder_is_confirmed_also_by_reruns_in_which_nothing_may_differ(honest: Path, tmp_path: Path) -> None:
    out = tmp_path / "short"
    join([honest], out, Silent(), is_short=True)
    findings = verify(out, rerun=True)
    assert findings.problems == []
    assert findings.confirmed == findings.rerun == 9
    assert findings.tolerances == {EXACT}
    again = tmp_path / "again"
    assert join([out], again, Silent(), is_short=True).rounded == 0
    assert files(again) == files(out)
    forge_scores(one_cell(out), SCORES, lambda arrays: arrays.update(certainty=arrays["certainty"] + np.float32(1e-6)))
    problems = verify_cell(one_cell(out), rerun=True).problems
    assert any("gives other certainty, and on this machine nothing may differ" in text for text in problems)


def test_what_is_there_is_not_stored_again_however_it_is_packed(honest: Path, tmp_path: Path) -> None:
    short, out = tmp_path / "short", tmp_path / "out"
    join([honest], short, Silent(), is_short=True)
    join([short], out, Silent())
    for record, _ in Store(out).cells():  # packed tightly, and under the name of a second answer
        files_now = {}
        for name in record.files:
            content = tightly_packed(load_arrays(short / name))
            digest = sha256(content).hexdigest()
            beside = f"{name.removesuffix('.npz')}-{digest[:8]}.npz"
            (out / beside).write_bytes(content)
            (out / name).unlink(missing_ok=True)
            files_now[beside] = digest
        Store(out).save_cell(replace(record, files=files_now))
    assert verify(out).problems == []
    before = files(out)
    one_cell(out).unlink()
    for is_short in (False, True):
        assert join([short], out, Silent(), is_short=is_short).added == 1 - is_short
        assert files(out) == before


def test_a_further_rejector_shares_an_attack_that_an_older_version_made_short(
    honest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "short"
    with monkeypatch.context() as older:
        rounded = Scores._in
        older.setattr(Scores, "_in", lambda self, like, names, kinds: rounded(self, like, names, kinds[-1:]))
        join([honest], out, Silent(), is_short=True)
    attack = one_file(out, ATTACKS)
    assert load_arrays(attack)["confidence"].dtype == np.float32
    before = files(out)
    one_cell(out, "kd").unlink()
    assert join([honest], out, Silent(), is_short=True).added == 1
    assert files(out) == before
    assert one_file(out, ATTACKS, "kd") == attack
    assert verify(out).problems == []


def test_a_cell_that_single_precision_would_tie_stays_as_it_is(folder: Path, tmp_path: Path) -> None:
    """A certainty beside 1: neighbours at a distance of 1e-9 become equal, so this cell and its clean scores stay."""
    close = 1 - 1e-9 * np.arange(60)
    forge_scores(one_cell(folder), SCORES, lambda arrays: arrays.update(certainty=close))
    out = tmp_path / "short"
    assert join([folder], out, Silent(), is_short=True).rounded == 9
    record, before = read_cell(one_cell(out))[0], read_cell(one_cell(folder))[0]
    assert np.array_equal(read_scores(out, record.files).certainty, close)
    assert load_arrays(out / file_in(record.files, SCORES))["certainty"].dtype == np.float64
    assert load_arrays(out / file_in(record.files, CLEAN))["clean_certainty"].dtype == np.float64
    other = read_cell(one_cell(out, attack="clean"))[0]
    assert load_arrays(out / file_in(other.files, CLEAN))["clean_certainty"].dtype == np.float32
    assert record.row == replace(before.row, ece=record.row.ece), "its confidences alone are rounded"
    assert Path(file_in(record.files, CLEAN)).stem[:24] == Path(file_in(other.files, CLEAN)).stem[:24]


def test_a_cell_with_changed_files_is_named_and_left_out(
    honest: Path, halves: list[Path], tmp_path: Path, command: Callable[..., Any]
) -> None:
    record, _ = Store(halves[0]).cells()[0]
    (scores,) = [halves[0] / name for name in record.files if name.startswith("scores/")]
    save_arrays(scores, {**load_arrays(scores), "certainty": np.ones(60)})
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


def test_a_cell_file_that_cannot_be_read_is_named_and_left_out(halves: list[Path], tmp_path: Path) -> None:
    path = sorted((halves[0] / "cells").iterdir())[0]
    path.write_text("{")
    joined = join([halves[0]], tmp_path / "joined", Silent())
    (reason,) = joined.unreadable
    assert reason.startswith(f"cannot read {path}: ")
    assert joined.harmed == []
    assert joined.added == len(list((halves[0] / "cells").iterdir())) - 1


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
    row = replace(record.row, status="failed", error="out of memory", acc_all=None)
    reason = replace(record, row=row, files={})
    failed.save_cell(reason)
    assert join([failed.root], target, Silent()).added == 1
    assert join([failed.root], target, Silent()).there == 1
    assert Store(target).cell(record.key) == reason
    cells = len(Store(honest).cells())
    assert join([honest, failed.root], target, Silent()) == Joined(added=cells, there=1)
    assert Store(target).cell(record.key) == record


@pytest.mark.parametrize(("column", "value"), [("acc_all", 1.0), ("checkpoint_sha256", "0" * 64)])
def test_a_cell_that_was_measured_with_other_numbers_elsewhere_is_named(
    honest: Path, tmp_path: Path, command: Callable[..., Any], column: str, value: Any
) -> None:
    other, target = tmp_path / "other", tmp_path / "target"
    shutil.copytree(honest, other)
    record, _ = Store(other).cells()[0]
    Store(other).save_cell(replace(record, row=replace(record.row, **{column: value})))
    said = command("join", honest, other, "--out", target)
    assert said.code == 0, said.err
    count = len(Store(honest).cells())
    assert said.out.splitlines()[-2:] == [
        f"{target / 'cells' / record.key}.json stays, but another folder has it from another network or with other "
        "answers",
        f"{target}: {count} cells added, {count} were there already, 0 left out",
    ]
    assert Store(target).cell(record.key) == Store(honest).cell(record.key)
    assert "stays" not in command("join", honest, "--out", target).out


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
