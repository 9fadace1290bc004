"""Multi-targeted PGD (Gowal et al., 2019, arXiv 1910.09338): every other class is aimed at in turn."""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from rrbench.ascent import Keep, Select, Tracker, ascend, random_start
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench_attacks.objectives import confidence
from rrbench_attacks.pgd import check_effort, step_size

ROWS = 4096  # so many images climb at once: a small batch aims at several classes together


@dataclass(frozen=True)
class MultiTarget(Attack):
    """PGD on the logit difference o_k - o_y for each class k other than the true y, from each random start."""

    paper = "Gowal et al. 2019, arXiv 1910.09338"
    maximises = "the logit of each other class in turn, minus the true one's"
    cost = "steps x restarts x (classes - 1) gradients an image"

    steps: int = 100
    restarts: int = 20
    step: Fraction | None = None  # None: a quarter of the radius
    keep: Keep = "last"
    select: Select = "ce"

    def __post_init__(self) -> None:
        check_effort(self.steps, self.restarts, self.step)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Keep one answer per input over all classes and starts; all classes share a start."""
        classes = victim.network(batch.images[:1]).logits.shape[1]
        at_once = max(1, ROWS // batch.size)
        tracker = Tracker(batch, confidence, self.keep, self.select)
        for restart in range(self.restarts):
            start = random_start(batch, budget.norm, budget.eps, draws, restart)
            for first in range(1, classes, at_once):
                shifts = range(first, min(first + at_once, classes))
                self.climb(
                    victim, batch, budget, start, [(batch.labels + shift) % classes for shift in shifts], tracker
                )
        return tracker.moved()

    def climb(
        self, victim: Victim, batch: Batch, budget: Budget, start: Tensor, targets: list[Tensor], tracker: Tracker
    ) -> None:
        """Aim at one class per input and list entry, and show every image on the way to the tracker."""
        count, copies = len(targets), (len(targets), *[1] * (start.dim() - 1))
        labels, aimed = batch.labels.repeat(count), torch.cat(targets)

        def objective(outputs: Outputs) -> Tensor:
            return logit_difference(outputs, labels, aimed)

        def observe(images: Tensor, outputs: Outputs, value: Tensor, is_last: bool = False) -> None:
            for part in range(count):
                rows = slice(part * batch.size, (part + 1) * batch.size)
                tracker.see(images[rows], outputs.at(rows), value[rows], is_last=is_last)

        last = ascend(
            victim.network,
            batch.images.repeat(copies),
            start.repeat(copies),
            objective,
            norm=budget.norm,
            radius=budget.eps,
            step=step_size(self.step, budget),
            steps=self.steps,
            observe=observe,
        )
        with torch.no_grad():
            outputs = victim.network(last)
            observe(last, outputs, objective(outputs), is_last=True)

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x restarts x other classes."""
        return self.steps * self.restarts * (classes - 1)


def logit_difference(outputs: Outputs, labels: Tensor, targets: Tensor) -> Tensor:
    """Return o_k - o_y, k the target and y the label."""
    return (outputs.logits.gather(1, targets[:, None]) - outputs.logits.gather(1, labels[:, None])).squeeze(1)
