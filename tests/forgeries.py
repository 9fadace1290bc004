"""Forged results. The forger makes every hash, key, file name and number fit what was changed.

Each forgery has a name and says what notices it: the cell's key, the checkpoint's header, the attack's file, the data,
a replay, or only a rerun.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from finished_run import (
    forge_arrays,
    forge_scores,
    one_file,
    own_checkpoint,
    rekey,
    rewrite_cell,
)
from rrbench.files.arrays import load_arrays
from rrbench.files.checkpoints import read_checkpoint, write_checkpoint
from rrbench.metrics.deployment import accepted_by
from rrbench.planning.cells import victim_key
from rrbench.rows.record import read_cell
from rrbench.rows.scores import ATTACKS, CLEAN, DATA, SCORES, read_scores

Arrays = dict[str, Any]


@dataclass(frozen=True)
class Forgery:
    """What a forger does to a cell, and the words that give it away."""

    make: Callable[[Path], Path | None]  # takes the cell's file, returns it where its name was changed
    words: str
    needs_rerun: bool = False
    cell: tuple[str, str] = ("confidence", "pgd3")


def in_row(**changes: Any) -> Callable[[Path], None]:
    return lambda path: rewrite_cell(path, forge=True, **changes)


def in_settings(path: Path, **changes: Any) -> None:
    stated = json.loads(json.loads(path.read_text())["row"]["settings"])
    rewrite_cell(path, forge=True, settings=json.dumps(stated | changes, sort_keys=True))


def in_scores(holder: str, change: Callable[[Arrays], object]) -> Callable[[Path], None]:
    return lambda path: forge_scores(path, holder, change)


def in_key(name: str, value: object, column: object = None) -> Callable[[Path], Path]:
    """Change what was measured, the row with it."""
    return lambda path: rekey(path, row={name: value if column is None else column}, **{name: value})


def gradients_everywhere(path: Path) -> None:
    forge_arrays(path.parent.parent, attack_file(path), lambda arrays: arrays.update(gradients=np.asarray(300.0)))
    rewrite_cell(path, forge=True, gradients=300.0)


def attack_file(path: Path) -> Path:
    (name,) = [name for name in read_cell(path)[0].files if name.startswith(ATTACKS)]
    return path.parent.parent / name


def recipe_of_110_epochs(path: Path) -> None:
    recipe = json.loads(json.loads(path.read_text())["row"]["settings"])["recipe"]
    in_settings(path, recipe={**recipe, "epochs": 110})


def header_too(path: Path) -> None:
    """Write the longer recipe into the checkpoint's header as well, and its new hash into the row."""
    checkpoint = read_checkpoint(own_checkpoint(path.parent.parent))
    facts = {**checkpoint.facts, "recipe": {**checkpoint.facts["recipe"], "epochs": 110}}
    write_checkpoint(checkpoint.path, checkpoint.tensors, facts)
    recipe_of_110_epochs(path)
    rewrite_cell(path, forge=True, checkpoint_sha256=read_checkpoint(checkpoint.path).sha256)


def other_framework(path: Path) -> Path:
    """Claim TRADES for a network of PGD-AT."""
    stated = json.loads(json.loads(path.read_text())["row"]["settings"])
    settings = {"eps": "3/20", "step": "3/80", "steps": 7, "attack_mode": "eval", "beta": 6.0}
    row = {"framework": "trades", "trained_as": "trades", "settings": json.dumps({**stated, "framework": settings})}
    return rekey(path, row=row, framework=["trades", settings])


def in_header(change: Callable[[dict[str, Any]], object], **row: Any) -> Callable[[Path], None]:
    """Change the header of the row's checkpoint, and what the row says with it."""

    def make(path: Path) -> None:
        record = read_cell(path)[0]
        checkpoint = read_checkpoint(path.parent.parent / "checkpoints" / f"{record.checkpoint}.safetensors")
        facts = dict(checkpoint.facts)
        change(facts)
        write_checkpoint(checkpoint.path, checkpoint.tensors, facts)
        rewrite_cell(path, forge=True, checkpoint_sha256=read_checkpoint(checkpoint.path).sha256, **row)

    return make


def members(labels: list[str]) -> Callable[[Path], Path]:
    """Make the row that of an ensemble of one attack, and name others in it."""

    def make(path: Path) -> Path:
        attack = read_cell(path)[0].cell["attack"]
        in_settings(path, members=labels)
        revisions = {**read_cell(path)[0].cell["revisions"], "members": [1]}
        row = {"revisions": json.dumps(revisions, sort_keys=True)}
        return rekey(path, row=row, members=[attack], revisions=revisions)

    return make


def other_weights(path: Path) -> None:
    checkpoint = read_checkpoint(own_checkpoint(path.parent.parent))
    bias = checkpoint.tensors["classifier.bias"] + torch.arange(10.0)
    write_checkpoint(checkpoint.path, {**checkpoint.tensors, "classifier.bias": bias}, checkpoint.facts)
    rewrite_cell(path, forge=True, checkpoint_sha256=read_checkpoint(checkpoint.path).sha256)


def clean_for_attacked(path: Path) -> None:
    """Pass off the clean images as attacked ones."""
    folder = path.parent.parent
    clean = load_arrays(one_file(folder, ATTACKS, attack="clean"))
    kept = ("key", "seconds", "gradients", "forwards")
    honest = {name: array for name, array in clean.items() if name not in kept}
    forge_arrays(folder, attack_file(path), lambda arrays: (arrays.pop("images"), arrays.update(honest)))
    forge_scores(path, SCORES, lambda arrays: arrays.clear())


def sort_accepted(path: Path) -> None:
    """Reorder certainties among the accepted inputs, the right ones first: AUC grows, and no verdict changes."""
    folder = path.parent.parent
    scores = read_scores(folder, read_cell(path)[0].files)
    correct = scores.correct

    def change(arrays: Arrays) -> None:
        is_accepted = accepted_by(scores.clean, arrays["certainty"])
        assert is_accepted is not None
        (accepted,) = np.nonzero(is_accepted)
        ordered = accepted[np.argsort(~correct[accepted], kind="stable")]
        arrays["certainty"][ordered] = np.sort(arrays["certainty"][accepted])[::-1]

    before = read_cell(path)[0].row.auc or 0
    forge_scores(path, SCORES, change)
    assert (read_cell(path)[0].row.auc or 0) > before + 0.02


def sort_accepted_elsewhere(path: Path) -> None:
    sort_accepted(path)
    rewrite_cell(path, forge=True, device="NVIDIA H200")


def edit_fitted(path: Path) -> None:
    """Change what a rejector has learnt: whatever is measured with it later believes it."""
    fitted = path.parent.parent / "fitted" / f"{victim_key(read_cell(path)[0].cell)}.safetensors"
    saved = read_checkpoint(fitted)
    write_checkpoint(fitted, {name: 2 * tensor for name, tensor in saved.tensors.items()}, saved.facts)


def predict(arrays: Arrays, answers: Any) -> None:
    arrays["labels"] = answers


def right_labels(path: Path) -> None:
    answers = read_scores(path.parent.parent, read_cell(path)[0].files).prediction
    forge_scores(path, DATA, lambda arrays: predict(arrays, answers))


def flip_certainties(arrays: Arrays) -> None:
    arrays["certainty"][:30] = arrays["certainty"][:30][::-1].copy()


def lower_threshold(arrays: Arrays) -> None:
    arrays["apart_certainty"] = arrays["apart_certainty"] - 0.1


def own_threshold(arrays: Arrays) -> None:
    arrays["own_threshold"] = np.asarray(-1e9)


def raise_head(arrays: Arrays) -> None:
    arrays["head"] = arrays["head"] + 50


def other_clean_file(path: Path) -> None:
    value = json.loads(path.read_text())
    (name,) = (name for name in value["files"] if name.startswith("clean/"))
    folder = path.parent.parent
    (folder / "clean" / "anything.npz").write_bytes((folder / name).read_bytes())
    value["files"]["clean/anything.npz"] = value["files"].pop(name)
    path.write_text(json.dumps(value))


def raise_boldest(arrays: Arrays) -> None:
    arrays["boldest_certainty"] = np.full_like(arrays["certainty"], -np.inf)


def count_every_second_one(arrays: Arrays) -> None:
    arrays.update({name: arrays[name][::2] for name in ("apart_certainty", "apart_correct")})


def keep_one_image(arrays: Arrays) -> None:
    arrays["images"] = arrays["images"][:1]


def brighten(arrays: Arrays) -> None:
    arrays["images"] = np.clip(arrays["images"] + 0.2, 0, 1)


def key_of_another(arrays: Arrays) -> None:
    arrays["key"] = np.asarray("0" * 24)


KD = ("kd", "pgd3")
RR = ("rr", "pgd3")
FORGERIES = {
    # What it cost and what is noted.
    "gradients in the row": Forgery(in_row(gradients=300.0), "its row says 300.0 gradients an image"),
    "gradients in the row and the file": Forgery(gradients_everywhere, "gradients", needs_rerun=True),
    "forwards in the row": Forgery(in_row(forwards=1.0), "its row says 1.0 forwards an image"),
    "a note": Forgery(in_row(note="checked by hand"), "its note is 'checked by hand'", needs_rerun=True),
    # How the network was made.
    "the recipe": Forgery(recipe_of_110_epochs, "its row states another recipe"),
    "the recipe, in the header too": Forgery(header_too, "does not follow from its header"),
    "trained_as": Forgery(in_row(trained_as="pgd-at+rr"), "its row says trained_as pgd-at+rr"),
    "the framework": Forgery(other_framework, "its row says framework trades"),
    "a header without its framework": Forgery(
        in_header(lambda facts: facts.pop("framework")), "its header lacks framework"
    ),
    "the seed": Forgery(in_key("seed", 5), "its row says seed 5"),
    "other weights": Forgery(other_weights, "the checkpoint gives other logits for the stored images"),
    # What was measured.
    "the name of the attack": Forgery(in_row(attack="pgd100"), "its row says attack pgd100"),
    "another attack": Forgery(in_row(attack="adaptive(con+rcon)"), "its row says attack adaptive"),
    "the rejector": Forgery(in_row(rejector="rr"), "its row says rejector rr"),
    "the network": Forgery(in_row(network="resnet18"), "its row says network resnet18"),
    "a smaller network": Forgery(in_key("network", ["small-cnn", {"width": 8}], "small-cnn"), "was trained as"),
    "the radius": Forgery(in_row(eps="9/20"), "its row says the budget linf:9/20"),
    "no budget": Forgery(in_row(norm="", eps=""), "its row says the budget none"),
    "stated settings left out": Forgery(in_row(settings="{}"), "its row states other settings of its attack"),
    "the members": Forgery(members(["autoattack"]), "its row names the members autoattack"),
    "the number of members": Forgery(members(["pgd3", "pgd3"]), "its row names the members pgd3, pgd3"),
    "the steps of members": Forgery(members(["pgd100"]), "its row names the members pgd100"),
    # How it is spelled: tables compare names.
    "the spelling of the attack": Forgery(in_row(attack="pgd03"), "its row says attack pgd03, which is spelled pgd3"),
    "the spelling of the framework": Forgery(
        in_row(framework="pgd-at(steps=01)", trained_as="pgd-at(steps=01)"), "which is spelled pgd-at(steps=1)"
    ),
    "the spelling of the rejector": Forgery(in_row(rejector="rr()"), "rejector rr(), which is spelled rr", cell=RR),
    "the spelling of members": Forgery(members(["pgd3x1"]), "attack pgd3x1, which is spelled pgd3"),
    "the spelling of a training": Forgery(
        in_header(lambda facts: facts.update(trained_as="pgd-at+rr()"), trained_as="pgd-at+rr()"),
        "its row says trained_as pgd-at+rr(), which is spelled pgd-at+rr",
        cell=RR,
    ),
    "the spelling of the radius": Forgery(in_row(eps="6/40"), "its row says the budget linf:6/40, and linf:3/20 was"),
    "the data": Forgery(in_row(data_sha256="0" * 64), "measured on other data"),
    # What came of it.
    "labels": Forgery(right_labels, "its ids or labels are not the data set's"),
    "inputs that count": Forgery(
        in_scores(CLEAN, count_every_second_one), "inputs kept apart fix its threshold, and the data set has 360"
    ),
    "images": Forgery(in_scores(ATTACKS, brighten), "the attack left its budget: linf 0."),
    "few images": Forgery(in_scores(ATTACKS, keep_one_image), "only 1 of its images"),
    "the attack file's key": Forgery(in_scores(ATTACKS, key_of_another), "says that it is of another attack"),
    "certainties": Forgery(in_scores(SCORES, flip_certainties), "do not follow from the stored logits"),
    "the threshold": Forgery(in_scores(CLEAN, lower_threshold), "its certainties of the inputs kept apart"),
    "the threshold of a fitted rejector": Forgery(
        in_scores(CLEAN, lower_threshold), "its certainties of the inputs kept apart", needs_rerun=True, cell=KD
    ),
    "a threshold of its own": Forgery(
        in_scores(CLEAN, own_threshold), "its rejector brings the threshold None", cell=KD
    ),
    "clean inputs in a file of another name": Forgery(
        other_clean_file, "clean/anything.npz, which is not its own", cell=KD
    ),
    "the head": Forgery(in_scores(ATTACKS, raise_head), "gives another head for the stored images", cell=RR),
    "reordered certainties": Forgery(sort_accepted, "auc", needs_rerun=True, cell=KD),
    "reordered certainties, another machine": Forgery(
        sort_accepted_elsewhere, "moves its certainty", needs_rerun=True, cell=KD
    ),
    "boldest certainties": Forgery(in_scores(SCORES, raise_boldest), "boldest_certainty", needs_rerun=True, cell=KD),
    "a weaker attack": Forgery(clean_for_attacked, "acc_all", needs_rerun=True),
    "what a rejector learnt": Forgery(edit_fitted, "is not what a fit gives", needs_rerun=True, cell=KD),
}
