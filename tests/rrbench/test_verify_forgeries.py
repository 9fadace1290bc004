"""`rrbench verify` on forged results: what is noticed though the hashes, and even the numbers, were made to fit."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finished_run import forge_arrays, one_cell, one_file, own_checkpoint, rewrite_cell, verify
from rrbench.cells import attack_key, cell_key
from rrbench.checkpoints import read_checkpoint, write_checkpoint
from rrbench.evaluation import metrics_of
from rrbench.scores import ATTACKS, DATA, SCORES, read_scores
from rrbench.store import CellRecord, load_arrays, read_cell


def test_changed_scores_are_noticed_even_when_the_hash_was_made_to_fit(folder: Path) -> None:
    def swap(arrays: dict[str, Any]) -> None:
        arrays["certainty"][:30] = arrays["certainty"][:30][::-1].copy()

    forge_arrays(folder, one_file(folder), swap)
    problems = verify(folder).problems
    assert not any("SHA-256" in problem for problem in problems)
    assert any("certainties do not follow from the stored logits" in problem for problem in problems)


@pytest.mark.parametrize("column", ["acc_all", "auc_low", "deploy_robust", "ece", "deploy_threshold"])
def test_a_changed_number_is_noticed_even_when_every_hash_was_made_to_fit(folder: Path, column: str) -> None:
    record: CellRecord = read_cell(one_cell(folder))[0]
    rewrite_cell(one_cell(folder), forge=True, **{column: getattr(record.row, column) + 0.01})
    assert any(f": {column} is " in problem for problem in verify(folder).problems)


def test_another_checkpoint_under_a_hash_made_to_fit_is_noticed_by_replay(folder: Path) -> None:
    path = own_checkpoint(folder)
    checkpoint = read_checkpoint(path)
    weights = {**checkpoint.tensors, "classifier.bias": checkpoint.tensors["classifier.bias"] + torch.arange(10.0)}
    write_checkpoint(path, weights, checkpoint.facts)
    rewrite_cell(one_cell(folder), forge=True, checkpoint_sha256=read_checkpoint(path).sha256)
    problems = [problem for problem in verify(folder).problems if problem.startswith("pgd-at confidence pgd3")]
    assert any("the checkpoint gives other logits for the stored images" in problem for problem in problems)


def test_changed_images_are_noticed_even_when_every_hash_was_made_to_fit(folder: Path) -> None:
    def brighten(arrays: dict[str, Any]) -> None:
        arrays["images"] = np.clip(arrays["images"] + 0.2, 0, 1)

    forge_arrays(folder, one_file(folder, ATTACKS), brighten)
    found = [problem for problem in verify(folder).problems if problem.startswith("pgd-at confidence pgd3")]
    budget, replay = found
    assert "its stored images: the attack left its budget: linf 0." in budget
    assert "the checkpoint gives other logits for the stored images" in replay


def forge(folder: Path, holder: str, change: Callable[[dict[str, Any]], object], rejector: str = "confidence") -> None:
    """Change a cell's scores and make every number and hash fit them."""
    cell = one_cell(folder, rejector)
    forge_arrays(folder, one_file(folder, holder, rejector), change)
    record = read_cell(cell)[0]
    scores = read_scores(folder, record.files)
    fitting = metrics_of(scores, record.cell["tpr_rule"], record.cell["resamples"], 0)
    rewrite_cell(cell, forge=True, **fitting._asdict())


def problems(folder: Path, *, rerun: bool = False) -> list[str]:
    """What is wrong with the forged row, but for rows.csv, which a forger would write anew."""
    rows = ("pgd-at confidence pgd3", "pgd-at kd pgd3")
    return [text for text in verify(folder, rerun=rerun).problems if text.startswith(rows)]


def lower_threshold(arrays: dict[str, Any]) -> None:
    arrays["threshold"] = arrays["threshold"] - 0.1


def count_every_second_one(arrays: dict[str, Any]) -> None:
    arrays["held_out"] = np.arange(len(arrays["labels"])) % 2 == 0


def keep_one_image(arrays: dict[str, Any]) -> None:
    arrays["images"] = arrays["images"][:1]


@pytest.mark.parametrize(
    ("holder", "change", "words"),
    [
        (SCORES, lower_threshold, "on held-out inputs"),
        (DATA, count_every_second_one, "counts other inputs as held out"),
        (ATTACKS, keep_one_image, "only 1 of its images"),
    ],
)
def test_scores_that_the_data_contradict_are_noticed_though_every_number_fits_them(
    folder: Path, holder: str, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    forge(folder, holder, change)
    (problem,) = [text for text in problems(folder) if text.startswith("pgd-at confidence")]
    assert words in problem


def test_the_threshold_of_a_fitted_rejector_is_checked_by_a_rerun(folder: Path) -> None:
    forge(folder, SCORES, lower_threshold, "kd")
    assert problems(folder) == []
    assert any("on held-out inputs" in problem for problem in problems(folder, rerun=True))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rejector": "rr"}, "its row says rejector rr"),
        ({"attack": "adaptive(con+rcon)"}, "its row says attack adaptive"),
        ({"network": "resnet18"}, "its row says network resnet18"),
        ({"eps": "9/20"}, "its row says the budget linf:9/20"),
        ({"norm": "", "eps": ""}, "its row says the budget none"),
    ],
)
def test_a_row_that_names_something_else_than_was_measured_is_noticed(
    folder: Path, changes: dict[str, str], words: str
) -> None:
    rewrite_cell(one_cell(folder), forge=True, **changes)
    assert any(words in problem for problem in verify(folder).problems)


def overlay(others: dict[str, Any], arrays: dict[str, Any]) -> None:
    arrays.update(others)


def test_results_of_a_weaker_attack_are_noticed_by_repeating_it(folder: Path) -> None:
    """Pass off the clean images as attacked ones, with every hash and number made to fit."""
    clean, moved = one_cell(folder, attack="clean"), one_cell(folder)
    for holder in (ATTACKS, SCORES):
        honest = load_arrays(one_file(folder, holder, attack="clean"))
        forge_arrays(folder, one_file(folder, holder), partial(overlay, honest))
    old, new = json.loads(clean.read_text()), json.loads(moved.read_text())
    own = ("attack", "norm", "eps", "settings", "gradients", "seconds", "revisions")
    rewrite_cell(moved, forge=True, **{**old["row"], **{name: new["row"][name] for name in own}})
    assert [problem for problem in verify(folder).problems if problem.startswith("pgd-at confidence")] == []
    problems = [problem for problem in verify(folder, rerun=True).problems if problem.startswith("pgd-at confidence")]
    assert len(problems) == 1
    assert "repeating the attack changes" in problems[0]


def test_labels_that_are_not_the_data_sets_are_noticed_though_every_number_fits_them(folder: Path) -> None:
    answers = read_scores(folder, read_cell(one_cell(folder))[0].files).prediction
    forge(folder, DATA, lambda arrays: arrays.update(labels=answers))
    assert read_cell(one_cell(folder))[0].row.acc_all == 100
    assert any("its ids or labels are not the data set's" in problem for problem in problems(folder))


def test_a_row_of_other_data_is_noticed(folder: Path) -> None:
    rewrite_cell(one_cell(folder), forge=True, data_sha256="0" * 64)
    assert any(problem.startswith("pgd-at confidence pgd3") for problem in verify(folder).problems)


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
    found = problems(folder)
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
    found = [problem for problem in verify(folder).problems if "seed 5" in problem]
    assert any("which is not its own" in problem for problem in found)


def test_a_cell_file_under_another_name_than_its_key_is_noticed(folder: Path) -> None:
    path = one_cell(folder)
    path.rename(path.with_stem("0" * 24))
    assert any("its file is not named by its key" in problem for problem in problems(folder))
