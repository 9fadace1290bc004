"""Table 3 from corruptions that were made: they fill it, are told apart, and never hide the published ones."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from made_up_cifar import TinyCifar10, content, write_npz
from rrbench.datasets.cifar10_c import Corrupted
from rrbench.datasets.cifar10_c_made import Cifar10CMade
from rrbench.datasets.corruptions.making import make
from rrbench.files.checkpoints import write_checkpoint
from rrbench.files.disk import sha256
from rrbench.paper import tabulate
from rrbench.paper.cells import cells_of, relabelled, toml
from rrbench.paper.planning import plan_missing
from rrbench.paper.tabulate import PaperTables, Selection, tables_from
from rrbench.paper.wanted import wanted
from rrbench.plugins.registry import build
from rrbench.progress import Silent
from rrbench.protocols import DataSource, Rejector
from rrbench.rows.row import ResultRow, read_rows
from rrbench.training.train import build_network, describe_training
from rrbench.zoo import Entry, write_index

Make = Callable[..., list[ResultRow]]
MADE = "cifar10-c-made"
TEXTURE = "cifar10-c-made(frost_texture)"


def table3(rows: list[ResultRow], dataset: str | None = None) -> PaperTables:
    return tables_from(Selection("table3", dataset).cells(), rows, "")


def renamed(rows: list[ResultRow], before: str, after: str) -> list[ResultRow]:
    """Return the same rows of another data set, which takes less time than to plan them."""
    return [dataclasses.replace(row, dataset=row.dataset.replace(before, after)) for row in rows]


def notes(tables: PaperTables, corruption: str) -> set[str]:
    """Return the footnotes of all cells of one corruption."""
    own = [each for each in tables.judged if each.cell.attack == f"corruption:{corruption}"]
    return {note.id for each in own for note in each.footnotes}


def test_rows_of_made_corruptions_fill_table_3_with_a_footnote(rows_for: Make) -> None:
    rows = rows_for("table3", dataset=MADE)
    assert len(rows) == 450
    assert {row.dataset.partition("(")[0] for row in rows} == {MADE}
    tables = table3(rows)
    assert {each.verdict == "missing" for each in tables.judged} == {False}
    assert {each.measured.stand_in for each in tables.judged} == {MADE}
    assert all(each.difference is not None for each in tables.judged)
    for layout in ("text", "markdown", "latex", "html"):
        assert "data make" in " ".join(tables.show(layout).split())
    assert "footnote made-corruptions" in tables.show("csv")
    # Asked for by name, it is the same table.
    named = table3(rows, MADE)
    assert [each.measured.value for each in named.judged] == [each.measured.value for each in tables.judged]
    assert [each.cell.value for each in named.judged] == [each.cell.value for each in tables.judged]
    assert "made-corruptions" in notes(named, "fog")


def test_published_corruptions_come_first_and_carry_no_such_footnote(rows_for: Make) -> None:
    made = rows_for("table3", dataset=MADE)
    published = renamed(made, MADE, "cifar10-c")
    tables = table3([*made, *published])
    assert {each.measured.stand_in for each in tables.judged} == {""}
    assert "made-corruptions" not in notes(tables, "fog")
    assert "data make" not in tables.show("text")
    # The mean is never over both: four severities of one and the fifth of the other are no cell.
    mixed = [row for row in published if "severity=5" not in row.dataset]
    mixed += [row for row in made if "severity=5" in row.dataset]
    assert {each.verdict for each in table3(mixed).judged} == {"missing"}
    assert table3(mixed).judged[0].measured.note == f"4 of 5 parts measured; {MADE}: 1 of 5 parts measured"


def test_made_rows_do_not_stop_the_published_ones_from_being_measured(rows_for: Make) -> None:
    made = rows_for("table3", dataset=MADE)
    assert len(plan_missing(Selection("table3"), made, (0,)).cells) == 450
    assert plan_missing(Selection("table3", MADE), made, (0,)).cells == ()


def test_frost_from_a_texture_says_so_and_gives_way_to_photographs(rows_for: Make) -> None:
    frost = [cell for cell in Selection("table3", TEXTURE).cells()["table3"] if cell.attack == "corruption:frost"]
    assert {each.dataset for cell in frost for each in wanted(cell, "paper")} == {
        f"{MADE}(frost_texture,severity={severity})" for severity in range(1, 6)
    }
    made = rows_for("table3", dataset=MADE)
    drawn = renamed(made, f"{MADE}(frost,", f"{MADE}(frost_texture,")
    tables = table3(drawn)
    assert "frost-texture" in notes(tables, "frost")
    assert "frost-texture" not in notes(tables, "fog")
    assert "made-corruptions" in notes(tables, "frost") & notes(tables, "fog")
    both = table3([*drawn, *made])
    assert "frost-texture" not in notes(both, "frost")
    assert [each.measured.stand_in for each in both.judged] == [MADE] * 90


def test_pooled_made_corruptions_fill_it_under_preset_official(rows_for: Make) -> None:
    rows = rows_for("table3", dataset=MADE, preset="official")
    assert len(rows) == 90
    assert {row.n for row in rows} == {50_000}
    assert {each.measured.preset for each in table3(rows).judged} == {"official"}


def test_only_a_stand_in_keeps_the_published_values() -> None:
    cells = cells_of("table3")
    assert [cell.value for cell in relabelled(cells, MADE, None)] == [cell.value for cell in cells]
    assert {cell.value for cell in relabelled(cells, MADE, "small-cnn")} == {""}
    assert {cell.value for cell in relabelled(cells, "cifar100", None)} == {""}
    assert {cell.value for cell in relabelled(cells_of("table1"), MADE, None)} == {""}


def pack_untrained(folder: Path) -> None:
    """Write a zoo of the network that PGD-AT+RR would train, untrained."""
    (training,) = plan_missing(Selection("table3", TEXTURE), [], (0,)).checkpoints()
    network = build_network(training, build(DataSource, training.dataset).info, build(Rejector, training.rejector))
    file = folder / "network.safetensors"
    log = [{"epoch": epoch} for epoch in range(1, training.recipe.epochs + 1)]
    write_checkpoint(file, network.state_dict(), {**describe_training(training), "epoch": len(log), "log": log})
    names = (str(training.dataset), str(training.network), training.trained_as, training.seed)
    write_index(folder, [Entry(file.name, sha256(file), training.key, *names, 110, 10.0, 0.0, "made up")])


def test_a_tiny_made_data_set_is_run_and_tabulated(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`rrbench run --paper table3` and `rrbench table --paper table3`: 20 images, a small network, two cells."""
    monkeypatch.setattr(Corrupted, "clean", TinyCifar10())
    names = toml("names.toml")
    monkeypatch.setitem(names["dataset"][TEXTURE]["parts"]["paper"], "test", 20)
    monkeypatch.setitem(names["dataset"][MADE]["parts"]["paper"], "test", 20)
    monkeypatch.setitem(names["arch"]["resnet18"], "name", "small-cnn")
    two = tuple(
        cell
        for cell in cells_of("table3")
        if (cell.at, cell.rejector) == ("pgd-at", "rr") and cell.attack in ("corruption:fog", "corruption:frost")
    )
    monkeypatch.setattr(tabulate, "cells_of", lambda name: two)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path))
    (tmp_path / "results").mkdir()
    pack_untrained(tmp_path)
    write_npz(TinyCifar10, tmp_path, content(TinyCifar10))
    monkeypatch.setattr(Cifar10CMade, "corruptions", ("fog", "frost", "frost_texture"))  # to save time
    make(tmp_path, (tmp_path,), None, 2, Silent())
    options = ["--zoo", "--data-dir", str(tmp_path), "--device", "cpu", "--out", "made"]

    said = command("run", "--paper", "table3", "--dataset", TEXTURE, *options)
    assert said.code == 0, said.err
    assert "2 cells" in said.out
    assert "0 missing" in said.out
    rows = read_rows(tmp_path / "made")
    assert [row.n for row in rows] == [20] * 10
    assert {row.dataset for row in rows} == {
        f"{MADE}({name},severity={severity})" for name in ("fog", "frost_texture") for severity in range(1, 6)
    }
    assert len({row.data_sha256 for row in rows}) == 10

    table = command("table", "--paper", "table3", "--results", "made")
    assert table.code == 0, table.err
    for said in ("`rrbench data make` made with the published constants", "frost from a texture that was drawn"):
        assert said in " ".join(table.out.split())
    assert "missing" not in table.out.splitlines()[3]
    verified = command("verify", "made", "--data-dir", str(tmp_path))
    assert verified.code == 0, verified.out + verified.err
    assert "10 cells" in verified.out

    # The published files are asked for by their own name, and the made ones are not taken for them.
    refused = command("run", "--paper", "table3", *options)
    assert refused.code == 2
    assert "cifar10-c is not in" in refused.err
    assert "make and name cifar10-c-made instead" in refused.err
    assert len(read_rows(tmp_path / "made")) == 10
