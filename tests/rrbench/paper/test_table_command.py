"""`rrbench table --paper` and `rrbench run --paper`, as typed."""

import csv
import dataclasses
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rrbench
from rrbench.engines.estimate import RATES
from rrbench.paper.cells import cells_of, table_names
from rrbench.rows.row import ResultRow, read_rows, write_rows

Make = Callable[..., list[ResultRow]]
ON_DIGITS = ("--dataset", "digits", "--network", "small-cnn")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of one's own, without rows and networks: the published ones are not looked for."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path / "results" / "zoo"))
    write_rows(tmp_path / "results" / "none" / "rows.csv", [])
    return tmp_path


def as_published(rows: list[ResultRow], table: str) -> list[ResultRow]:
    """Give made-up rows the published values of a table whose cells are TPR-95 and AUC of one row each."""
    values = {
        (cell.at, cell.rejector, cell.norm, f"{cell.eps}/255" if cell.eps else "", cell.metric): cell.published
        for cell in cells_of(table)
    }
    return [
        dataclasses.replace(
            row,
            acc_tpr95=values[row.framework, row.rejector, row.norm, row.eps, "acc_tpr95"],
            auc=values[row.framework, row.rejector, row.norm, row.eps, "auc"],
        )
        for row in rows
    ]


def records(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


@pytest.mark.parametrize("name", [*table_names(), "all", "label:tableB"])
def test_every_name_answers_without_any_result(command: Any, name: str) -> None:
    answer = command("table", "--paper", name, "--format", "csv")
    assert (answer.code, answer.err) == (0, "")
    assert {record["verdict"] for record in records(answer.out)} == {"missing"}
    assert {record["measured"] for record in records(answer.out)} == {""}


def test_the_printed_number_is_told_from_the_label_and_the_folder_is_named(command: Any) -> None:
    answer = command("table", "--paper", "label:table4")
    assert "Table 1 as printed (LaTeX label table4)" in answer.out
    assert "rows from results (0 rows)" in answer.out


def test_a_check_of_the_papers_own_numbers_passes_and_a_mutated_one_is_noticed(
    command: Any, rows_for: Make, elsewhere: Path
) -> None:
    rows = as_published(rows_for("table2"), "table2")
    write_rows(elsewhere / "results" / "cifar10" / "rows.csv", rows)
    answer = command("table", "--paper", "table2", "--check")
    assert answer.code == 0
    assert "table2: 120 cells: 120 within, 0 explained, 0 unexplained, 0 missing" in answer.out
    changed = [
        dataclasses.replace(row, auc=0.9) if (row.trained_as, row.norm) == ("pgd-at+rr", "l2") else row for row in rows
    ]
    write_rows(elsewhere / "other" / "rows.csv", changed)
    answer = command("table", "--paper", "table2", "--check", "--results", "other", "--format", "csv")
    assert answer.code == 1
    (out,) = [record for record in records(answer.out) if record["verdict"] != "within"]
    assert (out["rejector"], out["norm"], out["metric"], out["measured"]) == ("rr", "l2", "auc", "0.9")
    assert out["verdict"] == "unexplained"
    assert float(out["difference"]) == pytest.approx(0.9 - 0.796)
    assert "measured cells are out of tolerance and unexplained" in answer.err
    assert "119 within, 0 explained, 1 unexplained" in answer.err


def test_cells_15_points_off_with_a_footnote_are_shown_and_counted_as_explained_and_do_not_fail(
    command: Any, rows_for: Make, elsewhere: Path
) -> None:
    rows = as_published(rows_for("table2"), "table2")
    changed = [
        dataclasses.replace(row, acc_tpr95=(row.acc_tpr95 or 0) - 15)
        if (row.framework, row.eps) == ("pgd-at", "16/255")
        else row
        for row in rows
    ]
    write_rows(elsewhere / "rows.csv", changed)
    answer = command("table", "--paper", "table2", "--check", "--results", "rows.csv")
    assert answer.code == 0
    # PGD-AT's nine lines, also the three whose order is still the paper's.
    assert "table2: 120 cells: 111 within, 9 explained, 0 unexplained, 0 missing" in answer.out
    assert len(re.findall(r" -15\.00 explained ", answer.out)) == 9
    assert "explained: further off, and a footnote says why." in answer.out
    assert re.search(r"^b \(explains what is below\): the column at 16/255", answer.out, re.M)
    assert "The tolerances are our choice, the paper gives none: 2 points and 0.05 of AUC for CCAT" in answer.out
    assert "tolerances" not in command("table", "--paper", "table2", "--results", "rows.csv").out


def test_missing_cells_do_not_fail_a_check(command: Any) -> None:
    answer = command("table", "--paper", "all", "--check")
    assert answer.code == 0
    assert answer.out.count(" missing\n") >= 14


def test_a_table_is_filled_by_a_run_on_digits_cell_by_cell(command: Any, elsewhere: Path) -> None:
    dry = command("run", "--paper", "table6", *ON_DIGITS, "--dry-run", "--device", "cpu")
    assert dry.code == 0
    assert "8 cells on 3 checkpoints" in dry.out
    done = command("run", "--paper", "table6", *ON_DIGITS, "--device", "cpu")
    assert done.code == 0
    assert "8 rows in runs/rows.csv" in done.out
    rows = {(row.rejector, row.attack): row for row in read_rows(elsewhere / "runs")}
    ours = {"a-phi-only": "rr(form=head)", "rr": "rr", "rr(con)": "rr(score=con)"}
    ours |= {"confidence-in-lrr": "rr(form=confidence)"}
    answer = command("table", "--paper", "table6", *ON_DIGITS, "--format", "csv")
    found = records(answer.out)
    assert len(found) == 16
    for record in found:
        row = rows[ours[record["rejector"]], {"clean": "clean", "pgd-10": "pgd10"}[record["attack"]]]
        assert float(record["measured"]) == getattr(row, record["metric"])
        assert (record["published"], record["value"], record["difference"]) == ("", "", "")
        assert record["eps"] == ("38.25" if row.eps else "")
    # What was measured on digits fills nothing of the paper's.
    own = records(command("table", "--paper", "table6", "--format", "csv").out)
    assert {record["measured"] for record in own} == {""}
    again = command("run", "--paper", "table6", *ON_DIGITS, "--device", "cpu")
    assert (again.code, again.out.splitlines()[-1]) == (0, "nothing was missing")
    frame = rrbench.table("table6", dataset="digits", network="small-cnn")
    assert frame["measured"].tolist() == [float(record["measured"]) for record in found]
    assert frame["published"].isna().all()
    assert len(rrbench.table(elsewhere / "runs")) == 8


def test_the_plan_names_what_is_missing_its_cost_and_its_command(command: Any, rows_for: Make, elsewhere: Path) -> None:
    write_rows(elsewhere / "rows.csv", [row for row in rows_for("table8") if row.dataset == "cifar10"])
    answer = command("table", "--paper", "table8", "--plan", "--results", "rows.csv", "--preset", "paper")
    assert answer.code == 0
    assert "table8: 6 of 12 cells are missing; rows from rows.csv (3 rows)" in answer.out
    # 110 epochs of 50,000 images x 11 gradients and 10,000 x 10 to choose; 10,000 images x 1,000 steps x 10 restarts
    assert RATES["resnet18", "cuda"][:2] == (209_000, 136_000)
    assert "3 rows on 3 checkpoints: about 26 min of training and 24 min of attacks" in answer.out
    assert answer.out.splitlines()[-1] == "rrbench run --paper table8 --preset paper"
    assert "cifar10 " not in answer.out
    whole = command("table", "--paper", "text", "--plan", "--dataset", "digits")
    assert "no row has it: `rrbench bench` measures the seconds of an epoch" in whole.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["table", "--paper", "table99"], "unknown table of the paper 'table99'"),
        (["table", "--paper", "figure4"], "rrbench figure --paper figure4"),
        (["table", "--paper", "table2", "--preset", "quick"], "preset quick never fills the paper's cells"),
        (["table", "--paper", "table2", "--preset", "quik"], "unknown preset 'quik'"),
        (["table", "--paper", "table2", "--results", "nowhere"], "no results at nowhere"),
        (["table", "--paper", "table2", "--format", "pdf"], "unknown format 'pdf'"),
        (["table", "--paper", "table2", "--check", "--plan"], "--check or --plan, not both"),
        (["table", "--paper", "table2", "--by", "attack"], "--paper takes its rows from --results DIR"),
        (["table", "runs", "--check"], "--check needs --paper"),
        (["run", "--paper", "table2", "--rejectors", "rr"], "leave out --rejectors"),
        (["run", "--paper", "table2", "--limit", "10"], "leave out --limit"),
        (["run", "--paper", "table2", "--dataset", "digits,cifar10"], "one data set at a time"),
        (["run", "--paper", "table2", "--dataset", "digit"], "unknown dataset 'digit'"),
        (["table", "--paper", "table2", "--dataset", "cifar99"], "unknown dataset 'cifar99'; near: cifar10, cifar100"),
        (["table", "--paper", "table2", "--network", "resnet99"], "unknown network 'resnet99'; near: resnet18"),
    ],
)
def test_wrong_use_is_one_line(command: Any, arguments: list[str], words: str) -> None:
    answer = command(*arguments)
    assert answer.code == 2
    assert words in answer.err
    assert answer.out == ""


def test_the_paper_is_run_under_preset_paper_unless_official_is_asked_for(command: Any) -> None:
    paper = command("run", "--paper", "table4", "--dry-run", "--device", "cpu")
    official = command("run", "--paper", "table4", "--preset", "official", "--dry-run", "--device", "cpu")
    assert "27 cells on 9 checkpoints" in paper.out
    # 10,000 images x 9 targets x 100 steps x 20 restarts, and x 1 as released
    assert "180,000,000" in paper.out
    assert "180,000,000" not in official.out
    assert "9,000,000" in official.out


def test_the_papers_names_are_listed(command: Any) -> None:
    answer = command("list", "papers")
    assert answer.code == 0
    assert "table2   table1             120  CIFAR-10 ResNet-18 main table" in answer.out
    assert len(answer.out.splitlines()) == 3 + 21 + 1
