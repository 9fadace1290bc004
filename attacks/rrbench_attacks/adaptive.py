"""The five objectives of Figure 4 (Pang et al., 2022, arXiv 2105.14785), against any rejector.

R is the certainty brought into [0, 1] (`Victim.log_certainty`); t is the true class's probability, held fixed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from rrbench.ascent import Keep, Score, Until, best_other, cross_entropy
from rrbench.protocols import Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench_attacks.climb import Climb
from rrbench_attacks.objectives import other_class

Objective = Literal["ce+rcon", "ce+rr", "con+rr", "con+rcon", "con+rr(multi)"]


def log_rejector(victim: Victim) -> Score:
    """Return log R: it makes the rejector certain."""
    return lambda outputs, labels: victim.log_certainty(outputs, labels)[0]


def rectified_bce(victim: Victim) -> Score:
    """Return BCE(R, t): it moves R away from the true class's probability t."""

    def bce(outputs: Outputs, labels: Tensor) -> Tensor:
        log_r, log_not_r = (part.clamp_min(-100) for part in victim.log_certainty(outputs, labels))
        target = outputs.logits.detach().double().softmax(1).gather(1, labels[:, None]).squeeze(1)
        return -(target * log_r + (1 - target) * log_not_r)

    return bce


CLASSIFIER_AND_REJECTOR: dict[str, tuple[Score, Callable[[Victim], Score]]] = {
    "ce+rcon": (cross_entropy, log_rejector),
    "ce+rr": (cross_entropy, rectified_bce),
    "con+rr": (best_other, rectified_bce),
    "con+rcon": (best_other, log_rejector),
}


@dataclass(frozen=True)
class Adaptive(Climb):
    """Ascends a classifier term plus eta times a rejector term, for each eta."""

    is_adaptive = True
    revision = 2  # 1 called an image wrong that float32 may call right
    expand_over = ("objective", ("ce+rcon", "ce+rr", "con+rr", "con+rcon", "con+rr(multi)"))
    paper = "Pang et al. 2022, arXiv 2105.14785, Figure 4"
    maximises = "a classifier term plus eta times a term of the rejector's certainty"
    added = frozenset({"until"})
    cost = "steps x restarts x etas gradients an image, times classes - 1 for con+rr(multi)"

    objective: Objective
    eta: tuple[float, ...] = (0.1, 1.0)
    steps: int = field(default=500, kw_only=True)
    restarts: int = field(default=10, kw_only=True)
    keep: Keep = field(default="last", kw_only=True)
    until: Until = field(default="end", kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_eta(self.eta)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Run every eta (and every target class), and keep one answer for each input over all runs."""
        classes = victim.network(batch.images[:1]).logits.shape[1]
        pairs = self.terms(victim, classes)
        objectives = [weighted(first, eta, second) for eta in self.eta for first, second in pairs]
        return self.climb(victim, batch, budget, draws, objectives, until=self.until)

    def terms(self, victim: Victim, classes: int) -> list[tuple[Score, Score]]:
        """Return (classifier term, rejector term) pairs: one pair, or one for each other class."""
        if self.objective == "con+rr(multi)":
            return [(other_class(shift), rectified_bce(victim)) for shift in range(1, classes)]
        first, second = CLASSIFIER_AND_REJECTOR[self.objective]
        return [(first, second(victim))]

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x restarts x etas (x other classes)."""
        targets = classes - 1 if self.objective == "con+rr(multi)" else 1
        return super().gradients_per_image(classes) * len(self.eta) * targets


def check_eta(eta: tuple[float, ...]) -> None:
    """Refuse weights that leave nothing to climb, or that help the rejector."""
    if not eta or min(eta) < 0:
        raise ValueError("eta must hold at least one number, and none below 0: that would help the rejector")


def weighted(first: Score, eta: float, second: Score) -> Score:
    """Return first + eta * second."""
    return lambda outputs, labels: first(outputs, labels) + eta * second(outputs, labels)
