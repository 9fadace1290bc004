"""`rrbench verify` on forged results: what is noticed though the hashes, and even the numbers, were made to fit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from finished_run import one_cell, one_score_file, own_checkpoint, rewrite_cell, rewrite_scores, verify
from rrbench.checkpoints import read_checkpoint, write_checkpoint
from rrbench.evaluation import Scores, metrics_of
from rrbench.store import CellRecord, load_arrays, read_cell


def test_changed_scores_are_noticed_even_when_the_hash_was_made_to_fit(folder: Path) -> None:
    def swap(arrays: dict[str, Any]) -> None:
        arrays["certainty"][:30] = arrays["certainty"][:30][::-1].copy()

    changed = rewrite_scores(one_score_file(folder), swap)
    rewrite_cell(one_cell(folder), scores_sha256=changed)
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

    rewrite_cell(one_cell(folder), scores_sha256=rewrite_scores(one_score_file(folder), brighten))
    budget, replay = verify(folder).problems
    assert "its stored images: the attack left its budget: linf 0." in budget
    assert "the checkpoint gives other logits for the stored images" in replay


def forge(folder: Path, change: Callable[[dict[str, Any]], object], rejector: str = "confidence") -> None:
    """Change a cell's scores and make every number and hash fit them."""
    cell, scores = one_cell(folder, rejector), one_score_file(folder, rejector)
    sha256 = rewrite_scores(scores, change)
    arrays = load_arrays(scores)
    arrays.pop("images")
    told = json.loads(cell.read_text())
    fitting = metrics_of(Scores(**arrays), told["cell"]["tpr_rule"], told["cell"]["resamples"], 0)
    rewrite_cell(cell, forge=True, **fitting._asdict(), scores_sha256=sha256)


def problems(folder: Path, *, rerun: bool = False) -> list[str]:
    """What is wrong but for rows.csv, which a forger would write anew."""
    return [text for text in verify(folder, rerun=rerun).problems if not text.startswith("rows.csv")]


def lower_threshold(arrays: dict[str, Any]) -> None:
    arrays["threshold"] = arrays["threshold"] - 0.1


def count_the_right_ones(arrays: dict[str, Any]) -> None:
    arrays["is_deployed"] = arrays["prediction"] == arrays["labels"]


def keep_one_image(arrays: dict[str, Any]) -> None:
    arrays["images"] = arrays["images"][:1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lower_threshold, "on held-out inputs"),
        (count_the_right_ones, "counts other inputs as held out"),
        (keep_one_image, "only 1 of its images"),
    ],
)
def test_scores_that_the_data_contradict_are_noticed_though_every_number_fits_them(
    folder: Path, change: Callable[[dict[str, Any]], object], words: str
) -> None:
    forge(folder, change)
    (problem,) = problems(folder)
    assert words in problem


def test_the_threshold_of_a_fitted_rejector_is_checked_by_a_rerun(folder: Path) -> None:
    forge(folder, lower_threshold, "kd")
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
    assert any(words in problem for problem in problems(folder))


def test_results_of_a_weaker_attack_are_noticed_by_repeating_it(folder: Path) -> None:
    """Pass off the clean images as attacked ones, with every hash and number made to fit."""
    clean, moved = one_cell(folder, attack="clean"), one_cell(folder)
    shutil.copyfile(one_score_file(folder, attack="clean"), one_score_file(folder))
    old, new = json.loads(clean.read_text()), json.loads(moved.read_text())
    kept = {name: new["row"][name] for name in ("attack", "norm", "eps", "settings", "gradients", "seconds")}
    rewrite_cell(moved, forge=True, **{**old["row"], **kept}, scores_sha256=old["scores_sha256"])
    assert not any(problem.startswith("pgd-at confidence") for problem in verify(folder).problems)
    problems = [problem for problem in verify(folder, rerun=True).problems if problem.startswith("pgd-at confidence")]
    assert len(problems) == 1
    assert "repeating the attack changes" in problems[0]


def test_labels_that_are_not_the_data_sets_are_noticed_though_every_number_fits_them(folder: Path) -> None:
    def flatter(arrays: dict[str, Any]) -> None:
        arrays["labels"] = arrays["prediction"].copy()

    path = one_cell(folder)
    scores_sha256 = rewrite_scores(one_score_file(folder), flatter)
    with np.load(one_score_file(folder)) as file:
        scores = Scores(**{name: file[name] for name in Scores._fields})
    numbers = metrics_of(scores, "quantile", 200, 0)._asdict()
    assert numbers["acc_all"] == 100
    rewrite_cell(path, forge=True, **numbers, scores_sha256=scores_sha256)
    assert any(problem.startswith("pgd-at confidence pgd3") for problem in verify(folder).problems)


def test_a_row_of_other_data_is_noticed(folder: Path) -> None:
    rewrite_cell(one_cell(folder), forge=True, data_sha256="0" * 64)
    assert any(problem.startswith("pgd-at confidence pgd3") for problem in verify(folder).problems)
