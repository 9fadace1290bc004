"""Puts a trained checkpoint into a zoo, packed; its accuracies are measured on the packed weights."""

import re
from dataclasses import replace
from pathlib import Path

from filelock import FileLock

from rrbench.cells import Training
from rrbench.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from rrbench.devices import Instrumented, make_twin, place
from rrbench.packing import pack, unpack
from rrbench.protocols import DataSource, Rejector
from rrbench.registry import build
from rrbench.supply import Supply
from rrbench.train import accuracies, build_network, clean_facts
from rrbench.turns import TURNS
from rrbench.zoo import Entry, entries, write_index

SUFFIX = ".safetensors"


def add(folder: Path, supply: Supply, training: Training, checkpoint: Checkpoint, command: str) -> Entry:
    """Pack a training's checkpoint into a zoo, in place of an earlier one of the same training."""
    with TURNS.together():  # others may train beside
        return _add(folder, supply, training, checkpoint, command)


def _add(folder: Path, supply: Supply, training: Training, checkpoint: Checkpoint, command: str) -> Entry:
    tensors = pack(checkpoint.tensors)
    rejector = build(Rejector, training.rejector)
    network = build_network(training, build(DataSource, training.dataset).info, rejector)
    network.load_state_dict(unpack(tensors))
    network = place(network, supply.device)
    model = Instrumented(network, supply.precision, twin=make_twin(network, supply.precision, supply.device))
    judged = supply.data(training.dataset, training.recipe.choose_on)
    measured = accuracies(training, model, rejector, judged)
    facts = {**checkpoint.facts, "packed": "int8", **clean_facts(network, supply.data(training.dataset, "test"))}
    path = folder / free_name(folder, training)
    write_checkpoint(path, tensors, facts)
    log = [", ".join(f"{name} {value:g}" for name, value in record.items()) for record in facts["log"]]
    entry = replace(
        describe(training, read_checkpoint(path), command),
        file=path.name,
        robust_accuracy=measured["robust_accuracy"],
        recipe=facts["recipe"],
        log=log,
    )
    enter(folder, entry)
    return entry


def enter(folder: Path, entry: Entry) -> None:
    """Put a line into a zoo's index, in place of an earlier one of the same training; others may do so meanwhile."""
    with FileLock(folder / "index.lock"):
        listed = entries(folder)
        replaced = [other for other in listed if other.file == entry.file or _names(other) == _names(entry)]
        write_index(folder, [*(other for other in listed if other not in replaced), entry])
        for other in replaced:
            if other.file != entry.file:  # of a version before, which named its files otherwise
                (folder / other.file).unlink(missing_ok=True)


def _names(entry: Entry) -> tuple[str, str, str, int, int]:
    return entry.dataset, entry.network, entry.trained_as, entry.seed, entry.epochs


def file_name(training: Training) -> str:
    """Return what a training's checkpoint is called in a zoo; its epochs tell a shortened run from a whole one.

    Letters, digits, `.`, `_` and `-` alone: other signs do not survive every file store.
    """
    names = (training.dataset, training.network, training.trained_as)
    parts = [re.sub(r"[^A-Za-z0-9._-]", "-", str(name).replace("/", "of")).rstrip("-") for name in names]
    return "-".join([*parts, f"{training.recipe.epochs}epochs", f"seed{training.seed}"]) + SUFFIX


def free_name(folder: Path, training: Training) -> str:
    """Return a training's file name, with the start of its key where another training has that name already."""
    name, own = file_name(training), (str(training.dataset), str(training.network), training.trained_as)
    taken = any(entry.file == name and _names(entry)[:3] != own for entry in entries(folder))
    return f"{name.removesuffix(SUFFIX)}-{training.key[:8]}{SUFFIX}" if taken else name


def describe(training: Training, checkpoint: Checkpoint, command: str) -> Entry:
    """Return a checkpoint's line of the index, with the accuracies that its header tells."""
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
