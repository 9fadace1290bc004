"""The published files are complete, every word is mapped, every cell is placed once, and the paper's winners agree."""

import csv
import dataclasses
import io

import pytest

from rrbench.errors import UseError
from rrbench.paper.cells import FIELDS, PaperCell, cells_of, data, index, relabelled, resolve, table_names, toml
from rrbench.paper.fill import Filled
from rrbench.paper.judge import judge
from rrbench.paper.layout import lay_out, title, winners
from rrbench.paper.wanted import never, shown, stand_ins, wanted

TABLES = table_names()
SIZES = [12, 120, 90, 27, 16, 16, 24, 12, 26, 30, 128, 48, 64, 16]
KINDS = ("dataset", "arch", "at", "rejector", "attack", "metric")


def as_published(name: str) -> list[tuple[PaperCell, Filled]]:
    return [(cell, Filled(cell.published)) for cell in cells_of(name)]


def test_there_are_613_cells_in_13_tables_and_16_numbers_in_the_text() -> None:
    assert [len(cells_of(name)) for name in TABLES] == SIZES
    assert sum(SIZES[:-1]) == 613
    assert len({dataclasses.replace(cell, value="", bold=False) for name in TABLES for cell in cells_of(name)}) == 629


def test_the_published_values_are_those_of_the_paper() -> None:
    found = {(cell.at, cell.rejector, cell.budget, cell.metric): cell for cell in cells_of("table2")}
    assert found["pgd-at", "rr", "l2:128", "auc"].value == "0.796"
    assert found["pgd-at", "rr", "l2:128", "auc"].bold
    assert found["ccat", "confidence", "linf:16", "acc_tpr95"].published == 45.12
    assert cells_of("text")[0].published == 48.62
    assert [cell.published for cell in cells_of("table12") if cell.value == "nan"] == [None] * 4


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_published_word_is_mapped(name: str, kind: str) -> None:
    words = {cell.part(kind) for cell in cells_of(name)}
    assert words <= toml("names.toml")[kind].keys()
    assert all(isinstance(shown(kind, word), str) for word in words)


def test_nothing_is_mapped_that_is_not_published() -> None:
    cells = [cell for name in TABLES for cell in cells_of(name)]
    for kind in KINDS:
        published = {cell.part(kind) for cell in cells}
        like = {name for cell in cells for name in stand_ins(cell.dataset)} if kind == "dataset" else set()
        assert toml("names.toml")[kind].keys() - published <= {"digits", *like}


@pytest.mark.parametrize("preset", ["paper", "official"])
def test_every_cell_wants_a_row_but_those_that_no_row_can_fill(preset: str) -> None:
    without = [cell for name in TABLES for cell in cells_of(name) if not wanted(cell, preset)]
    assert {cell.metric for cell in without} == {
        "train_seconds_per_epoch",
        "checkpoint_mb",
        "fraction_passing_pct_approx",
    }
    assert all(never(cell) for cell in without)
    assert len(without) == 7


@pytest.mark.parametrize("name", TABLES)
def test_every_cell_has_exactly_one_place(name: str) -> None:
    grid = lay_out(name, judge(as_published(name)))
    assert sorted(map(repr, (each.cell for each in grid.judged))) == sorted(map(repr, cells_of(name)))
    assert len(grid.lines) * len(grid.columns) == len(cells_of(name))


def test_lines_and_columns_stand_in_the_papers_order() -> None:
    grid = lay_out("table2", judge(as_published("table2")))
    assert [" ".join(line) for line in grid.lines] == [
        *(f"PGD-AT {name}" for name in ("KD", "LID", "GDA", "GDA*", "GMM")),
        *("CARL Margin", "ATRO Margin", "TRADES Con.", "CCAT Con.", "PGD-AT Con.", "PGD-AT SNet", "PGD-AT EBD"),
        *("TRADES RR", "CCAT RR", "PGD-AT RR"),
    ]
    assert [" ".join(filter(None, words)) for words in grid.columns] == [
        f"{inputs} {metric}"
        for inputs in ("Clean", *(f"PGD-100x10 {budget}" for budget in ("linf 8/255", "linf 16/255", "l2 128/255")))
        for metric in ("TPR-95", "AUC")
    ]
    twelve = lay_out("table12", judge(as_published("table12")))
    assert twelve.columns == (("All", "Clean"), ("All", "PGD-10"), ("AUC", "Clean"), ("AUC", "PGD-10"))


# Where the paper does not mark the largest of those that compete.
UNMARKED = {
    "table6": "its two versions of RR are both marked",
    "table9": "of two equal values one is marked",
    "table7": "no winner among normal attacks",
    "table12": "no winner among accuracies and margins",
}


@pytest.mark.parametrize("name", TABLES)
def test_the_winners_among_the_published_values_are_those_that_the_paper_marks(name: str) -> None:
    best = winners(name, judge(as_published(name)))
    bold = {cell for cell in cells_of(name) if cell.bold}
    if name == "table6":
        assert best <= bold
    elif name in UNMARKED:
        assert bold <= best
    else:
        assert best == bold


def test_names_labels_and_all() -> None:
    assert resolve("all") == TABLES
    assert resolve("label:table1") == ["table2"]
    assert resolve("label:appendixtable58") == ["table13"]
    assert "Table 1 as printed (LaTeX label table4)" in title("table1")
    assert len(index()) == 21


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("table14", "unknown table of the paper 'table14'; near: table"),
        ("label:tabel1", "unknown label of the paper 'tabel1'; near: table1"),
        ("figure4", "figure4 is a figure: rrbench figure --paper figure4"),
        ("label:fig24", "figure4 is a figure"),
    ],
)
def test_a_wrong_name_is_answered_in_one_line(name: str, words: str) -> None:
    with pytest.raises(UseError, match=words):
        resolve(name)


def test_another_data_set_has_the_same_table_without_published_values() -> None:
    for name, size in zip(TABLES, SIZES, strict=True):
        cells = relabelled(cells_of(name), "digits", "small-cnn")
        assert {(cell.dataset, cell.arch, cell.value, cell.bold) for cell in cells} == {
            ("digits", "small-cnn", "", False)
        }
        halves = {"table7": 2, "table8": 2, "table11": 2}  # two data sets or networks become one
        assert len(cells) == (size // halves.get(name, 1) if name != "text" else 12)
    (first, *_) = wanted(relabelled(cells_of("table2"), "digits", "small-cnn")[2], "quick")
    assert (first.dataset, first.network, first.attack, first.budget, first.n) == (
        "digits", "small-cnn", "pgd100x10", "linf:3/20", 360,
    )  # fmt: skip


def test_the_papers_own_data_set_named_aloud_keeps_its_published_values() -> None:
    assert relabelled(cells_of("table2"), "cifar10", "resnet18") == cells_of("table2")
    half = relabelled(cells_of("table8"), "cifar100", None)
    assert half == tuple(cell for cell in cells_of("table8") if cell.dataset == "cifar100")


def test_the_files_have_the_published_columns() -> None:
    header = next(csv.reader(io.StringIO(data("published/table02.csv"))))
    assert tuple(header) == FIELDS
