"""Square (Andriushchenko et al., 2020, arXiv 1912.00049) for a wrong answer that is accepted; needs no gradient."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.ascent import Tracker, doubt_of, is_wrong, margin, wide
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Victim
from rrbench.ranges import above, at_least, at_most

HALVINGS = (0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8)  # shares of the queries at which the painted area halves


@dataclass(frozen=True)
class SquareReject(Attack):
    """Repaints random squares one after another, and keeps those that do not help the defence.

    A wrong answer is better than a right one, and a certain wrong answer is better than a doubtful one; between equals,
    the wrong class's lead decides. So it can cross the steps of a rounded certainty, and needs no gradient.
    """

    is_adaptive = True
    revision = 2  # 1 called an image wrong that float32 may call right
    norms = frozenset({"linf"})
    paper = "Andriushchenko et al. 2020, arXiv 1912.00049"
    maximises = "a wrong answer first, its certainty second, its lead third, by random squares"
    cost = "no gradients, `queries` looks an image"

    queries: int = 1000
    share: float = 0.8  # share of an image that the first squares cover, as in AutoAttack
    shrink: bool = True  # squares become smaller, as published

    def __post_init__(self) -> None:
        at_least(1, queries=self.queries)
        above(0, share=self.share)
        at_most(1, share=self.share)

    @torch.no_grad()
    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Start with vertical stripes, then repaint; every pixel stays on a face of the box."""
        images = batch.images
        channels, height, width = images.shape[1:]
        tracker = Tracker(batch, victim.certainty, keep="best", select="evade", doubt=doubt_of(victim.network))
        stripes = draws.uniform(batch.ids, (channels, 1, width), 0)
        best = painted(images, stripes, budget.eps)
        found = self.look(victim, batch, tracker, best)
        for query in range(1, self.queries):
            size = side(self.share, query / self.queries if self.shrink else 0.0, height, width)
            numbers = draws.uniform(batch.ids, (2 + channels, 1, 1), query)
            square = within(numbers[:, :1], size, height, 2) & within(numbers[:, 1:2], size, width, 3)
            moved = torch.where(square, painted(images, numbers[:, 2:], budget.eps), best)
            new = self.look(victim, batch, tracker, moved)
            taken = is_as_good(new, found)
            best = torch.where(wide(taken, moved), moved, best)
            found = [torch.where(taken, one, other) for one, other in zip(new, found, strict=True)]
        return tracker.moved()

    def look(self, victim: Victim, batch: Batch, tracker: Tracker, images: Tensor) -> list[Tensor]:
        """Return the values that rank images, the most important first, and show the images to the tracker."""
        outputs = victim.network(images)
        lead = -margin(outputs.logits, batch.labels)
        tracker.see(images, outputs, lead, is_last=True)
        wrong = is_wrong(outputs.logits, batch.labels, tracker.doubt).double()
        return [wrong, wrong * victim.certainty(outputs, batch.labels).double(), lead]

    def gradients_per_image(self, classes: int) -> int:
        """Return 0."""
        return 0


def painted(images: Tensor, numbers: Tensor, eps: float) -> Tensor:
    """Move images to the lower or upper face of the box, by numbers in [0, 1)."""
    return torch.where(numbers < 0.5, images - eps, images + eps).clamp(0.0, 1.0)


def side(share: float, progress: float, height: int, width: int) -> int:
    """Return the side of the squares after this share of the queries."""
    halvings = sum(progress > mark for mark in HALVINGS)
    return min(max(round(math.sqrt(share / 2**halvings * height * width)), 1), height, width)


def within(number: Tensor, size: int, length: int, axis: int) -> Tensor:
    """Tell which rows or columns lie in each image's square."""
    shape = [1, 1, 1, 1]
    shape[axis] = length
    index = torch.arange(length, device=number.device).view(shape)
    first = (number * (length - size + 1)).floor()
    return (index >= first) & (index < first + size)


def is_as_good(new: list[Tensor], old: list[Tensor]) -> Tensor:
    """Compare by the first value that differs; equals count as good, so that plateaus can be crossed."""
    answer = torch.ones_like(new[0], dtype=torch.bool)
    for one, other in zip(reversed(new), reversed(old), strict=True):
        answer = (one > other) | ((one == other) & answer)
    return answer
