"""`rrbench.load_model`: a network of a zoo as a plain module, for any other library."""

from collections.abc import Sequence
from pathlib import Path

import torch

from rrbench.compute.devices import find_device
from rrbench.errors import UseError
from rrbench.files.checkpoints import load_weights, read_trained
from rrbench.names import parse, resolve, unknown
from rrbench.networks.wrapped import Classifier
from rrbench.plugins.arguments import checked
from rrbench.plugins.registry import build, plain_rejector, restore, table
from rrbench.protocols import DataSource, NetworkSource, Rejector
from rrbench.zoo import EMBEDDED, Entry, entries, large_zoo


@checked
def load_model(
    dataset: str, trained_as: str, *, network: str | None = None, seed: int = 0, device: str = "cpu"
) -> Classifier:
    """Return a network of the zoo, in eval mode: it takes images in [0, 1] and returns logits.

    `rrbench list zoo` has the names: of networks inside the package, and of those in $RRBENCH_ZOO or results/zoo, here
    or in the source checkout. If several fit, the longest training is taken. `model.outputs(images)` returns features,
    logits and head.

    >>> rrbench.load_model("cifar10", "pgd-at+rr")  # doctest: +SKIP
    """
    where = find_device(device)
    path, entry = _find(dataset, trained_as, network, seed)
    checkpoint = read_trained(path)
    if checkpoint.sha256 != entry.sha256:
        raise UseError(f"checkpoint {path} does not have the SHA-256 of its index: damaged or replaced")
    facts = checkpoint.facts
    info = build(DataSource, restore("dataset", facts["dataset"])).info
    key = str(facts["training_key"] or plain_rejector())
    rejector = build(Rejector, resolve("rejector", parse(key), table("rejector").classes, {}))
    with torch.random.fork_rng(devices=[]):  # the weights that it begins with are drawn, and then replaced
        found = build(NetworkSource, restore("network", facts["network"])).build(info, rejector)
    load_weights(found, checkpoint)
    return Classifier(found).to(where).eval()


def _find(dataset: str, trained_as: str, network: str | None, seed: int) -> tuple[Path, Entry]:
    """Find the checkpoint with these names, the longest training first; refuse unknown names with near ones."""
    here = [
        (folder / entry.file, entry)
        for folder in dict.fromkeys((large_zoo(), EMBEDDED))
        for entry in entries(folder)
        if entry.is_kept and (folder / entry.file).is_file()
    ]
    found = _named("data set", dataset, here, [entry.dataset for _, entry in here])
    found = _named(f"checkpoint of {dataset}", trained_as, found, [entry.trained_as for _, entry in found])
    if network is not None:
        what = f"network of {dataset} {trained_as}"
        found = _named(what, network, found, [entry.network for _, entry in found])
    of_seed = [each for each in found if each[1].seed == seed]
    if not of_seed:
        there = ", ".join(str(entry.seed) for _, entry in found)
        raise UseError(f"no checkpoint {trained_as} of {dataset} has seed {seed}; there is {there}")
    return max(of_seed, key=lambda each: (each[1].epochs, each[1].is_usual))


def _named(what: str, name: str, here: Sequence[tuple[Path, Entry]], names: Sequence[str]) -> list[tuple[Path, Entry]]:
    found = [each for each, known in zip(here, names, strict=True) if known == name]
    if not found:
        place = f" (a zoo is $RRBENCH_ZOO or {large_zoo()}, and the package has one of digits)"
        raise UseError(f"{unknown(what, name, dict.fromkeys(names))}{place}")
    return found
