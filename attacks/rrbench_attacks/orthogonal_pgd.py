"""Selective and orthogonal PGD (Bryniarski et al., 2022, arXiv 2106.15023): one goal at a time, never a weighted sum.

The goals are a wrong answer (cross-entropy) and a certain rejector (log R, `Victim.log_certainty`).
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.ascent import Score, Tracker, doubt_of, project, random_start, slope, step_up, wide
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench.ranges import at_least, at_most
from rrbench_attacks.adaptive import log_rejector
from rrbench_attacks.climb import Climb, step_size

BUFFER = 0.05  # an answer counts as wrong if it stays wrong with this added to the true logit, as in the release


@dataclass(frozen=True, kw_only=True)
class OneGoalAtATime(Climb):
    """The settings that both attacks share.

    Differs from the paper: starts are random, not the clean image.
    """

    is_adaptive = True
    revision = 2  # 1 called an image wrong that float32 may call right
    paper = "Bryniarski et al. 2022, arXiv 2106.15023"

    steps: int = 100
    target: int | None = None  # the wanted answer; None: any wrong one; any wrong one also for inputs of this class

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.target is not None and self.target < 0:
            raise ValueError("target must be a class, so at least 0")


@dataclass(frozen=True, kw_only=True)
class SelectivePgd(OneGoalAtATime):
    """Climbs the classifier's loss while the answer is right, and the rejector's certainty while it is wrong."""

    maximises = "cross-entropy while the answer is right, else certainty"

    beyond: bool = True  # climb certainty beyond the deployed threshold too; False: from there climb the loss

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Ascend the goal that is not reached yet."""
        return self.climb(victim, batch, budget, draws, [selective(victim, self.target, self.beyond)])


@dataclass(frozen=True, kw_only=True)
class OrthogonalPgd(OneGoalAtATime):
    """Climbs one goal along the part of its gradient that, to first order, does not change the other goal.

    In linf the sign of that part is used, as published, and the other goal does change.
    Differs from the paper: a gradient almost parallel to the other goal's is used whole. While an answer is right,
    confidence and cross-entropy are the same goal, and only rounding would be left to climb.
    """

    maximises = "cross-entropy while the answer is right, else certainty, each across the other's gradient"
    cost = "2 x steps x restarts gradients an image"

    remainder: float = 0.5  # a gradient with a smaller share left is used whole; 0: as published
    every: int | None = None  # k: certainty at every k-th step, else cross-entropy, whatever the answer

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(1, every=self.every)
        at_least(0, remainder=self.remainder)
        at_most(1, remainder=self.remainder)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Climb from random starts, and keep one answer for each input over all of them."""
        wrong, certain = classifier_loss(self.target), log_rejector(victim)
        first, second = slice(batch.size), slice(batch.size, None)
        tracker = Tracker(batch, victim.certainty, self.keep, self.select, doubt_of(victim.network))

        def goals(outputs: Outputs) -> Tensor:
            return torch.cat([wrong(outputs.at(first), batch.labels), certain(outputs.at(second), batch.labels)])

        for restart in range(self.restarts):
            moved = random_start(batch, budget.norm, budget.eps, draws, restart)
            for index in range(self.steps):
                # Each image twice: one pass gives both gradients, and both are counted.
                outputs, values, gradients = slope(victim.network, torch.cat([moved, moved]), goals)
                outputs = outputs.at(first)
                tracker.see(moved, outputs, values[first] + values[second], is_last=False)
                turn = crossed(outputs.logits, batch.labels, self.target, buffer_of(victim))
                if self.every is not None:
                    turn = torch.full_like(turn, index % self.every == 0)
                direction = torch.where(
                    wide(turn, moved),
                    across(gradients[second], gradients[first], self.remainder),
                    across(gradients[first], gradients[second], self.remainder),
                )
                moved = step_up(moved, direction, budget.norm, step_size(self.step, budget))
                moved = project(moved, batch.images, budget.norm, budget.eps)
            with torch.no_grad():
                outputs = victim.network(moved)
                value = wrong(outputs, batch.labels) + certain(outputs, batch.labels)
                tracker.see(moved, outputs, value, is_last=True)
        return tracker.moved()

    def gradients_per_image(self, classes: int) -> int:
        """Return 2 x steps x restarts: one gradient of each goal."""
        return 2 * super().gradients_per_image(classes)


def classifier_loss(target: int | None) -> Score:
    """Return cross-entropy to the label, or log p_target if there is a target."""

    def loss(outputs: Outputs, labels: Tensor) -> Tensor:
        away = F.cross_entropy(outputs.logits, labels, reduction="none")
        if target is None:
            return away
        if target >= outputs.logits.shape[1]:
            raise CellError(f"target {target} is none of the network's {outputs.logits.shape[1]} classes")
        towards = outputs.logits.log_softmax(1)[:, target]
        return torch.where(labels == target, away, towards)

    return loss


def buffer_of(victim: Victim) -> float:
    """Return the buffer; in lower precision the climb must turn back beyond the doubt, not inside it."""
    return max(BUFFER, 2 * doubt_of(victim.network))


def crossed(logits: Tensor, labels: Tensor, target: int | None, buffer: float = BUFFER) -> Tensor:
    """Tell which answers are as the attack wants, with a buffer."""
    answers = logits.scatter_add(1, labels[:, None], torch.full_like(logits[:, :1], buffer)).argmax(1)
    wrong = answers != labels
    return wrong if target is None else wrong & ((answers == target) | (labels == target))


def selective(victim: Victim, target: int | None, beyond: bool) -> Score:
    """Return log R if the answer is wrong (and, unless `beyond`, still rejected), else the classifier's loss."""
    loss, certain, buffer = classifier_loss(target), log_rejector(victim), buffer_of(victim)
    # Without a threshold no input counts as accepted, because every comparison with NaN is false.
    threshold = math.nan if beyond or victim.calibration is None else victim.calibration.threshold

    def objective(outputs: Outputs, labels: Tensor) -> Tensor:
        accepted = victim.certainty(outputs, labels) >= threshold
        turn = crossed(outputs.logits, labels, target, buffer) & ~accepted
        return torch.where(turn, certain(outputs, labels), loss(outputs, labels))

    return objective


def across(gradient: Tensor, other: Tensor, remainder: float) -> Tensor:
    """Return the part of a unit gradient orthogonal to another, or the whole if less than `remainder` is left."""
    along, onto = unit(gradient), unit(other)
    rest = along - (along * onto).sum(1, keepdim=True) * onto
    left = torch.linalg.vector_norm(rest, dim=1, keepdim=True)
    return torch.where(left < remainder, along, rest).view_as(gradient).to(gradient.dtype)


def unit(gradient: Tensor) -> Tensor:
    """Return each image's gradient as a float64 row of length 1, or 0."""
    return F.normalize(gradient.flatten(1).double(), dim=1, eps=1e-300)
