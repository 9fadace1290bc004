"""A zoo fills the cells of its own checkpoints with the same recipe; a line names the other checkpoints."""

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rrbench.api import Job, RunOptions, prepare
from rrbench.errors import UseError
from rrbench.paper.planning import describe_missing, plan_missing
from rrbench.paper.tabulate import Selection, tables_from
from rrbench.planning.cells import Training
from rrbench.rows.row import ResultRow, to_csv, write_rows
from rrbench.training.train import describe_training
from rrbench.zoo import Entry, entries, write_index

Make = Callable[..., list[ResultRow]]


def rr_training() -> Training:
    plan = plan_missing(Selection("table6"), [], (0,))
    return next(training for training in plan.checkpoints() if training.trained_as == "pgd-at+rr")


@pytest.fixture
def rr_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A zoo of PGD-AT+RR alone, in a folder where nothing is published."""
    key = rr_training().key
    entry = Entry("rr.safetensors", "0" * 64, key, "cifar10", "resnet18", "pgd-at+rr", 0, 110, 83.0, 54.0, "made up")
    write_index(tmp_path, [entry])
    (tmp_path / entry.file).touch()
    write_rows(tmp_path / "results" / "none" / "rows.csv", [])
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def prepare_table(name: str, **options: Any) -> Job:
    return prepare(RunOptions(paper=name, zoo=True, device="cpu", out="out", **options))


def test_of_a_table_a_zoo_fills_what_it_carries(rr_zoo: Path) -> None:
    plan = prepare_table("table6").plan
    others = "pgd-at+rr(form=head), pgd-at+rr(form=confidence)"
    assert plan.dropped == (f"no checkpoint {others} of cifar10 (resnet18, seed 0, by this recipe) in {rr_zoo}",)
    assert sorted((str(cell.rejector), str(cell.attack)) for cell in plan.cells) == [
        ("rr", "clean"), ("rr", "pgd10"), ("rr(score=con)", "clean"), ("rr(score=con)", "pgd10"),
    ]  # fmt: skip


def test_once_a_zoo_has_filled_its_part_nothing_is_left_and_nothing_is_wrong(rr_zoo: Path, rows_for: Make) -> None:
    (rr_zoo / "out").mkdir()
    rows = [row for row in rows_for("table6") if row.trained_as == "pgd-at+rr"]
    (rr_zoo / "out" / "rows.csv").write_text(to_csv(rows))
    plan = prepare_table("table6").plan
    assert plan.cells == ()
    assert "pgd-at+rr(form=head)" in plan.dropped[0]


def test_a_zoo_that_carries_nothing_of_a_table_is_refused(rr_zoo: Path) -> None:
    with pytest.raises(UseError, match="nothing to run: no checkpoint standard, pgd-at of cifar10"):
        prepare_table("table1")
    with pytest.raises(UseError, match=re.escape("(resnet18, seed 1, by this recipe) in")):
        prepare_table("table6", seeds=(1,))
    (rr_zoo / "rr.safetensors").unlink()
    with pytest.raises(UseError, match=r"nothing to run: no checkpoint .*pgd-at[+]rr, "):
        prepare_table("table6")


def test_a_checkpoint_of_another_recipe_fills_no_table(rr_zoo: Path) -> None:
    (entry,) = entries(rr_zoo)
    training = rr_training()
    recipe = describe_training(training)["recipe"]
    assert isinstance(recipe, dict)
    short = dataclasses.replace(entry, key="another", recipe={**recipe, "epochs": 30}, epochs=30)
    write_index(rr_zoo, [short])
    with pytest.raises(UseError, match=r"nothing to run: no checkpoint .*by this recipe"):
        prepare_table("table6")
    exact = dataclasses.replace(short, file="exact.safetensors", recipe=recipe, epochs=29)
    (rr_zoo / exact.file).touch()
    write_index(rr_zoo, [short, exact])
    materials = prepare_table("table6").materials
    assert materials.source(training).path.name == "exact.safetensors"
    (rr_zoo / exact.file).unlink()
    assert materials.source(training).path.name == "rr.safetensors"  # by name any recipe will do, if its file is there


def test_what_is_asked_for_by_name_must_be_in_the_zoo(rr_zoo: Path) -> None:
    asked = prepare(
        RunOptions("confidence", "pgd10", dataset="cifar10", frameworks="trades", zoo=True, device="cpu", out="out")
    )
    with pytest.raises(UseError, match=re.escape(f"no checkpoint trades of cifar10 (resnet18, seed 0) in {rr_zoo}")):
        asked.runner.units(asked.plan)


def test_the_plan_of_a_table_knows_what_the_zoo_has(rr_zoo: Path) -> None:
    selection = Selection("table6")
    text = describe_missing(selection, tables_from(selection.cells(), [], ""))
    assert f"in {rr_zoo}" in text
    assert text.splitlines()[-1] == "rrbench run --paper table6 --zoo, then rrbench run --paper table6"
    (rr_zoo / "rr.safetensors").unlink()
    text = describe_missing(selection, tables_from(selection.cells(), [], ""))
    assert text.splitlines()[-1] == "rrbench run --paper table6"
    assert "--zoo" not in text
