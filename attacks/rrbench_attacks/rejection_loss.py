"""The rejection loss: wrong and accepted at once (Palumbo et al., 2024, arXiv 2305.17528; Chen et al., 2305.01139).

R is the certainty brought into [0, 1] (`Victim.log_certainty`), so that any rejector can be attacked.
"""

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from rrbench.ascent import Score, best_other, cross_entropy, doubt_of, is_wrong
from rrbench.protocols import Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench.ranges import at_least
from rrbench_attacks.adaptive import log_rejector, weighted
from rrbench_attacks.climb import Climb

Form = Literal["gated", "and"]


@dataclass(frozen=True)
class RejectionLoss(Climb):
    """PGD on an objective that is high only if the answer is wrong and the rejector accepts it.

    `gated`: CE + weight * log R; the second term counts only while the answer is wrong, so a right answer is never made
    more certain (Palumbo et al.). `and`: log max_{k != y} p_k + weight * log R, the log of a product (Chen et al.).
    """

    is_adaptive = True
    revision = 2  # 1 called an image wrong that float32 may call right
    paper = "Palumbo et al. 2024, arXiv 2305.17528; Chen et al. 2023, arXiv 2305.01139"
    maximises = "cross-entropy, plus log certainty where the answer is wrong"

    form: Form = "gated"
    weight: float = 1.0
    steps: int = field(default=100, kw_only=True)
    restarts: int = field(default=5, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, weight=self.weight)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Ascend the loss from random starts, and keep one answer for each input over all of them."""
        return self.climb(victim, batch, budget, draws, [self.objective(victim)])

    def objective(self, victim: Victim) -> Score:
        """Return the objective."""
        if self.form == "and":
            return weighted(best_other, self.weight, log_rejector(victim))
        return weighted(cross_entropy, self.weight, where_wrong(log_rejector(victim), doubt_of(victim.network)))


def where_wrong(score: Score, doubt: float = 0.0) -> Score:
    """Return the score of wrong answers, and 0 for right or doubtful ones."""

    def gated(outputs: Outputs, labels: Tensor) -> Tensor:
        value = score(outputs, labels)
        return torch.where(is_wrong(outputs.logits, labels, doubt), value, torch.zeros_like(value))

    return gated
