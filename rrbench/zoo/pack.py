"""Puts a trained checkpoint into a zoo, packed; its accuracies are measured on the packed weights."""

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
from rrbench.zoo import Entry, entries, write_index


def add(folder: Path, supply: Supply, training: Training, command: str) -> Entry:
    """Pack a training's checkpoint into a zoo, in place of an earlier one of the same name."""
    checkpoint = supply.checkpoint(training)
    tensors = pack(checkpoint.tensors)
    rejector = build(Rejector, training.rejector)
    network = build_network(training, build(DataSource, training.dataset).info, rejector)
    network.load_state_dict(unpack(tensors))
    network = place(network, supply.device)
    model = Instrumented(network, supply.precision, twin=make_twin(network, supply.precision, supply.device))
    judged = supply.data(training.dataset, training.recipe.choose_on)
    measured = accuracies(training, model, rejector, judged)
    facts = {**checkpoint.facts, "packed": "int8", **clean_facts(network, supply.data(training.dataset, "test"))}
    path = folder / file_name(training)
    write_checkpoint(path, tensors, facts)
    log = [", ".join(f"{name} {value:g}" for name, value in record.items()) for record in facts["log"]]
    entry = replace(
        describe(training, read_checkpoint(path), command),
        robust_accuracy=measured["robust_accuracy"],
        recipe=facts["recipe"],
        log=log,
    )
    enter(folder, entry)
    return entry


def enter(folder: Path, entry: Entry) -> None:
    """Put a line into a zoo's index, in place of an earlier one of the same file; others may do so at the same time."""
    with FileLock(folder / "index.lock"):
        write_index(folder, [*(other for other in entries(folder) if other.file != entry.file), entry])


def file_name(training: Training) -> str:
    """Return what a training's checkpoint is called in a zoo; its epochs tell a shortened run from a whole one."""
    names = (training.dataset, training.network, training.trained_as)
    name = "-".join(map(str, names)) + f"-{training.recipe.epochs}epochs-seed{training.seed}.safetensors"
    return name.replace("/", "of")  # as in pgd-at(step=1/20)


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
