"""Whole runs one after another: nothing is done twice, and what an earlier one left is used, kept or named."""

import re
import shutil
from typing import Any

import numpy as np
import pytest

from made_up_plugins import Brighter, by_attack, measured
from rrbench.rows.row import read_rows
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("plugins")


def test_a_second_run_attacks_nothing_and_gives_the_same_rows(bench: Any) -> None:
    first = bench.measure("confidence", "brighter,pgd2")
    assert Brighter.calls == [60]
    assert len(bench.attacked()) == 3
    files = {path: path.stat().st_mtime_ns for path in (bench.out / "cells").iterdir()}
    assert bench.measure("confidence", "brighter,pgd2") == first
    assert Brighter.calls == [60]
    assert bench.report.tasks == []
    assert {path: path.stat().st_mtime_ns for path in (bench.out / "cells").iterdir()} == files


def test_one_attack_serves_all_rejectors_of_a_checkpoint(bench: Any) -> None:
    rows = bench.measure("confidence,t-con,noise,kd", "brighter,pgd2")
    assert Brighter.calls == [60]
    assert [task.split()[2] for task in bench.attacked()] == ["clean", "brighter", "pgd2"]
    assert len(rows) == 12
    assert {row.acc_all for row in rows if row.attack == "pgd2"} == {by_attack(rows)["pgd2"].acc_all}


def test_a_rejector_added_later_uses_the_stored_attack(bench: Any) -> None:
    together = bench.measure("confidence,noise", "brighter,pgd2")
    Brighter.calls.clear()
    shutil.rmtree(bench.out / "cells")
    shutil.rmtree(bench.out / "attacks")
    bench.measure("confidence", "brighter,pgd2")
    assert Brighter.calls == [60]
    later = bench.measure("confidence,noise", "brighter,pgd2")
    assert Brighter.calls == [60]
    assert bench.attacked() == []
    assert [measured(row) for row in later] == [measured(row) for row in together]


def test_an_adaptive_attack_is_made_for_each_rejector(bench: Any) -> None:
    bench.measure("confidence,noise", "watching")
    assert Brighter.calls == [60, 60]
    bench.measure("confidence,noise,kd", "watching")
    assert Brighter.calls == [60, 60, 60]


def test_a_checkpoint_is_trained_once_and_shared_by_the_rejectors_with_its_key(empty: Any) -> None:
    rows = empty.measure("confidence,noise,ebd", "clean", recipe={"epochs": 1, "batch": 1077})
    assert [task.split()[1] for task in empty.trained()] == ["pgd-at", "pgd-at+ebd"]
    assert [row.trained_as for row in rows] == ["pgd-at", "pgd-at", "pgd-at+ebd"]
    empty.measure("confidence,noise,ebd", "clean", recipe={"epochs": 1, "batch": 1077})
    assert empty.trained() == []


def test_another_budget_seed_or_limit_is_another_cell(bench: Any) -> None:
    bench.measure("confidence", "brighter", budgets="linf:1/10")
    bench.measure("confidence", "brighter", budgets="linf:1/10,linf:2/20,linf:1/5")
    assert Brighter.calls == [60, 60], "1/10 and 2/20 are the same radius"
    bench.measure("confidence", "brighter", budgets="linf:1/10", limit=30)
    assert Brighter.calls == [60, 60, 30]
    assert [(row.attack, row.eps, row.n) for row in read_rows(bench.out)] == [
        ("clean", "", 30),
        ("clean", "", 60),
        ("brighter", "1/10", 30),
        ("brighter", "1/10", 60),
        ("brighter", "1/5", 60),
    ]


def test_a_run_that_died_before_writing_its_csv_writes_it_the_next_time(bench: Any) -> None:
    bench.measure("confidence", "brighter")
    before = (bench.out / "rows.csv").read_bytes()
    (bench.out / "rows.csv").unlink()
    bench.measure("confidence", "brighter")
    assert (bench.out / "rows.csv").read_bytes() == before


def test_keeping_all_images_is_done_or_refused_aloud_in_a_folder_that_has_few(bench: Any) -> None:
    def kept() -> set[int]:
        return {len(np.load(path)["images"]) for path in (bench.out / "attacks").glob("*.whole.npz")}

    bench.measure("confidence", "brighter")
    assert kept() == set()
    bench.measure("confidence", "brighter", keep="images")
    assert kept() == set()
    assert any("keep" in line for line in bench.report.lines)
    bench.measure("confidence", "brighter", keep="images", budgets="linf:1/5")
    assert kept() == {60}


def test_rows_of_earlier_code_are_named(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.measure("confidence", "brighter")
    earlier = {path.name for path in (bench.out / "cells").iterdir()}
    assert not any("other versions of the code" in line for line in bench.report.lines)
    monkeypatch.setattr(Confidence, "revision", 2)
    bench.measure("confidence", "brighter")
    (told,) = [line for line in bench.report.lines if "other versions of the code" in line]
    assert told.startswith(f"{len(earlier)} older rows of the same cells")
    assert set(re.findall(r"cells/(\S+\.json)", told)) == earlier


def test_rows_of_another_limit_are_not_of_earlier_code(bench: Any) -> None:
    for limit in (360, None):  # as many as there are, either way
        bench.measure("confidence", "brighter", limit=limit)
    assert len(read_rows(bench.out)) == 4
    assert not any("other versions of the code" in line for line in bench.report.lines)


def test_what_one_run_kept_a_later_one_leaves_there(bench: Any) -> None:
    def kept() -> list[tuple[bool, int]]:
        found = [np.load(path) for path in sorted((bench.out / "attacks").glob("*.whole.npz"))]
        return [("features" in arrays, len(arrays["images"])) for arrays in found]

    bench.measure("confidence", "brighter", keep="features,images")
    before = kept()
    assert before == [(True, 60)] * 2
    bench.measure("kd", "brighter")
    assert kept() == before


def test_features_stay_only_while_they_are_needed(bench: Any) -> None:
    bench.measure("kd", "brighter")
    assert not list((bench.out / "attacks").glob("*.whole.npz"))


def test_a_rejector_that_needs_features_later_repeats_the_attack_and_leaves_the_earlier_cells_as_they_are(
    bench: Any,
) -> None:
    bench.measure("confidence", "brighter")
    before = {path: path.read_bytes() for path in (bench.out / "attacks").iterdir()}
    bench.measure("kd", "brighter")
    assert Brighter.calls == [60, 60]
    assert {path: path.read_bytes() for path in (bench.out / "attacks").iterdir()} == before
