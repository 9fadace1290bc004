"""APGD (Croce and Hein, 2020, arXiv 2003.01690) on a confident wrong answer that the rejector accepts."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from rrbench.ascent import Keep, Score, Select, Tracker, best_other, doubt_of, is_wrong
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench.ranges import at_least
from rrbench_attacks.adaptive import check_eta, log_rejector, weighted
from rrbench_attacks.apgd import apgd_ascend, apgd_start
from rrbench_attacks.climb import check_effort
from rrbench_attacks.rejection_loss import where_wrong

RIGHT = 1e4  # subtracted for a right answer: APGD returns to its best image, which must be a wrong one


@dataclass(frozen=True)
class ApgdReject(Attack):
    """Ascends log max_{k != y} p_k; once the answer is wrong, plus eta * log R, with R the certainty in [0, 1].

    For a right answer R does not count: it would hold the climb at the border between two classes. With confidence,
    log p_k + log R is highest where both classes have probability 1/2.

    With `targets=n` it aims at one class after another: the n likeliest wrong classes of the clean image, like the
    targeted APGD of AutoAttack. The class that is nearest at first is often not the one that the rejector accepts.
    `keep=last` is APGD's own answer: the image with the highest objective.
    """

    is_adaptive = True
    paper = "Croce & Hein 2020, arXiv 2003.01690"
    revision = 3  # 1 counted R for right answers; 2 called an image wrong that float32 may call right
    maximises = "log probability of the best other class, or of each target; once wrong plus eta times log certainty"
    cost = "steps x restarts x etas x targets gradients an image"

    steps: int = 100
    restarts: int = 1
    eta: tuple[float, ...] = (0.1, 1.0)
    targets: int = 0  # 0: the best other class, chosen again at each step; a large number: every other class
    keep: Keep = "best"
    select: Select = "evade"

    def __post_init__(self) -> None:
        check_effort(self.steps, self.restarts, None)
        check_eta(self.eta)
        at_least(0, targets=self.targets)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Run every eta towards every target from every start, and keep one answer for each input over all runs."""
        doubt, rejector = doubt_of(victim.network), log_rejector(victim)
        tracker = Tracker(batch, victim.certainty, self.keep, self.select, doubt)
        scores = [gated(aim, eta, rejector, doubt) for aim in self.aims(victim, batch) for eta in self.eta]
        for restart in range(self.restarts):
            start = apgd_start(batch, budget.norm, budget.eps, draws, restart)
            for score in scores:

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

    def aims(self, victim: Victim, batch: Batch) -> Iterator[Score]:
        """Return the classifier's part of each objective."""
        if not self.targets:
            yield best_other
            return
        with torch.no_grad():
            logits = victim.network(batch.images).logits
        wrong = logits.scatter(1, batch.labels[:, None], -torch.inf).argsort(dim=1, descending=True, stable=True)
        for rank in range(min(self.targets, logits.shape[1] - 1)):
            yield towards(wrong[:, rank])

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x restarts x etas x targets."""
        return self.steps * self.restarts * len(self.eta) * (min(self.targets, classes - 1) or 1)


def gated(aim: Score, eta: float, rejector: Score, doubt: float = 0.0) -> Score:
    """Return aim + eta * rejector for a wrong answer; for a right or doubtful one only the aim, and far lower."""
    both = weighted(aim, eta, where_wrong(rejector, doubt))

    def score(outputs: Outputs, labels: Tensor) -> Tensor:
        # Double precision: beside so large a number, single precision could not tell two images apart.
        return both(outputs, labels).double() - RIGHT * ~is_wrong(outputs.logits, labels, doubt)

    return score


def towards(target: Tensor) -> Score:
    """Return log p_k, with k each image's own target."""
    return lambda outputs, labels: outputs.logits.log_softmax(1).gather(1, target[:, None]).squeeze(1)
