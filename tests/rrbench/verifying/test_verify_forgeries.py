"""`rrbench verify` notices every forgery. Wall-clock seconds alone pass: nothing here knows better."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from finished_run import (
    forge_arrays,
    forge_scores,
    one_cell,
    one_file,
    own_checkpoint,
    rekey,
    rewrite_arrays,
    rewrite_cell,
    verify,
    verify_cell,
)
from forgeries import FORGERIES, KD, attack_file, flip_certainties, members
from rrbench import zoo
from rrbench.files.checkpoints import read_checkpoint
from rrbench.rows.record import read_cell
from rrbench.rows.scores import CLEAN
from rrbench.verifying.tolerance import ROUNDED
from rrbench.zoo import Entry, write_index


def test_there_are_sixteen_forgeries_at_least() -> None:
    assert len(FORGERIES) >= 16


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_is_caught(folder: Path, name: str) -> None:
    forgery = FORGERIES[name]
    path = one_cell(folder, *forgery.cell)
    path = forgery.make(path) or path
    if forgery.needs_rerun:
        findings = verify_cell(path)
        assert findings.problems == [], "else the rerun would show nothing"
        assert findings.confirmed == 1
    findings = verify_cell(path, rerun=forgery.needs_rerun)
    assert any(forgery.words in problem for problem in findings.problems), findings.problems
    assert findings.confirmed == 0
    assert not any("\n" in problem for problem in findings.problems)


def test_honest_members_are_no_forgery(folder: Path) -> None:
    """Without the forged name, what `members` makes is believed: so the names are what is noticed."""
    findings = verify_cell(members(["pgd3"])(one_cell(folder)))
    assert findings.problems == []
    assert findings.confirmed == 1


def test_wall_clock_seconds_and_the_machine_are_believed(folder: Path) -> None:
    """What docs/verify.md says that verification cannot know."""
    path = one_cell(folder)
    forge_arrays(folder, attack_file(path), lambda arrays: arrays.update(seconds=np.asarray(1e-3)))
    rewrite_cell(path, forge=True, seconds=0.001, device="NVIDIA H200", version="9.9", commit="0" * 12)
    findings = verify_cell(path, rerun=True)
    assert findings.problems == []
    assert findings.tolerances == {ROUNDED}, "of another machine, it says"


def test_a_preset_that_does_not_give_these_settings_is_not_confirmed(folder: Path) -> None:
    """`pgd3` keeps the best image by preset quick and the last by paper; a --config might give the same."""
    findings = verify_cell(rekey(one_cell(folder), row={"preset": "paper"}, preset="paper"))
    assert findings.problems == []
    assert findings.confirmed == 0
    assert list(findings.unchecked) == [
        "preset paper does not give pgd3 its settings: measured with a --config, or not so"
    ]


def test_a_checkpoint_that_exists_nowhere_is_not_confirmed(folder: Path, command: Any) -> None:
    rekey(one_cell(folder), row={"checkpoint_sha256": "0" * 64}, checkpoint="0" * 24)
    findings = verify(folder)
    assert (findings.confirmed, sum(findings.unchecked.values())) == (8, 1)
    assert "all confirmed" not in findings.summary()


def test_a_network_that_was_not_kept_is_held_against_the_index(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = read_checkpoint(own_checkpoint(folder))
    facts = checkpoint.facts
    listed = Entry(
        file="", sha256=checkpoint.sha256, key=facts["key"], dataset="digits", network="small-cnn", trained_as="pgd-at",
        seed=0, epochs=3, clean_accuracy=90.0, robust_accuracy=50.0, command="rrbench train", recipe=facts["recipe"],
        log=["epoch 1", "epoch 2", "epoch 3"],
    )  # fmt: skip
    write_index(tmp_path / "zoo", [listed])
    monkeypatch.setenv("RRBENCH_ZOO", str(tmp_path / "zoo"))
    own_checkpoint(folder).unlink()
    path = one_cell(folder)
    findings = verify_cell(path, rerun=True)
    assert findings.problems == []
    assert (findings.confirmed, findings.recomputed, dict(findings.unchecked)) == (0, 1, {})
    for change, words in (
        ({"trained_as": "pgd-at+rr"}, "its row says trained_as pgd-at, and the network was trained as pgd-at+rr"),
        ({"seed": 3}, "its row says seed 0, and the network was trained as 3"),
        ({"recipe": {**facts["recipe"], "epochs": 1}}, "its row states another recipe"),
        ({"network": "resnet18"}, "its row says network small-cnn, and the network was trained as resnet18"),
    ):
        write_index(tmp_path / "zoo", [zoo.Entry(**{**vars(listed), **change})])
        assert any(words in problem for problem in verify_cell(path).problems)


@pytest.mark.parametrize("column", ["acc_all", "auc_low", "deploy_robust", "ece", "deploy_threshold"])
def test_a_changed_number_is_noticed_even_when_every_hash_was_made_to_fit(folder: Path, column: str) -> None:
    path = one_cell(folder)
    rewrite_cell(path, forge=True, **{column: getattr(read_cell(path)[0].row, column) + 0.01})
    assert any(f": {column} is " in problem for problem in verify_cell(path).problems)


def test_changed_scores_are_noticed_by_more_than_their_hash(folder: Path) -> None:
    rewrite_arrays(one_file(folder), flip_certainties)
    problems = verify_cell(one_cell(folder)).problems
    assert any("SHA-256" in problem for problem in problems)
    assert any("do not follow from the stored logits" in problem for problem in problems)


def test_rows_of_one_rejector_must_agree_on_its_clean_inputs(folder: Path) -> None:
    path = one_cell(folder, *KD)
    value = json.loads(path.read_text())
    (name,) = (name for name in value["files"] if name.startswith("clean/"))
    other = f"{name.removesuffix('.npz')}-01234567.npz"
    (folder / other).write_bytes((folder / name).read_bytes())
    value["files"][other] = value["files"].pop(name)
    path.write_text(json.dumps(value))
    forge_scores(path, CLEAN, lambda arrays: arrays.update(clean_certainty=arrays["clean_certainty"] + 5))
    problems = verify(folder).problems
    assert any("are not those of the rejector's other rows" in problem for problem in problems), problems
