"""Rows on fewer inputs or by a weaker attack fill a cell that has no other, and are marked in every format."""

import csv
import dataclasses
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rrbench.paper.cells import PaperCell, cells_of
from rrbench.paper.fill import Filled, fill
from rrbench.paper.judge import is_failing, judge, summary
from rrbench.paper.matching import Rows
from rrbench.paper.planning import describe_missing, missing, plan_missing
from rrbench.paper.reduced import LEGEND
from rrbench.paper.tabulate import PaperTables, Selection, tables_from
from rrbench.rows.row import ResultRow, write_rows
from rrbench.rows.tables import LAYOUTS

Make = Callable[..., list[ResultRow]]
TENTH = "reduced: 1,000 of 10,000 test inputs (every 10th)"


def cell(table: str, **words: str) -> PaperCell:
    (found,) = [cell for cell in cells_of(table) if all(cell.part(key) == value for key, value in words.items())]
    return found


RR = cell("table2", at="pgd-at", rejector="rr", budget="linf:8", metric="acc_tpr95")
MULTI = cell("table4", at="pgd-at", rejector="rr", attack="multitarget-100x20")
CW = cell("table7", dataset="cifar10", rejector="rr", attack="cw-l2-normal")
LONG = cell("table8", dataset="cifar10", rejector="rr", metric="acc_tpr95")


def row_of(rows: list[ResultRow], attack: str, **words: str) -> ResultRow:
    """Return RR's row of an attack on CIFAR-10."""
    words = {"trained_as": "pgd-at+rr", "rejector": "rr", "dataset": "cifar10", "attack": attack} | words
    (found,) = [row for row in rows if all(getattr(row, key) == value for key, value in words.items())]
    return found


def tenth(row: ResultRow, **changes: object) -> ResultRow:
    """Return a row as `run --every 10` writes it."""
    settings = json.dumps({**json.loads(row.settings), "every": 10}, sort_keys=True)
    n = (row.n or 0) // 10
    return dataclasses.replace(row, **{"n": n, "settings": settings, **changes})  # type: ignore[arg-type]


def weaker(row: ResultRow, **settings: object) -> ResultRow:
    """Return a row whose attack was given other settings by name."""
    stated = json.loads(row.settings)
    stated["attack"] |= settings
    given = ",".join(f"{key}={value}" for key, value in settings.items())
    label = f"{row.attack[:-1]},{given})" if row.attack.endswith(")") else f"{row.attack}({given})"
    return dataclasses.replace(row, attack=label, settings=json.dumps(stated))


def measure(rows: list[ResultRow], what: PaperCell = RR, preset: str | None = None) -> Filled:
    return fill(what, Rows(rows), preset)


@pytest.fixture
def row(rows_for: Make) -> ResultRow:
    return row_of(rows_for("table2"), "pgd100x10", eps="8/255", norm="linf")


@pytest.fixture
def multi(rows_for: Make) -> ResultRow:
    return row_of(rows_for("table4"), "multi-target")


# Which rows fill a cell, and what is said of them.


def test_a_row_on_every_tenth_input_fills_a_cell_and_says_so(row: ResultRow) -> None:
    found = measure([tenth(row)])
    assert (found.value, found.low, found.high) == (row.acc_tpr95, row.acc_tpr95_low, row.acc_tpr95_high)
    assert found.reduced == found.note == TENTH


def test_of_the_first_inputs_only_their_number_is_known(row: ResultRow) -> None:
    assert measure([dataclasses.replace(row, n=500)]).reduced == "reduced: 500 of 10,000 test inputs"


def test_of_data_of_your_own_a_row_of_every_tenth_input_is_reduced_though_nobody_knows_their_number(
    rows_for: Make,
) -> None:
    own = dataclasses.replace(RR, dataset="npz(mine.npz)")
    like = row_of(rows_for("table2"), "pgd100x10", eps="8/255", norm="linf")
    stated = json.loads(like.settings)
    del stated["attack"]["step"]  # presets have a step of their own for CIFAR
    full = dataclasses.replace(like, dataset="npz(mine.npz)", settings=json.dumps(stated))
    assert measure([tenth(full)], own).reduced == "reduced: 1,000 test inputs (every 10th)"
    assert measure([tenth(full), full], own) == measure([full], own)
    assert measure([full], own).reduced == ""


def test_a_full_part_of_one_training_hides_no_reduced_part_of_another(rows_for: Make) -> None:
    what = cell("table3", at="pgd-at", rejector="rr", attack="corruption:fog")
    parts = [row for row in rows_for("table3") if "(fog" in row.dataset and row.trained_as == "pgd-at+rr"]
    assert len(parts) == 5
    reduced = [tenth(row, acc_tpr95=80.0) for row in parts]
    assert measure(reduced, what).value == 80.0
    other = dataclasses.replace(parts[0], seed=1, acc_tpr95=90.0)
    assert measure([*reduced, other], what).value == 80.0
    same = dataclasses.replace(parts[0], acc_tpr95=90.0)
    alike = measure([*reduced, same], what)
    assert (alike.value, alike.reduced) == (80.0, TENTH), "parts on the same images are preferred"
    mixed = measure([*reduced[1:], same], what)
    assert (mixed.value, mixed.reduced) == (82.0, f"{TENTH}, some parts in full")


def test_a_full_row_always_wins(row: ResultRow) -> None:
    other = tenth(row, acc_tpr95=1.0)
    for rows in ([row, other], [other, row]):
        assert measure(rows) == measure([row])
        assert measure(rows).reduced == measure(rows).note == ""


def test_a_full_row_of_the_other_preset_wins_too(row: ResultRow, rows_for: Make) -> None:
    official = row_of(rows_for("table2", preset="official"), "pgd100x10", eps="8/255", norm="linf")
    found = measure([tenth(row), official])
    assert (found.value, found.note, found.reduced) == (official.acc_tpr95, "preset official", "")
    assert measure([tenth(row), official], preset="paper").reduced == TENTH


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"steps": 50}, "reduced: 50 of 100 steps"),
        ({"restarts": 2}, "reduced: 2 of 20 restarts"),
        ({"restarts": 2, "steps": 10}, "reduced: 10 of 100 steps, 2 of 20 restarts"),
        ({"targets": 3}, "reduced: 3 of all targets"),
        ({"restarts": 2, "targets": 3}, "reduced: 2 of 20 restarts, 3 of all targets"),
    ],
)
def test_a_weaker_attack_fills_a_cell_and_says_so(multi: ResultRow, settings: dict[str, object], text: str) -> None:
    less = weaker(multi, **settings)
    assert (measure([less], MULTI).value, measure([less], MULTI).reduced) == (multi.acc_tpr95, text)
    both = measure([tenth(less)], MULTI).reduced
    assert both == TENTH + text.replace("reduced: ", ", ")
    assert measure([less, multi], MULTI).reduced == ""


def test_a_shorter_search_for_the_smallest_distance_is_reduced(rows_for: Make) -> None:
    row = row_of(rows_for("table7"), "cw-l2")
    found = measure([weaker(row, steps=100, searches=5)], CW)
    assert (found.value, found.reduced) == (row.distance, "reduced: 100 of 1000 steps, 5 of 9 searches")
    assert (found.low, found.high) == (None, None)


@pytest.mark.parametrize("settings", [{"steps": 101}, {"restarts": 21}, {"steps": 0}, {"keep": "best"}], ids=str)
def test_a_stronger_or_another_attack_fills_nothing(multi: ResultRow, settings: dict[str, object]) -> None:
    assert measure([weaker(multi, **settings)], MULTI) == Filled()


def test_a_label_that_contradicts_the_settings_fills_nothing(multi: ResultRow) -> None:
    assert measure([dataclasses.replace(multi, attack="multi-target(steps=50)")], MULTI) == Filled()
    settings = weaker(multi, steps=40).settings
    assert measure([dataclasses.replace(multi, attack="multi-target(steps=50)", settings=settings)], MULTI) == Filled()


def test_steps_in_a_published_name_tell_attacks_apart_and_restarts_do_not(rows_for: Make) -> None:
    row = row_of(rows_for("table8"), "pgd1000x10(until=repeat)")
    stated = json.loads(row.settings)

    def pgd(steps: int, restarts: int) -> ResultRow:
        settings = json.dumps(stated | {"attack": stated["attack"] | {"steps": steps, "restarts": restarts}})
        return dataclasses.replace(row, attack=f"pgd{steps}x{restarts}", settings=settings)

    assert measure([pgd(1000, 10)], LONG).reduced == ""
    assert measure([pgd(1000, 2)], LONG).reduced == "reduced: 2 of 10 restarts"
    assert measure([pgd(100, 10)], LONG) == Filled()


def test_whether_a_climb_leaves_out_repeats_makes_no_difference_to_a_cell(rows_for: Make) -> None:
    row = row_of(rows_for("table8"), "pgd1000x10(until=repeat)")
    stated = json.loads(row.settings)
    assert stated["attack"].pop("until") == "repeat"
    plain = dataclasses.replace(row, attack="pgd1000x10", settings=json.dumps(stated))
    for each in (row, plain, dataclasses.replace(plain, attack="pgd1000x10(until=end)")):
        assert (measure([each], LONG).value, measure([each], LONG).reduced) == (row.acc_tpr95, "")
    short = row_of(rows_for("table2"), "pgd100x10", norm="linf", eps="8/255")
    assert measure([weaker(short, until="repeat")], RR).value == short.acc_tpr95


def test_a_row_from_before_targets_could_be_chosen_has_them_all(multi: ResultRow) -> None:
    assert "targets" not in json.loads(multi.settings)["attack"]
    assert measure([multi], MULTI).reduced == ""
    assert measure([weaker(multi, targets="none")], MULTI).reduced == ""
    assert measure([weaker(multi, targets=3), weaker(multi, targets=5)], MULTI).reduced == "reduced: 5 of all targets"


@pytest.mark.parametrize("targets", [0, -1, "some"])
def test_targets_that_nobody_can_choose_fill_nothing(multi: ResultRow, targets: object) -> None:
    assert measure([weaker(multi, targets=targets)], MULTI) == Filled()


def test_the_least_reduced_rows_count_and_the_whole_attack_before_all_inputs(multi: ResultRow) -> None:
    rows = {
        name: dataclasses.replace(each, acc_tpr95=float(value))
        for value, (name, each) in enumerate(
            {
                "tenth": tenth(multi),
                "first 500": dataclasses.replace(multi, n=500),
                "19 restarts": weaker(multi, restarts=19),
                "1 restart": weaker(multi, restarts=1),
                "1 restart of a tenth": tenth(weaker(multi, restarts=1)),
            }.items()
        )
    }
    there = list(rows.values())
    for each in rows.values():
        assert measure(list(reversed(there)), MULTI).value == each.acc_tpr95
        there.remove(each)


def test_rows_that_lack_different_things_are_not_averaged(row: ResultRow) -> None:
    rows = [tenth(row, acc_tpr95=10.0), tenth(row, acc_tpr95=30.0, seed=1, checkpoint_sha256="b")]
    rows.append(dataclasses.replace(row, n=999, acc_tpr95=90.0, seed=2, checkpoint_sha256="c"))
    found = measure(rows)
    assert (found.value, found.trainings, found.note) == (20.0, 2, f"{TENTH}; 2 trainings")


def test_of_a_mean_one_reduced_part_makes_the_cell_reduced(rows_for: Make) -> None:
    own = cell("table3", at="pgd-at", rejector="rr", attack="corruption:fog")
    parts = [each for each in rows_for("table3") if each.trained_as == "pgd-at+rr" and "(fog" in each.dataset]
    assert len(parts) == 5
    assert measure(parts, own).reduced == ""
    found = measure([tenth(parts[0]), *parts[1:]], own)
    assert found.value == pytest.approx(sum(each.acc_tpr95 or 0 for each in parts) / 5)
    assert found.reduced == f"{TENTH}, some parts in full"
    assert found.note == f"{TENTH}, some parts in full; in full: 4 of 5 parts measured"


def test_a_failed_full_run_is_not_forgotten(row: ResultRow) -> None:
    failed = dataclasses.replace(row, status="failed", error="NaN gradients", n=None)
    assert measure([failed, tenth(row)]).note == f"{TENTH}; in full: failed: NaN gradients"
    assert measure([dataclasses.replace(tenth(row), status="failed", error="no", n=None)]).reduced == ""


def test_an_undefined_value_of_a_reduced_row_is_reduced_too(row: ResultRow) -> None:
    found = measure([tenth(row, acc_tpr95=None)])
    assert (found.value, found.is_undefined, found.reduced) == (None, True, TENTH)


# Verdicts, counts and winners.


def test_a_reduced_cell_is_judged_by_the_same_tolerance_and_named_reduced() -> None:
    """RR has 58.21 here, with a tolerance of 1.5 points; a footnote explains what is below."""
    values = {59.71: "within", 59.72: "unexplained", 50.0: "explained"}
    judged = [each for value in values for each in judge([(RR, Filled(value, reduced=TENTH))])]
    assert [each.verdict for each in judged] == list(values.values())
    assert [each.named for each in judged] == ["reduced within", "reduced unexplained", "reduced explained"]
    assert is_failing(judged)
    assert not is_failing(judged[:1])
    full = judge([(RR, Filled(58.21)), (MULTI, Filled())])
    assert summary("t", [*full, *judged]) == (
        "t: 5 cells: 1 within, 0 explained, 0 unexplained, 1 missing; 3 reduced: 1 within, 1 explained, 1 unexplained"
    )
    assert summary("t", full) == "t: 2 cells: 1 within, 0 explained, 0 unexplained, 1 missing"


def test_a_reduced_cell_and_a_full_one_say_nothing_of_their_order() -> None:
    """The paper has 0.453, 0.664 and 0.703; far off in this order, they are explained by it."""
    own = {"at": "pgd-at", "attack": "clean", "metric": "auc"}
    gda, star, gmm = (cell("table2", rejector=name, **own) for name in ("gda", "gda*", "gmm"))
    filled = [Filled(0.1), Filled(0.2), Filled(0.3)]
    assert [each.verdict for each in judge(list(zip((gda, star, gmm), filled, strict=True)))] == ["explained"] * 3
    filled[2] = Filled(0.3, reduced=TENTH)
    judged = judge(list(zip((gda, star, gmm), filled, strict=True)))
    assert [each.verdict for each in judged] == ["explained", "explained", "unexplained"]


def test_a_reduced_cell_does_not_win_against_a_full_one(rows_for: Make) -> None:
    rows = [tenth(row, acc_tpr95=99.0) if row.rejector == "rr" else row for row in rows_for("table8")]
    (grid,) = tables_from(Selection("table8").cells(), rows, "").grids
    best = {(own.rejector, own.dataset) for own in grid.best if own.metric == "acc_tpr95"}
    assert {name for name, _ in best} <= {"snet", "ebd"}
    assert len(best) == 2
    alike = [row if row.rejector == "rr" else tenth(row) for row in rows]
    (grid,) = tables_from(Selection("table8").cells(), alike, "").grids
    assert {own.rejector for own in grid.best if own.metric == "acc_tpr95"} == {"rr"}, "all are reduced alike"


# No format shows a reduced cell as a full one.


def mixed(rows_for: Make) -> PaperTables:
    """Table 8, with a tenth of the inputs for RR; all values are near the paper's."""
    published = {(own.dataset, own.rejector, own.metric): own.published for own in cells_of("table8")}
    rows = [
        dataclasses.replace(
            row,
            **{name: published[row.dataset, row.rejector, name] for name in ("acc_tpr95", "auc")},  # type: ignore[arg-type]
        )
        for row in rows_for("table8")
    ]
    rows = [tenth(row, acc_tpr95_low=50.04, acc_tpr95_high=60.06) if row.rejector == "rr" else row for row in rows]
    return tables_from(Selection("table8").cells(), rows, "rows from nowhere")


@pytest.mark.parametrize("with_verdicts", [False, True])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_format_has_the_mark_beside_each_reduced_cell_and_nowhere_else(
    rows_for: Make, layout: str, with_verdicts: bool
) -> None:
    tables = mixed(rows_for)
    cells = [each for each in tables.judged if each.measured.reduced]
    assert len(cells) == 4
    text = tables.show(layout, with_verdicts=with_verdicts)
    if layout == "csv":
        for each, record in zip(tables.judged, csv.DictReader(io.StringIO(text)), strict=True):
            assert record["verdict"] == ("reduced within" if each in cells else "within")
            assert (TENTH in record["note"]) == (each in cells)
        return
    flat = " ".join(text.split())
    assert "1,000 of 10,000 test inputs (every 10th)" in flat
    # The legend has the word three times, the footnote once; each cell has it once.
    assert len(re.findall(r"\breduced\b", flat)) == 4 + LEGEND.count("reduced") + 1
    marked = "reduced within " if with_verdicts else "reduced "
    bound = "50.0--60.1" if layout == "latex" else "50.0..60.1"
    assert flat.count(f"{marked}{bound}") == 2, "the interval is said, also beside a verdict"
    assert not re.search(r"(?<!reduced )within 50\.0", flat)


def test_text_fits_in_100_columns_when_every_cell_is_reduced(rows_for: Make) -> None:
    rows = [tenth(row) for row in rows_for("all")]
    tables = tables_from(Selection("all").cells(), rows, "rows from nowhere")
    assert all(each.measured.reduced or each.verdict == "missing" for each in tables.judged)
    assert all(each.measured.note.startswith("no row has it") for each in tables.judged if not each.measured.reduced)
    for with_verdicts in (False, True):
        text = tables.show("text", with_verdicts=with_verdicts)
        assert max(map(len, text.splitlines())) <= 100
        # Only the numbers in the text have names too long for it; they are cut, and still tell the lines apart.
        *others, sentences = tables.grids
        assert not any("~" in PaperTables((grid,), (), "").show("text", with_verdicts=with_verdicts) for grid in others)
        shown = PaperTables((sentences,), (), "").show("text", with_verdicts=with_verdicts)
        names = [line.partition("  ")[0] for line in shown.splitlines() if "~" in line and line.startswith("CIFAR")]
        assert len(names) == len(set(names)) > 1


def test_a_table_without_reduced_cells_does_not_mention_them(rows_for: Make) -> None:
    tables = tables_from(Selection("table8").cells(), rows_for("table8"), "")
    for layout in LAYOUTS:
        assert "reduced" not in tables.show(layout, with_verdicts=True)


# What is left to measure.


def test_the_plan_still_lists_the_full_run_and_counts_what_is_only_reduced(rows_for: Make) -> None:
    selection = Selection("table8")
    rows = [tenth(row) if row.rejector == "rr" else row for row in rows_for("table8")]
    there = [row for row in rows if (row.dataset, row.rejector) != ("cifar100", "ebd")]
    text = describe_missing(selection, tables_from(selection.cells(), there, "rows from nowhere"))
    assert text.splitlines()[0] == "table8: 2 of 12 cells are missing, 4 have only reduced rows; rows from nowhere"
    planned = plan_missing(selection, rows, (0,)).cells
    assert [(str(each.dataset), str(each.rejector)) for each in planned] == [("cifar10", "rr"), ("cifar100", "rr")]
    assert {each.sample.every for each in planned} == {None}


def test_a_plan_for_every_tenth_input_leaves_out_what_is_there_in_full_or_so(rows_for: Make) -> None:
    selection, rows = Selection("table8"), rows_for("table8")
    assert {len(each) for each in missing(selection, list(map(tenth, rows)), (0,), 10).values()} == {0}
    assert {len(each) for each in missing(selection, rows, (0,), 10).values()} == {0}
    others = [dataclasses.replace(row, n=1000) for row in rows]
    assert {len(each) for each in missing(selection, others, (0,), 10).values()} == {6}, "the first 1,000 are others"
    assert {each.sample.every for each in plan_missing(selection, [], (0,), 10).cells} == {10}


def test_a_table_is_filled_with_every_tenth_input_first_and_in_full_later(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "results" / "none" / "rows.csv", [])  # the published ones are not looked for
    on_digits = ("--paper", "table6", "--dataset", "digits", "--network", "small-cnn")
    done = command("run", *on_digits, "--every", 10, "--device", "cpu")
    assert done.code == 0
    assert "table6: 16 cells: 0 within, 0 explained, 0 unexplained, 0 missing; 16 reduced: " in done.out
    assert "reduced: 36 of 360 test inputs (every 10th)" in done.out
    assert command("run", *on_digits, "--every", 10, "--device", "cpu").out.splitlines()[-1] == "nothing was missing"
    plan = command("table", *on_digits, "--plan")
    assert "table6: 0 of 16 cells are missing, 16 have only reduced rows" in plan.out
    assert "8 rows on 3 checkpoints" in plan.out
    assert command("run", *on_digits, "--device", "cpu").code == 0
    records = list(csv.DictReader(io.StringIO(command("table", *on_digits, "--format", "csv").out)))
    assert len(records) == 16
    assert not any("reduced" in record["verdict"] + record["note"] for record in records)


@pytest.mark.parametrize(
    ("every", "words"),
    [
        ("0", "--every must be at least 1, not 0"),
        ("10001", "nothing to run: --every 10001 is more than the 10000 test inputs of cifar10"),
    ],
)
def test_a_wrong_step_is_one_line(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = command("run", "--paper", "table12", "--every", every, "--device", "cpu")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.splitlines()[-1].endswith(words)
