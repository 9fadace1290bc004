"""`rrbench verify`: an honest folder is confirmed; what was changed or damaged is noticed, what is not here is said."""

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
import pytest
import torch

from finished_run import (
    HOLDERS,
    forge_arrays,
    one_cell,
    one_file,
    own_checkpoint,
    rewrite_arrays,
    rewrite_cell,
    row_hash,
    verify,
)
from rrbench.datasets.digits import Digits
from rrbench.errors import UseError
from rrbench.files import provenance
from rrbench.files.checkpoints import read_checkpoint, write_checkpoint
from rrbench.measuring.evaluation import scores_and_columns
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.measuring.store import Store
from rrbench.plugins.registry import table
from rrbench.protocols import Outputs
from rrbench.rows import notes
from rrbench.rows.record import read_cell
from rrbench.rows.row import LATER
from rrbench.rows.scores import Scores
from rrbench.verifying import rerun
from rrbench.verifying.findings import Findings
from rrbench.verifying.tolerance import EXACT, ROUNDED
from rrbench.verifying.verify import Verifier

CONFIRMED = (
    "9 cells: 9 confirmed, 0 recomputed only, 0 not checkable; 3 need --rerun for what their fitted rejectors say; "
    "all confirmed"
)


def test_an_honest_run_is_confirmed(honest: Path) -> None:
    findings = verify(honest)
    assert findings.problems == []
    assert (findings.cells, findings.confirmed, findings.recomputed, findings.failed) == (9, 9, 0, 0)
    assert findings.unchecked == {}
    assert findings.summary() == CONFIRMED
    assert findings.lines() == []


class Repeated(NamedTuple):
    """What repeating every attack found, and the folder's files before and after."""

    findings: Findings
    before: dict[Path, bytes]
    after: dict[Path, bytes]


@pytest.fixture(scope="module")
def repeated(honest: Path) -> Repeated:
    def state() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in honest.rglob("*") if path.is_file()}

    before = state()
    return Repeated(verify(honest, rerun=True), before, state())


def test_repeating_every_attack_confirms_it_too(repeated: Repeated) -> None:
    findings = repeated.findings
    assert findings.problems == []
    assert findings.rerun == 9
    assert "9 attacked again" in findings.summary()
    assert findings.tolerances == {EXACT}, "on the machine that made the rows nothing may differ"
    assert findings.lines() == ["tolerance of reruns: none: the same machine and precision"]


def test_looking_changes_nothing(repeated: Repeated) -> None:
    assert len(repeated.before) > 9
    assert repeated.after == repeated.before


def test_an_ensemble_is_confirmed_though_its_members_were_run_before_it(bench: Any, tmp_path: Path) -> None:
    config = tmp_path / "two.toml"
    config.write_text(bench.config.read_text() + '\n[run]\nall_attacks = ["pgd1", "pgd2", "worst-case"]\n')
    rows = bench.measure("confidence", "pgd1,worst-case", config=config)
    assert [row.attack for row in rows] == ["clean", "pgd1", "worst-case"]
    findings = verify(bench.out, rerun=True)
    assert findings.problems == []
    assert findings.confirmed == findings.rerun == 3
    assert findings.tolerances == {EXACT, ROUNDED}, "its members may have been run in other batches"


@pytest.mark.parametrize("name", ["certainty", "logits", "boldest_certainty", "clean_certainty"])
def test_one_changed_score_is_noticed(folder: Path, name: str) -> None:
    def change(arrays: dict[str, Any]) -> None:
        if name == "boldest_certainty":  # not stored, since it is that of the wrong answers
            arrays[name] = arrays["certainty"].copy()
        flat = arrays[name].reshape(-1)
        flat[0] = np.nextafter(flat[0], 9, dtype=flat.dtype) if np.isfinite(flat[0]) else 0.5

    rewrite_arrays(one_file(folder, HOLDERS[name]), change)
    problems = verify(folder).problems
    assert any(problem.startswith("pgd-at confidence pgd3 linf:3/20 seed 0:") for problem in problems)
    problems = [problem for problem in problems if "SHA-256" in problem]
    assert len(problems) == {"logits": 2, "clean_certainty": 3}.get(name, 1), "others name these files too"


def test_a_changed_row_is_noticed_in_its_cell_file(folder: Path) -> None:
    acc_all = read_cell(one_cell(folder))[0].row.acc_all
    assert acc_all is not None
    rewrite_cell(one_cell(folder), acc_all=acc_all + 1)
    problems = verify(folder).problems
    assert any("its row was changed after it was written" in problem for problem in problems)
    assert any(
        f"acc_all is {acc_all} from the scores, and the row says {acc_all + 1}" in problem for problem in problems
    )


def test_a_changed_name_is_noticed_in_its_cell_file(folder: Path) -> None:
    rewrite_cell(one_cell(folder), rejector="mine")
    assert any("was changed after it was written" in problem for problem in verify(folder).problems)


def rewrite_csv(path: Path, change: Callable[[list[dict[str, str]]], object]) -> None:
    with path.open(newline="") as file:
        records = list(csv.DictReader(file))
    names = list(records[0])
    change(records)
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    path.write_text(text.getvalue())


@pytest.mark.parametrize(
    ("column", "value"), [("acc_all", "99.0"), ("rejector", "mine"), ("auc", ""), ("eps", "1/255")]
)
def test_a_changed_line_of_the_csv_is_noticed(folder: Path, column: str, value: str) -> None:
    rewrite_csv(folder / "rows.csv", lambda records: records[1].update({column: value}))
    problems = verify(folder).problems
    assert problems
    assert all(problem.startswith("rows.csv line 3: ") for problem in problems)
    assert any(f": {column} is " in problem for problem in problems)


def test_the_order_of_lines_is_no_problem(folder: Path) -> None:
    rewrite_csv(folder / "rows.csv", lambda records: records.reverse())
    assert verify(folder).problems == []


def test_a_line_too_few_or_too_many_is_noticed(folder: Path) -> None:
    rewrite_csv(folder / "rows.csv", lambda records: records.pop())
    assert any("has 8 rows and there are 9 cell files" in problem for problem in verify(folder).problems)
    rewrite_csv(folder / "rows.csv", lambda records: records.extend(records[-2:]))
    assert any("has 10 rows and there are 9 cell files" in problem for problem in verify(folder).problems)


def test_a_csv_that_is_gone_or_none_is_noticed(folder: Path) -> None:
    (folder / "rows.csv").write_text("<html>")
    assert any("rows.csv" in problem for problem in verify(folder).problems)
    (folder / "rows.csv").unlink()
    assert any("rows.csv" in problem for problem in verify(folder).problems)


def test_one_changed_bit_of_a_checkpoint_is_noticed(folder: Path) -> None:
    content = bytearray(own_checkpoint(folder).read_bytes())
    content[-1] ^= 1
    own_checkpoint(folder).write_bytes(content)
    findings = verify(folder)
    assert len(findings.problems) == 6, "one line for each cell of the checkpoint: confidence and kd"
    assert all("does not have the row's SHA-256" in problem for problem in findings.problems)


def test_a_row_whose_settings_cannot_be_read_is_one_line_and_the_other_cells_are_checked(folder: Path) -> None:
    rewrite_cell(one_cell(folder), forge=True, settings="{")
    findings = verify(folder)
    assert findings.cells == 9
    assert sum("not of this make" in problem for problem in findings.problems) == 1


def test_a_calibration_split_that_is_not_here_is_said_and_its_cells_are_not_confirmed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = Digits.load

    def lend(self: Digits, split: Any, roots: Any) -> Any:
        if split == "calibration":
            raise UseError("no such data set here")
        return load(self, split, roots)

    monkeypatch.setattr(Digits, "load", lend)
    findings = verify(folder)
    assert findings.problems == []
    assert findings.unchecked == {"calibration inputs of digits are not here": 9}
    assert findings.confirmed == 0


def test_cells_of_a_missing_checkpoint_are_counted_apart_and_exit_with_1_unless_asked(
    folder: Path, command: Any
) -> None:
    sha256 = read_cell(one_cell(folder))[0].row.checkpoint_sha256
    own_checkpoint(folder).unlink()
    answer = command("verify", folder)
    assert answer.code == 1
    assert answer.out.splitlines() == [
        f"not checkable: 6 cells: no checkpoint {sha256[:12]} here, and no zoo lists it",
        "9 cells: 3 confirmed, 0 recomputed only, 6 not checkable; nothing found wrong",
    ]
    answer = command("verify", folder, "--allow-unchecked")
    assert answer.code == 0
    assert "all confirmed" not in answer.out


@pytest.mark.parametrize("is_older", [True, False])
def test_a_note_that_only_this_code_writes_is_told_of_rows_that_other_code_has_measured(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_older: bool
) -> None:
    measure_again = scores_and_columns

    def with_a_note(*given: Any) -> tuple[Scores, dict[str, Any]]:
        again, columns = measure_again(*given)
        return again, columns | {"note": notes.joined([columns["note"], "it looks broken"])}

    monkeypatch.setattr(rerun, "scores_and_columns", with_a_note)
    if is_older:
        monkeypatch.setattr(provenance, "commit", lambda: "0123456789ab")
    findings = verify(folder, rerun=True)
    said = "9 rows of other code without a note that this code writes: it looks broken"
    assert (said in findings.lines()) == is_older
    assert (findings.confirmed, findings.wrong) == ((9, 0) if is_older else (0, 9))


def test_cells_of_a_missing_data_set_are_not_confirmed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Digits, split: Any, roots: Any) -> Any:
        raise UseError("no such data set here")

    monkeypatch.setattr(Digits, "load", refuse)
    findings = verify(folder, rerun=True)
    assert (findings.problems, findings.confirmed) == ([], 0)
    assert findings.unchecked == {"data set digits is not here": 9}


def test_cells_of_a_plugin_that_is_not_installed_are_not_confirmed(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(table("rejector").classes, "kd")
    findings = verify(folder)
    assert (findings.problems, findings.confirmed) == ([], 6)
    assert findings.unchecked == {"rejector kd is not installed here": 3}


def without(name: str) -> tuple[str, Callable[[dict[str, Any]], object]]:
    return HOLDERS[name], lambda arrays: arrays.pop(name)


def with_array(name: str, array: Any) -> tuple[str, Callable[[dict[str, Any]], object]]:
    return HOLDERS[name], lambda arrays: arrays.update({name: array})


@pytest.mark.parametrize(
    "changed",
    [
        without("images"),
        without("certainty"),
        without("logits"),
        without("clean_correct"),
        with_array("images", np.zeros((16, 3, 5), dtype=np.float32)),
        with_array("images", np.zeros((16, 3, 8, 8), dtype=np.float32)),
        with_array("certainty", np.zeros(7)),
        with_array("logits", np.zeros((60, 3), dtype=np.float32)),
        with_array("labels", np.full(60, 12)),
        with_array("certainty", np.full(60, np.nan)),
        with_array("own_threshold", np.zeros(3)),
        with_array("clean_correct", np.zeros(60)),
    ],
    ids=[
        "no images",
        "no certainty",
        "no logits",
        "no mask",
        "flat images",
        "images in colour",
        "few certainties",
        "few logits",
        "labels out of range",
        "certainties NaN",
        "several thresholds",
        "a mask of floats",
    ],
)
def test_a_file_of_another_make_is_one_line_and_the_other_cells_are_checked(
    folder: Path, changed: tuple[str, Callable[[dict[str, Any]], object]]
) -> None:
    holder, change = changed
    forge_arrays(folder, one_file(folder, holder), change)
    findings = verify(folder)
    assert any(problem.startswith("pgd-at confidence pgd3") for problem in findings.problems)
    if holder == "scores":
        assert all(problem.startswith("pgd-at confidence pgd3") for problem in findings.problems)
    assert all("\n" not in problem and len(problem) > 40 for problem in findings.problems)
    assert findings.cells == 9


@pytest.mark.parametrize("holder", ["scores", "attacks", "data"])
def test_a_truncated_or_missing_file_is_one_line(folder: Path, holder: str) -> None:
    path = one_file(folder, holder)
    path.write_bytes(path.read_bytes()[:200])
    assert any("truncated or damaged" in problem for problem in verify(folder).problems)
    path.unlink()
    assert any(path.name in problem for problem in verify(folder).problems)


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UseError, match="is no work folder"):
            verify(place)


@pytest.mark.parametrize(
    ("column", "value"), [("eps", "x"), ("eps", "1/0"), ("note", None), ("n", "many"), ("auc", [])]
)
def test_a_value_of_another_kind_in_a_cell_file_is_refused_in_one_line(
    folder: Path, column: str, value: object
) -> None:
    path = one_cell(folder)
    content = json.loads(path.read_text())
    content["row"][column] = value
    path.write_text(json.dumps(content))
    assert f"{path.name} is no cell file" in verify(folder).problems[0]


def test_a_failed_row_is_counted_and_no_problem(bench: Any) -> None:
    path = next(path for path in (bench.out / "checkpoints").glob("*[0-9a-f].safetensors") if is_plain(path))
    checkpoint = read_checkpoint(path)
    write_checkpoint(path, {name: tensor * 0 for name, tensor in checkpoint.tensors.items()}, checkpoint.facts)
    assert {row.status for row in bench.measure("confidence,ebd", "clean")} == {"ok", "failed"}
    findings = verify(bench.out)
    assert findings.problems == []
    assert (findings.failed, findings.confirmed) == (1, 1)
    assert "1 failed rows" in findings.summary()


def is_plain(path: Path) -> bool:
    return bool(read_checkpoint(path).facts["trained_as"] == "pgd-at")


def test_the_command_says_it_and_exits_with_1_only_if_something_is_wrong(folder: Path, command: Any) -> None:
    answer = command("verify", folder)
    assert answer.code == 0
    assert answer.out == CONFIRMED + "\n"
    rewrite_cell(one_cell(folder), acc_all=1.0)
    answer = command("verify", folder, "--rerun")
    assert answer.code == 1
    assert "its row was changed after it was written" in answer.out
    assert answer.out.splitlines()[-1].endswith("problems")
    answer = command("verify", folder / "nowhere")
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith("rrbench: ")


def test_a_folder_of_an_older_version_is_not_called_tampered_with(folder: Path) -> None:
    for path in (folder / "cells").iterdir():
        value = json.loads(path.read_text())
        value["row"] = {name: part for name, part in value["row"].items() if name not in LATER}
        value["files"] = {name: part for name, part in value["files"].items() if not name.startswith("clean/")}
        value["row_sha256"] = row_hash(value["row"])
        path.write_text(json.dumps(value))
    table = pd.read_csv(folder / "rows.csv")
    table.drop(columns=sorted(LATER)).to_csv(folder / "rows.csv", index=False)
    with pytest.warns(UserWarning, match=r"rows\.csv is of an older version of rrbench, without deploy_joint,"):
        findings = verify(folder)
    assert findings.problems == []
    assert findings.unchecked == {"of an older version, which stored no clean scores: measure them again": 9}


def test_a_network_is_asked_once_about_the_same_images_of_the_same_type(tmp_path: Path) -> None:
    asked: list[torch.dtype] = []

    def judge(images: torch.Tensor) -> Outputs:
        asked.append(images.dtype)
        return Outputs(images, images, images)

    one, other = (cast(MeasuredNetwork, SimpleNamespace(judge=judge)) for _ in range(2))
    verifier, images = Verifier(Store(tmp_path), (), torch.device("cpu")), torch.zeros(2, 1)
    for network, given in (
        (one, images),
        (one, images.clone()),
        (one, images.double()),
        (other, images),
        (one, images),
    ):
        assert verifier._outputs(network, given).logits.dtype == given.dtype
    assert asked == [torch.float32, torch.float64, torch.float32, torch.float32]
    assert verifier._outputs(one, images + 1).logits.tolist() == [[1.0], [1.0]]


def test_a_cell_file_that_cannot_be_read_is_one_problem_and_the_others_are_checked(folder: Path) -> None:
    path = one_cell(folder)
    content = path.read_text()
    (folder / "manifest.json").write_text("{")
    for damaged, said in (("{}", "is no cell file of this version"), (content[:100], "cannot read ")):
        path.write_text(damaged)
        findings = verify(folder)
        assert (findings.cells, findings.wrong, findings.confirmed) == (9, 1, 8)
        cell, rows, manifest = findings.problems
        assert path.name in cell
        assert said in cell
        assert cell.endswith("; delete it to measure the cell again")
        assert rows == "rows.csv was not compared, as not every cell file can be read"
        assert "manifest.json" in manifest
