"""Projected gradient descent on cross-entropy (Madry et al., 2018, arXiv 1706.06083)."""

from dataclasses import dataclass, field

from rrbench.ascent import Keep, Select, Until, cross_entropy
from rrbench.protocols import Batch, Budget, Draws, Moved, Victim
from rrbench_attacks.climb import Climb
from rrbench_attacks.objectives import confidence


@dataclass(frozen=True)
class Pgd(Climb):
    """PGD from random starts; it does not look at the rejector."""

    paper = "Madry et al. 2018, arXiv 1706.06083"
    maximises = "cross-entropy to the true label"
    added = frozenset({"until"})

    steps: int
    keep: Keep = field(default="last", kw_only=True)
    select: Select = field(default="ce", kw_only=True)
    until: Until = field(default="end", kw_only=True)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Ascend cross-entropy; among wrong images, `evade` prefers the most confident one."""
        return self.climb(victim, batch, budget, draws, [cross_entropy], confidence, self.until)
