"""Over-rejection: the smallest push that gets a right answer rejected, an attack on availability (ours)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.ascent import margin, norms, step_up, wide
from rrbench.errors import CellError
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Norm, Outputs, Victim

FIRST = 1 / 32  # the first radius, as a share of the largest possible one for images in [0, 1]


@dataclass(frozen=True)
class OverReject(Attack):
    """Descends certainty inside a ball; each image searches for its own radius.

    The goal: the answer is still right, and its certainty is below the deployed threshold. A right answer already
    rejected has reached the goal unmoved; an answer that is already wrong does not count as reached.
    If the goal is not reached, the clean image is returned.
    """

    is_adaptive = True
    keeps_answers = True
    needs_budget = False
    maximises = "the smallest push that makes a right answer be refused"
    cost = "at most steps x searches x restarts gradients an image"

    steps: int = 50
    searches: int = 10
    restarts: int = 1  # the first starts at the clean image, the others at random points half a radius away

    def __post_init__(self) -> None:
        if min(self.steps, self.searches, self.restarts) < 1:
            raise ValueError("steps, searches and restarts must be at least 1")

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Search each image's radius: twice as large while it fails, then by bisection."""
        thresholds = victim.calibration.threshold_of(batch.ids) if victim.calibration else batch.ids * math.nan
        if bool(thresholds.isnan().any()):
            raise CellError("over-reject needs the deployed threshold, and there are no right clean inputs to fix it")
        hunt = Hunt(victim, batch, budget.norm, thresholds)
        largest = 1.0 if budget.norm == "linf" else math.sqrt(batch.images.shape[1:].numel())
        low, radius = torch.zeros_like(hunt.distance), torch.full_like(hunt.distance, FIRST * largest)
        for search in range(self.searches):
            rows = (hunt.is_open & (low < largest)).nonzero().squeeze(1)
            for restart in range(self.restarts):
                start = batch.images[rows]
                if restart:
                    noise = draws.normal(batch.ids[rows], tuple(start.shape[1:]), search * self.restarts + restart)
                    start = push(start, noise.to(start.dtype), budget.norm, radius[rows] / 2).clamp(0.0, 1.0)
                rows = hunt.descend(rows, start, radius[rows], self.steps)
            low[rows] = radius[rows]
            # A failure farther away than a success means nothing.
            low = torch.where(low < hunt.distance, low, 0.0)
            is_found = hunt.distance.isfinite()
            radius = torch.where(is_found, (low + hunt.distance) / 2, (2 * radius).clamp_max(largest))
        return Moved(hunt.answer, None, hunt.distance.isfinite())

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x searches x restarts."""
        return self.steps * self.searches * self.restarts


class Hunt:
    """Keeps, for each input, the nearest image that is answered right and rejected."""

    def __init__(self, victim: Victim, batch: Batch, norm: Norm, thresholds: Tensor) -> None:
        self.victim, self.batch, self.norm, self.thresholds = victim, batch, norm, thresholds
        with torch.no_grad():
            outputs = victim.network(batch.images)
            right, refused = self.judge(outputs, victim.certainty(outputs, batch.labels), batch.labels, thresholds)
        self.answer, self.is_open = batch.images.clone(), right & ~refused
        self.distance = torch.zeros_like(batch.images.flatten(1)[:, 0]).where(right & refused, math.inf)

    def judge(self, outputs: Outputs, certainty: Tensor, labels: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
        """Tell which answers are right, and which are rejected."""
        if not bool(certainty.isfinite().all() & outputs.logits.isfinite().all()):
            raise CellError("NaN or infinite scores on attacked inputs")
        return outputs.logits.argmax(1) == labels, certainty < thresholds

    def descend(self, rows: Tensor, moved: Tensor, radius: Tensor, steps: int) -> Tensor:
        """Descend certainty inside each image's radius, and return the rows that did not reach the goal.

        If an answer becomes wrong, the image climbs back to the right one. Images that reach the goal leave the batch.
        """
        for step in range(steps + 1):
            if not len(rows):
                break
            is_last = step == steps
            images, labels = self.batch.images[rows], self.batch.labels[rows]
            moved.requires_grad_(not is_last)
            with torch.enable_grad():
                outputs = self.victim.network(moved)
                certainty = self.victim.certainty(outputs, labels)
            right, refused = self.judge(outputs, certainty, labels, self.thresholds[rows])
            found = right & refused
            self.keep(rows[found], images[found], moved.detach()[found])
            if not is_last:
                with torch.enable_grad():
                    objective = torch.where(right, -certainty, margin(outputs.logits, labels))
                    (gradient,) = torch.autograd.grad(objective.sum(), moved)
                size = radius * (0.5 * (1 - step / steps))
                moved = within(push(moved.detach(), gradient, self.norm, size), images, self.norm, radius)
            rows, moved, radius = rows[~found], moved[~found], radius[~found]
        return rows

    def keep(self, rows: Tensor, images: Tensor, moved: Tensor) -> None:
        """Keep images that are nearer than all earlier ones."""
        delta = (moved - images).flatten(1)
        distance = delta.abs().amax(1) if self.norm == "linf" else torch.linalg.vector_norm(delta, dim=1)
        nearer = distance < self.distance[rows]
        self.distance[rows[nearer]] = distance[nearer]
        self.answer[rows[nearer]] = moved[nearer]


def push(moved: Tensor, direction: Tensor, norm: Norm, size: Tensor) -> Tensor:
    """Move each image by its own size in the steepest direction of the norm."""
    return moved + wide(size, moved) * step_up(torch.zeros_like(moved), direction, norm, 1.0)


def within(moved: Tensor, images: Tensor, norm: Norm, radius: Tensor) -> Tensor:
    """Move each image back into its own ball around the clean one, then into [0, 1]."""
    delta, size = moved - images, wide(radius, images)
    if norm == "linf":
        delta = torch.minimum(torch.maximum(delta, -size), size)
    else:
        delta = delta * (size / norms(delta).clamp_min(1e-12)).clamp_max(1.0)
    return (images + delta).clamp(0.0, 1.0)
