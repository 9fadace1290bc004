"""Short trainings, some stopped or diverging, and their checkpoints, for the tests of training."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.eval_mode import frozen
from rrbench.files.checkpoints import Checkpoint, read_checkpoint
from rrbench.frameworks.pgd_at import PgdAt
from rrbench.frameworks.standard import Standard
from rrbench.measuring.materials import Materials
from rrbench.planning.cells import Training
from rrbench.protocols import Batch, Draws, Framework, Victim
from rrbench.training import train
from rrbench.training.resume import State


@dataclass(frozen=True)
class Recorded(Standard):
    """Standard training that notes which examples it is given."""

    seen: ClassVar[list[Tensor]] = []

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        self.seen.append(batch.ids)
        return super().__call__(victim, batch, draws)


@dataclass(frozen=True)
class Fused(PgdAt):
    """PGD-AT that dies at a chosen step."""

    fuse: ClassVar[int] = -1

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        type(self).fuse -= 1
        if self.fuse == 0:
            raise KeyboardInterrupt
        return super().__call__(victim, batch, draws)


@dataclass(frozen=True)
class Diverging(Framework):
    """Goes well for one epoch; then the loss is NaN."""

    steps: ClassVar[int] = 0

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        type(self).steps += 1
        loss = F.cross_entropy(victim.network(batch.images).logits, batch.labels)
        return loss if self.steps <= 2 else loss * float("nan")

    def gradients_per_image(self) -> int:
        return 1


@dataclass(frozen=True)
class Leaving(Standard):
    """Standard training that leaves something changed after its loss, or changes it and puts it back."""

    how: str = ""

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        network = victim.network
        assert isinstance(network, nn.Module)
        if self.how == "nothing":
            with frozen(network):
                network(batch.images)
        torch.set_grad_enabled(True)
        loss = super().__call__(victim, batch, draws)
        if self.how == "gradients off":
            torch.set_grad_enabled(False)
        if self.how == "eval":
            network.eval()
        if self.how == "a module in eval":
            next(module for module in network.modules() if isinstance(module, nn.Conv2d)).eval()
        if self.how == "a weight":
            next(network.parameters()).requires_grad_(False)
        return loss


def planned(bench: Any, framework: str, rejector: str = "confidence", **recipe: object) -> tuple[Materials, Training]:
    job = bench.prepare(rejector, "clean", frameworks=framework, recipe={"batch": 539} | recipe)
    job.materials.store.prepare()
    return job.materials, job.plan.cells[0].training


def trained(
    bench: Any, framework: str, rejector: str = "confidence", **recipe: object
) -> tuple[Checkpoint, Checkpoint]:
    """Return the chosen and the last checkpoint of a training."""
    materials, training = planned(bench, framework, rejector, **recipe)
    return materials.checkpoint(training), read_checkpoint(materials.store.checkpoint_files(training.key).last)


def without_times(facts: Mapping[str, Any]) -> dict[str, Any]:
    log = [{key: value for key, value in record.items() if key != "seconds"} for record in facts["log"]]
    return {**facts, "log": log}


def same(first: Checkpoint, second: Checkpoint) -> bool:
    return (
        first.tensors.keys() == second.tensors.keys()
        and all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)
        and without_times(first.facts) == without_times(second.facts)
    )


def scripted(monkeypatch: pytest.MonkeyPatch, *robust: float) -> list[dict[str, Tensor]]:
    """Let the epochs have these robust accuracies; return the list that will hold their weights."""
    weights: list[dict[str, Tensor]] = []

    def accuracies(training: Training, state: State, *rest: object, with_attack: bool) -> dict[str, float]:
        weights.append({name: tensor.clone() for name, tensor in state.network.state_dict().items()})
        return {"clean_accuracy": 50.0, "robust_accuracy": robust[len(weights) - 1]}

    monkeypatch.setattr(train, "accuracies", accuracies)
    return weights


def holds(checkpoint: Checkpoint, weights: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(checkpoint.tensors[name], tensor) for name, tensor in weights.items())
