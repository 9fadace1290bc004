"""Multi-targeted PGD (Gowal et al., 2019, arXiv 1910.09338): aims at every other class in turn."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.ascent import Keep, Score, Select
from rrbench.protocols import Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench_attacks.climb import Climb
from rrbench_attacks.objectives import confidence


@dataclass(frozen=True, kw_only=True)
class MultiTarget(Climb):
    """PGD on the logit difference o_k - o_y for each class k other than the true y, from each random start."""

    paper = "Gowal et al. 2019, arXiv 1910.09338"
    maximises = "the logit of each other class in turn, minus the true one's"
    cost = "steps x restarts x (classes - 1) gradients an image"

    steps: int = 100
    restarts: int = 20
    keep: Keep = "last"
    select: Select = "ce"

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Keep one answer for each input over all classes and starts; all classes share a start."""
        classes = victim.network(batch.images[:1]).logits.shape[1]
        objectives = [logit_difference(shift) for shift in range(1, classes)]
        return self.climb(victim, batch, budget, draws, objectives, confidence)

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x restarts x other classes."""
        return super().gradients_per_image(classes) * (classes - 1)


def logit_difference(shift: int) -> Score:
    """Return o_k - o_y, where class k comes `shift` (1 .. K - 1) after the true class y."""

    def difference(outputs: Outputs, labels: Tensor) -> Tensor:
        targets = (labels + shift) % outputs.logits.shape[1]
        return (outputs.logits.gather(1, targets[:, None]) - outputs.logits.gather(1, labels[:, None])).squeeze(1)

    return difference
