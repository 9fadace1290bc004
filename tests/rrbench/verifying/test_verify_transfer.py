"""`verify` on a transfer: it looks at the network that images were moved on, too."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import rrbench
from finished_run import one_cell, rekey, rewrite_cell, verify, verify_cell
from rrbench import zoo
from rrbench.files.checkpoints import read_checkpoint, write_checkpoint
from rrbench.rows.record import read_cell
from rrbench.rows.sight import is_blind
from rrbench.verifying.tolerance import EXACT

pytestmark = pytest.mark.usefixtures("own_folder")

TRANSFER = "transfer(pgd-at,by=pgd3)"


def the_transfer(folder: Path) -> Path:
    return one_cell(folder, "rr", TRANSFER)


@pytest.fixture
def transferred(bench: Any) -> Path:
    """A finished run with a transfer from pgd-at to pgd-at+rr."""
    bench.measure("rr", TRANSFER)
    return Path(bench.out)


def test_its_rows_are_those_of_a_blind_attack(transferred: Path) -> None:
    assert is_blind(read_cell(the_transfer(transferred))[0].row)


def test_an_honest_transfer_is_confirmed_and_comes_out_again(transferred: Path) -> None:
    findings = verify(transferred, rerun=True)
    assert findings.problems == []
    assert findings.confirmed == findings.rerun == 2
    assert findings.tolerances == {EXACT}


def other_weights(folder: Path) -> Path:
    """Change the network that images were moved on; return its file."""
    key = read_cell(the_transfer(folder))[0].cell["moved_on"]
    checkpoint = read_checkpoint(folder / "checkpoints" / f"{key}.safetensors")
    bias = checkpoint.tensors["classifier.bias"] + torch.arange(10.0)
    write_checkpoint(checkpoint.path, {**checkpoint.tensors, "classifier.bias": bias}, checkpoint.facts)
    return checkpoint.path


def say_moved_on(path: Path, sha256: str) -> None:
    stated = json.loads(json.loads(path.read_text())["row"]["settings"])
    rewrite_cell(path, forge=True, settings=json.dumps({**stated, "moved_on": sha256}, sort_keys=True))


def test_another_network_in_the_place_of_that_one_is_noticed(transferred: Path) -> None:
    changed = other_weights(transferred)
    (problem,) = verify(transferred).problems
    assert problem.endswith(
        f"of the network that its images were moved on: checkpoint {changed.name} does not have the row's SHA-256"
    )
    # Who writes the new hash into the row is found out by repeating the attack.
    say_moved_on(the_transfer(transferred), read_checkpoint(changed).sha256)
    path = the_transfer(transferred)
    assert verify_cell(path).problems == []
    assert any("repeating the attack gives other" in text for text in verify_cell(path, rerun=True).problems)


def in_attack(**changes: str) -> Callable[[Path], Path]:
    """Say that the images come from elsewhere, or were moved by something else; all keys fit."""

    def make(path: Path) -> Path:
        name, settings = read_cell(path)[0].cell["attack"]
        settings = settings | changes
        stated = json.loads(json.loads(path.read_text())["row"]["settings"]) | {"attack": settings}
        row = {"settings": json.dumps(stated), "attack": f"transfer({settings['source']},by={settings['by']})"}
        return rekey(path, row=row, attack=[name, settings])

    return make


def without_the_other(path: Path) -> Path:
    """Take the word of the other network out of the row."""
    stated = json.loads(json.loads(path.read_text())["row"]["settings"])
    del stated["moved_on"]
    rewrite_cell(path, forge=True, settings=json.dumps(stated))
    return path


@pytest.mark.parametrize(
    ("forge", "words"),
    [
        (in_attack(source="trades"), "its row says trained_as trades, and the network was trained as pgd-at"),
        (in_attack(by="pgd100"), "its images were moved by another attack than it names, pgd100"),
        (without_the_other, "do not agree on whether images were moved on another network"),
    ],
)
def test_a_forged_word_on_where_images_were_moved_is_noticed(
    transferred: Path, forge: Callable[[Path], Path], words: str
) -> None:
    findings = verify_cell(forge(the_transfer(transferred)))
    assert any(words in problem for problem in findings.problems), findings.problems


def test_a_checkpoint_of_another_key_is_noticed(transferred: Path) -> None:
    path = the_transfer(transferred)
    record, _ = read_cell(path)
    victim = transferred / "checkpoints" / f"{record.checkpoint}.safetensors"
    forged = rekey(path, moved_on=record.checkpoint)
    say_moved_on(forged, read_checkpoint(victim).sha256)
    problems = verify_cell(forged).problems
    assert any("was trained as pgd-at+rr" in problem for problem in problems), problems


def test_without_that_network_it_is_replayed_and_cannot_be_repeated(transferred: Path) -> None:
    record, _ = read_cell(the_transfer(transferred))
    (transferred / "checkpoints" / f"{record.cell['moved_on']}.safetensors").unlink()
    assert verify(transferred).confirmed == 2
    findings = verify(transferred, rerun=True)
    sha256 = json.loads(record.row.settings)["moved_on"][:12]
    assert findings.problems == []
    assert (findings.confirmed, findings.rerun) == (1, 1)
    assert list(findings.unchecked) == [
        f"the network {sha256} that its images were moved on is not here: a transfer cannot be repeated"
    ]


def test_of_a_zoo_s_network_key_and_row_have_the_hash(tmp_path: Path) -> None:
    rows = rrbench.run("rr", TRANSFER, out=tmp_path, device="cpu", limit=24)
    assert list(rows.status) == ["ok", "ok"]
    record, _ = read_cell(the_transfer(tmp_path))
    sha256 = json.loads(record.row.settings)["moved_on"]
    (entry,) = [entry for entry in zoo.entries(zoo.EMBEDDED) if entry.sha256 == sha256]
    assert (entry.trained_as, entry.seed) == ("pgd-at", 0)
    assert record.cell["moved_on"] == sha256[:24]
    assert verify(tmp_path, rerun=True).confirmed == 2
    forged = rekey(the_transfer(tmp_path), moved_on="0" * 24)
    assert any("is not " + "0" * 24 in problem for problem in verify_cell(forged).problems)
