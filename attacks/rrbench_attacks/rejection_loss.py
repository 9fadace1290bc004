"""The rejection loss: wrong and accepted at once (Palumbo et al., 2024, arXiv 2305.17528; Chen et al., 2305.01139).

R is the certainty brought into [0, 1] (`Victim.log_certainty`), so that any rejector can be attacked.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor

from rrbench.ascent import Keep, Score, Select, cross_entropy, search
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench.ranges import at_least
from rrbench_attacks.adaptive import log_rejector, weighted
from rrbench_attacks.objectives import best_other
from rrbench_attacks.pgd import check_effort, step_size

Form = Literal["gated", "and"]


@dataclass(frozen=True)
class RejectionLoss(Attack):
    """PGD on an objective that is high only where the answer is wrong and the rejector lets it pass.

    `gated`: CE + weight * log R, the second term only while the answer is wrong: a right answer is never made
    more certain (Palumbo et al.). `and`: log max_{k != y} p_k + weight * log R, the log of a product (Chen et al.).
    """

    is_adaptive = True
    paper = "Palumbo et al. 2024, arXiv 2305.17528; Chen et al. 2023, arXiv 2305.01139"
    maximises = "cross-entropy, plus log certainty where the answer is wrong"
    cost = "steps x restarts gradients an image"

    form: Form = "gated"
    weight: float = 1.0
    steps: int = 100
    restarts: int = 5
    step: Fraction | None = None  # None: a quarter of the radius
    keep: Keep = "best"
    select: Select = "evade"

    def __post_init__(self) -> None:
        check_effort(self.steps, self.restarts, self.step)
        at_least(0, weight=self.weight)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Ascend the loss from random starts, and keep one answer per input over all of them."""
        return search(
            victim.network,
            batch,
            budget,
            draws,
            [self.objective(victim)],
            victim.certainty,
            steps=self.steps,
            restarts=self.restarts,
            step=step_size(self.step, budget),
            keep=self.keep,
            select=self.select,
        )

    def objective(self, victim: Victim) -> Score:
        """Return what is climbed."""
        if self.form == "and":
            return weighted(best_other, self.weight, log_rejector(victim))
        return weighted(cross_entropy, self.weight, where_wrong(log_rejector(victim)))

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x restarts."""
        return self.steps * self.restarts


def where_wrong(score: Score) -> Score:
    """Return a score at wrong answers, 0 at right ones."""

    def gated(outputs: Outputs, labels: Tensor) -> Tensor:
        value = score(outputs, labels)
        return torch.where(outputs.logits.argmax(1) != labels, value, torch.zeros_like(value))

    return gated
