"""APGD (Croce and Hein, 2020, arXiv 2003.01690) on a sure wrong answer that the rejector lets pass."""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rrbench.ascent import Keep, Score, Select, Tracker, best_other
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench_attacks.adaptive import check_eta, log_rejector, weighted
from rrbench_attacks.apgd import apgd_ascend, apgd_start
from rrbench_attacks.climb import check_effort


@dataclass(frozen=True)
class ApgdReject(Attack):
    """Ascends log max_{k != y} p_k + eta * log R for each eta, R the certainty brought into [0, 1].

    `keep=last` is APGD's own answer: the image with the highest objective.
    """

    is_adaptive = True
    paper = "Croce & Hein 2020, arXiv 2003.01690"
    maximises = "log probability of the best other class plus eta times log certainty, by APGD"
    cost = "steps x restarts x etas gradients an image"

    steps: int = 100
    restarts: int = 1
    eta: tuple[float, ...] = (0.1, 1.0)
    keep: Keep = "best"
    select: Select = "evade"

    def __post_init__(self) -> None:
        check_effort(self.steps, self.restarts, None)
        check_eta(self.eta)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Run every eta from every start, and keep one answer per input over all of them."""
        tracker = Tracker(batch, victim.certainty, self.keep, self.select)
        for restart in range(self.restarts):
            start = apgd_start(batch, budget.norm, budget.eps, draws, restart)
            for eta in self.eta:
                score = weighted(best_other, eta, log_rejector(victim))

                def objective(outputs: Outputs, score: Score = score) -> Tensor:
                    return score(outputs, batch.labels)

                best = apgd_ascend(
                    victim.network,
                    batch.images,
                    start,
                    objective,
                    norm=budget.norm,
                    radius=budget.eps,
                    steps=self.steps,
                    observe=partial(tracker.see, is_last=False),
                )
                with torch.no_grad():
                    outputs = victim.network(best)
                    tracker.see(best, outputs, objective(outputs), is_last=True)
        return tracker.moved()

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x restarts x etas."""
        return self.steps * self.restarts * len(self.eta)
