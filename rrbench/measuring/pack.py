"""Packs a trained checkpoint into a zoo; its accuracies are measured on the packed weights."""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from filelock import FileLock
from torch import Tensor

from rrbench.compute.devices import make_twin, place
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.turns import TURNS
from rrbench.errors import FileError, UseError
from rrbench.files.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from rrbench.files.disk import sweep
from rrbench.files.headers import read_facts
from rrbench.files.packing import pack, unpack
from rrbench.measuring.materials import Materials
from rrbench.planning.cells import Training
from rrbench.plugins.registry import build
from rrbench.protocols import DataSource, Rejector
from rrbench.training.train import accuracies, build_network, clean_facts, describe_training
from rrbench.zoo import Entry, entries, write_index

SUFFIX = ".safetensors"


def add(folder: Path, materials: Materials, training: Training, checkpoint: Checkpoint, command: str) -> Entry:
    """Pack a training's checkpoint into a zoo; it replaces an earlier checkpoint of the same training.

    A checkpoint that is packed already stays as it is, so that repeating a command costs nothing.
    """
    with _locked(folder):
        sweep(folder)
        for entry in entries(folder):
            if entry.is_kept and entry.key == training.key and _source(folder / entry.file) == checkpoint.sha256:
                return entry
    with TURNS.together():  # other trainings may run in other threads
        tensors, facts, robust_accuracy = _measure(materials, training, checkpoint)
    with _locked(folder):  # before the name is chosen: another process may want the same name
        path = folder / free_name(folder, training)
        write_checkpoint(path, tensors, facts)
        entry = replace(
            describe(training, read_checkpoint(path), command),
            file=path.name,
            robust_accuracy=robust_accuracy,
            **_told(facts),
        )
        enter(folder, entry)
    return entry


def add_unkept(folder: Path, training: Training, checkpoint: Checkpoint, command: str, packed: Entry | None) -> Entry:
    """List a network without its weights, by its packed entry if it has one: rows on it can be checked by its line."""
    entry = packed or replace(describe(training, checkpoint, command), **_told(checkpoint.facts))
    enter(folder, replace(entry, file=""))
    return entry


def _told(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return recipe and log in the form of the index."""
    log = [", ".join(f"{name} {value:g}" for name, value in record.items()) for record in facts["log"]]
    return {"recipe": facts["recipe"], "log": log}


def _measure(
    materials: Materials, training: Training, checkpoint: Checkpoint
) -> tuple[dict[str, Tensor], dict[str, Any], float]:
    """Return the packed weights, the facts for their file, and their accuracy under the chooser's attack."""
    tensors = pack(checkpoint.tensors)
    rejector = build(Rejector, training.rejector)
    network = build_network(training, build(DataSource, training.dataset).info, rejector)
    network.load_state_dict(unpack(tensors))
    network = place(network, materials.device)
    model = Instrumented(network, materials.precision, twin=make_twin(network, materials.precision, materials.device))
    measured = accuracies(training, model, rejector, materials.data(training.dataset, training.recipe.choose_on))
    found = clean_facts(network, materials.data(training.dataset, "test"))
    facts = {**checkpoint.facts, "packed": "int8", "packed_from": checkpoint.sha256, **found}
    return tensors, facts, measured["robust_accuracy"]


def _source(path: Path) -> str | None:
    """Return the SHA-256 of the checkpoint that a file was packed from; None if the file does not tell."""
    try:
        return read_checkpoint(path).facts.get("packed_from")
    except UseError:  # missing or damaged: the checkpoint is packed again
        return None


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock a zoo's index; a thread that has the lock already may take it again."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / "index.lock", is_singleton=True):
            yield
    except OSError as error:
        raise FileError(f"cannot write to {folder}: {error.strerror or error}") from None


def enter(folder: Path, entry: Entry) -> None:
    """Put a line into a zoo's index; it replaces an earlier line of the same training.

    A line without weights replaces only a line of the same hash without weights: rows may have been measured on several
    such networks, and `run --zoo` must still find the kept network of the same training.
    """
    with _locked(folder):
        listed = entries(folder)
        if any(other.is_kept and other.sha256 == entry.sha256 for other in listed) and not entry.is_kept:
            return
        replaced = [other for other in listed if _gives_way(folder, other, entry)]
        write_index(folder, [*(other for other in listed if other not in replaced), entry])
        for other in replaced:
            if other.is_kept and other.file != entry.file:  # written by an older version under another name
                (folder / other.file).unlink(missing_ok=True)


def _gives_way(folder: Path, other: Entry, entry: Entry) -> bool:
    """Tell whether a new line replaces an old line of the index, `other`."""
    if not (other.is_kept and entry.is_kept):
        return not other.is_kept and other.sha256 == entry.sha256
    if other.file == entry.file:
        return True
    if _names(other) != _names(entry) or other.recipe not in ({}, entry.recipe):  # an old line may lack its recipe
        return False
    return _is_made_by(folder, other, read_facts(folder / entry.file).get("framework"), entry.key)


def _is_made_by(folder: Path, entry: Entry, framework: object, key: str) -> bool:
    """Tell whether a framework with these settings made a checkpoint; if its file cannot be read, its key tells.

    A file that is not there counts as made so: nothing is lost with it.
    """
    path = folder / entry.file
    made_by = read_facts(path).get("framework")
    return not path.is_file() or (entry.key == key if made_by is None else made_by == framework)


def _names(entry: Entry) -> tuple[str, str, str, int, int]:
    return entry.dataset, entry.network, entry.trained_as, entry.seed, entry.epochs


def file_name(training: Training) -> str:
    """Return the file name of a training's checkpoint in a zoo; its epochs tell a short run from a full run.

    It has only letters, digits, `.`, `_` and `-`: some file stores change other signs.
    """
    names = (training.dataset, training.network, training.trained_as)
    parts = [re.sub(r"[^A-Za-z0-9._-]", "-", str(name).replace("/", "of")).rstrip("-") for name in names]
    averaged = [f"average{training.recipe.average:g}"] if training.recipe.average else []
    return "-".join([*parts, f"{training.recipe.epochs}epochs", *averaged, f"seed{training.seed}"]) + SUFFIX


def free_name(folder: Path, training: Training) -> str:
    """Return a training's file name; add the start of its key if another training has that name already."""
    name = file_name(training)
    own = (str(training.dataset), str(training.network), training.trained_as, training.seed, training.recipe.epochs)
    made = describe_training(training)
    taken = any(
        _names(entry) != own
        or entry.recipe not in ({}, made["recipe"])
        or not _is_made_by(folder, entry, made["framework"], training.key)
        for entry in entries(folder)
        if entry.file == name
    )
    return f"{name.removesuffix(SUFFIX)}-{training.key[:8]}{SUFFIX}" if taken else name


def describe(training: Training, checkpoint: Checkpoint, command: str) -> Entry:
    """Return a checkpoint's line of the index, with the accuracies from its header."""
    facts = checkpoint.facts
    return Entry(
        file=file_name(training),
        sha256=checkpoint.sha256,
        key=training.key,
        dataset=str(training.dataset),
        network=str(training.network),
        trained_as=training.trained_as,
        seed=training.seed,
        epochs=training.recipe.epochs,
        clean_accuracy=facts["clean_accuracy"],
        robust_accuracy=facts["log"][facts["epoch"] - 1]["robust_accuracy"],
        command=command,
    )
