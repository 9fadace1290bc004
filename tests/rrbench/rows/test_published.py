"""Where published rows are found, and what is said where scores or weights are asked for."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rrbench
from rrbench.rows import published
from rrbench.rows.published import find_results, published_results
from rrbench.rows.row import ResultRow, write_rows

CHECKOUT = Path(__file__).resolve().parents[3] / "results"
ROW = ResultRow(
    "cifar10", "resnet18", "pgd-at", "pgd-at", "rr", "pgd10", "linf", "8/255", 0, "paper", 10_000, acc_all=50.0
)
NOT_HERE = "results/cifar10 is not here: these are its rows from rrbench 0.1.0 itself, cifar10"
WHERE = "scores are in results/cifar10 of rrbench's source repository"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder without results."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Be installed from a wheel: there is no checkout, and the package holds one row."""
    package = tmp_path / "rrbench" / "results"
    write_rows(package / "cifar10" / "rows.csv", [ROW])
    monkeypatch.setattr(published, "PACKAGED", package)
    monkeypatch.setattr(published, "_elsewhere", lambda: [package])
    return package


def test_rows_come_from_results_here_else_from_the_checkout(elsewhere: Path) -> None:
    assert published_results() == CHECKOUT
    (elsewhere / "results").mkdir()
    (elsewhere / "results" / "other.csv").write_text("a,b\n1,2\n")
    assert published_results() == CHECKOUT, "somebody's folder of this name without rows hides nothing"
    write_rows(elsewhere / "results" / "mine" / "rows.csv", [ROW])
    assert published_results() == Path("results")


def test_only_what_is_named_as_published_and_not_here_is_looked_for_elsewhere(elsewhere: Path) -> None:
    assert find_results(Path("results/cifar10")) == CHECKOUT / "cifar10"
    for name in ("cifar10", "runs", "results/nowhere", "results/../results/cifar10", "my/results/cifar10"):
        assert find_results(Path(name)) == Path(name)
    (elsewhere / "results" / "cifar10").mkdir(parents=True)
    assert find_results(Path("results/cifar10")) == Path("results/cifar10")


def test_a_table_says_which_rows_it_was_filled_from(command: Callable[..., Any], packaged: Path) -> None:
    answer = command("table", "--paper", "table1")
    assert "rows from rrbench 0.1.0 itself (1 row)" in answer.out
    answer = command("table", "results/cifar10")
    assert (answer.code, answer.err) == (0, f"rrbench: {NOT_HERE}; {WHERE}\n")
    assert "50.00" in answer.out
    with pytest.warns(UserWarning, match=NOT_HERE):
        assert rrbench.table("results/cifar10")["acc_all"].tolist() == [50.0]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["figure", "results/cifar10", "--paper", "risk-coverage"], f"this figure needs scores, .* {WHERE}"),
        (["figure", "results/cifar10", "--paper", "figure8"], f"this figure needs scores, .* {WHERE}"),
        (["verify", "results/cifar10"], f"verify needs scores, .* {WHERE}"),
        (["table", "results/cifar"], "no results at results/cifar$"),
        (
            ["run", "--dataset", "cifar10", "--zoo", "--attacks", "pgd10", "--dry-run"],
            r"in results/zoo \(results/zoo of rrbench's source repository has some: set RRBENCH_ZOO to it\)",
        ),
    ],
)
def test_what_needs_scores_or_weights_says_where_they_are(
    command: Callable[..., Any], packaged: Path, arguments: list[str], words: str
) -> None:
    answer = command(*arguments)
    assert (answer.code, answer.out) == (2, "")
    others = ("is not here", "rrbench: warning: plugin")  # a plugin that is broken on purpose
    assert len([line for line in answer.err.splitlines() if not any(text in line for text in others)]) == 1
    assert re.search(words, answer.err.splitlines()[-1])


def test_a_plot_of_rows_alone_is_drawn_from_a_csv(command: Callable[..., Any], packaged: Path, elsewhere: Path) -> None:
    answer = command("figure", packaged / "cifar10" / "rows.csv", "--paper", "accuracy-budget", "--out", "plot.svg")
    assert answer.code == 0
    assert ">8/255<" in (elsewhere / "plot.svg").read_text(encoding="utf-8")
