"""`rrbench verify` holds each cell against its key, and the names of its files against both."""

import json
from pathlib import Path

import pytest

from finished_run import one_cell, rewrite_cell, verify_cell
from rrbench.planning.cells import attack_key, cell_key

OLDER = {"attack": 1, "dataset": 1, "engine": 1, "network": 1, "rejector": 1}


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("seed", 1, "its row says seed 0, and 1 was measured"),
        ("preset", "paper", "its row says preset quick, and paper was measured"),
        ("precision", "bf16", "its row says precision fp32, and bf16 was measured"),
        ("checkpoint", "0" * 24, ""),
        ("resamples", 7, ""),
        ("tpr_rule", "official", ""),
        ("limit", 59, ""),
        ("every", 2, "its row says every None, and 2 was measured"),
        ("every", -1, ""),
        ("every", "x", ""),
        ("network", ["small-cnn", {"width": 8}], ""),
        ("revisions", OLDER, "its row says the revisions"),
    ],
)
def test_a_cell_that_says_something_else_than_its_key_is_noticed(
    folder: Path, name: str, value: object, words: str
) -> None:
    path = one_cell(folder)
    told = json.loads(path.read_text())
    told["cell"][name] = value
    path.write_text(json.dumps(told))
    found = verify_cell(path).problems
    assert any(words in problem for problem in found)
    assert any("its key is not that of what was measured" in problem for problem in found)


def test_a_key_that_was_made_to_fit_is_noticed_by_the_names_of_the_files(folder: Path) -> None:
    path = one_cell(folder)
    told = json.loads(path.read_text())
    told["cell"]["seed"] = told["row"]["seed"] = 5
    told |= {"key": cell_key(told["cell"]), "attack": attack_key(told["cell"])}
    path.unlink()
    forged = folder / "cells" / f"{told['key']}.json"
    forged.write_text(json.dumps(told))
    rewrite_cell(forged, forge=True)
    assert any("which is not its own" in problem for problem in verify_cell(forged).problems)


def test_a_cell_file_under_another_name_than_its_key_is_noticed(folder: Path) -> None:
    path = one_cell(folder).rename(folder / "cells" / f"{'0' * 24}.json")
    assert any("its file is not named by its key" in problem for problem in verify_cell(path).problems)
