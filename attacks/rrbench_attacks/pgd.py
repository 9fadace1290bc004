"""Projected gradient descent on cross-entropy (Madry et al., 2018, arXiv 1706.06083)."""

from dataclasses import dataclass
from fractions import Fraction

from rrbench.ascent import Keep, Select, cross_entropy, search
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Victim
from rrbench_attacks.objectives import confidence


@dataclass(frozen=True)
class Pgd(Attack):
    """PGD from random starts; it does not look at the rejector."""

    paper = "Madry et al. 2018, arXiv 1706.06083"
    maximises = "cross-entropy to the true label"
    cost = "steps x restarts gradients an image"

    steps: int
    restarts: int = 1
    step: Fraction | None = None  # None: a quarter of the radius
    keep: Keep = "last"
    select: Select = "ce"

    def __post_init__(self) -> None:
        check_effort(self.steps, self.restarts, self.step)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Ascend cross-entropy; among wrong images `evade` prefers the most confident one."""
        return search(
            victim.network,
            batch,
            budget,
            draws,
            [cross_entropy],
            confidence,
            steps=self.steps,
            restarts=self.restarts,
            step=step_size(self.step, budget),
            keep=self.keep,
            select=self.select,
        )

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x restarts."""
        return self.steps * self.restarts


def check_effort(steps: int, restarts: int, step: Fraction | None) -> None:
    """Refuse an attack that would return the clean images, or go downhill, and make every network look robust."""
    if steps < 0 or restarts < 1 or (step is not None and step <= 0):
        raise ValueError("steps must be at least 0, restarts at least 1, and step above 0")


def step_size(step: Fraction | None, budget: Budget) -> float:
    """Return the step as a float; by default a quarter of the radius, as 2/255 is of 8/255."""
    return float(step) if step is not None else budget.eps / 4
