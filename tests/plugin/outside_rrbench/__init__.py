"""A rejector and an attack from an outside package, registered like any plugin."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.protocols import (
    Attack,
    AttackTable,
    Batch,
    Budget,
    Draws,
    Moved,
    Outputs,
    Rejector,
    RejectorTable,
    Victim,
)


@dataclass
class Gap(Rejector):
    """Certainty is the gap between the two largest logits."""

    scores = "gap between the two largest logits"
    scale: float = 1.0

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the gap."""
        first, second = outputs.logits.topk(2, dim=1).values.unbind(1)
        return self.scale * (first - second)


@dataclass(frozen=True)
class Corner(Attack):
    """Jumps to a random corner of the linf box."""

    norms = frozenset({"linf"})
    maximises = "nothing: a random corner of the box"

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Return one corner."""
        signs = torch.sign(draws.uniform(batch.ids, tuple(batch.images.shape[1:]), 0) - 0.5)
        return Moved((batch.images + budget.eps * signs).clamp(0, 1))

    def gradients_per_image(self, classes: int) -> int:
        """Return 0."""
        return 0


REJECTORS: RejectorTable = {"outside-gap": Gap}
ATTACKS: AttackTable = {"outside-corner": Corner}
