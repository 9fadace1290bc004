"""Multi-targeted PGD (Gowal et al., 2019, arXiv 1910.09338): aims at every other class in turn."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.ascent import Keep, Score, Select
from rrbench.protocols import Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench.ranges import at_least
from rrbench_attacks.climb import Climb
from rrbench_attacks.objectives import confidence


@dataclass(frozen=True, kw_only=True)
class MultiTarget(Climb):
    """PGD on the logit difference o_k - o_y for each class k other than the true y, from each random start.

    With `targets=n`, only the first start climbs towards every class. From the second start on, each image climbs only
    towards n classes: those whose answers from the first start ranked best (by `select`) for this image. These are some
    of the plain attack's climbs, so the answer may rank lower than the plain one, and never higher.
    """

    paper = "Gowal et al. 2019, arXiv 1910.09338"
    maximises = "the logit of each other class in turn, minus the true one's"
    cost = "steps x restarts x (classes - 1) gradients an image; after the first start, x targets"
    added = frozenset({"targets"})

    steps: int = 100
    restarts: int = 20
    keep: Keep = "last"
    select: Select = "ce"
    targets: int | None = None  # None: every other class

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, targets=self.targets)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Keep one answer for each input over all classes and starts; all classes share a start."""
        classes = victim.network(batch.images[:1]).logits.shape[1]
        objectives = [logit_difference(shift) for shift in range(1, classes)]
        return self.climb(victim, batch, budget, draws, objectives, confidence, narrow=self.targets)

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x (other classes for the first start, and targets for each further one)."""
        others = classes - 1
        targets = others if self.targets is None else min(self.targets, others)
        return self.steps * (others + (self.restarts - 1) * targets)


def logit_difference(shift: int) -> Score:
    """Return o_k - o_y, where class k comes `shift` (1 .. K - 1) after the true class y."""

    def difference(outputs: Outputs, labels: Tensor) -> Tensor:
        targets = (labels + shift) % outputs.logits.shape[1]
        return (outputs.logits.gather(1, targets[:, None]) - outputs.logits.gather(1, labels[:, None])).squeeze(1)

    return difference
