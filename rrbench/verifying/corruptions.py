"""Accuracy of the zoo's standard network under corruptions: it should fall from one severity to the next."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import torch

from rrbench.datasets.cifar10_c import SEVERITIES, Corrupted
from rrbench.measuring.materials import Materials
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.measuring.store import Store
from rrbench.planning.plan import CLEAN, Request, make_plan
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import plain_rejector
from rrbench.progress import Report


def standard_accuracies(
    kind: type[Corrupted], roots: tuple[Path, ...], limit: int | None, device: torch.device, report: Report
) -> tuple[float, dict[str, list[float]]]:
    """Return the accuracy in % on clean images, and on each corruption at every severity."""
    network = _standard(kind, roots, limit, device)
    names = kind.present(kind.folder(roots))

    def accuracy(source: Corrupted | None) -> float:
        batch = (source or kind.clean).load("test", roots).at(slice(limit)).to(device)
        return 100 * float((network.judge(batch.images).logits.argmax(1) == batch.labels).double().mean())

    found: dict[str, list[float]] = {name: [] for name in names}
    with report.task("accuracy of the standard network", 1 + SEVERITIES * len(names)) as advance:
        clean = accuracy(None)
        for name in names:
            for severity in range(1, SEVERITIES + 1):
                advance(1)
                found[name].append(accuracy(kind(name, severity)))
    return clean, found


def _standard(
    kind: type[Corrupted], roots: tuple[Path, ...], limit: int | None, device: torch.device
) -> MeasuredNetwork:
    """Find the network in the zoo by the recipe of preset paper; nothing is trained or written."""
    home = str(kind.uses_networks_of)
    request = Request([plain_rejector()], [CLEAN], datasets=[home], frameworks=["standard"], limit=limit)
    (cell,) = make_plan(request, load_preset("paper")).cells
    materials = Materials(Store(Path()), device, "fp32", roots, use_large_zoo=True)
    return materials.measured_network(cell, materials.checkpoint(cell.training))


def falls(clean: float, accuracies: Mapping[str, Sequence[float]]) -> list[str]:
    """Say where accuracy does not fall from one severity to the next; the first step is from clean images."""
    exceptions = [
        f"{name} from {f'severity {severity}' if severity else 'clean'} to {severity + 1}: {before:.1f} to {after:.1f}"
        for name, values in accuracies.items()
        for severity, (before, after) in enumerate(pairwise([clean, *values]))
        if after >= before
    ]
    steps = sum(map(len, accuracies.values()))
    head = f"Accuracy falls in {steps - len(exceptions)} of {steps} steps from one severity to the next"
    return [f"{head}; it does not for", *exceptions] if exceptions else [f"{head}."]
