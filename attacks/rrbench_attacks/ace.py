"""ACE, the attack on confidence estimation (Galil and El-Yaniv, 2021, arXiv 2110.13741)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.ascent import Tracker, doubt_of, project, slope, step_up, wide
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench.ranges import above, at_least, below


@dataclass(frozen=True)
class Ace(Attack):
    """Changes no prediction: lowers certainty where the prediction is right, and raises it where it is wrong.

    As published: one gradient at the clean image, one step along it of the whole radius, then shorter steps while the
    prediction changes; if every step changes it, the clean image. Differs from the paper: any rejector's certainty.
    """

    is_adaptive = True
    revision = 2  # 1 called an image wrong that float32 may call right
    keeps_answers = True
    paper = "Galil & El-Yaniv 2021, arXiv 2110.13741"
    maximises = "certainty where the answer is wrong, doubt where it is right; no answer changes"
    cost = "1 of the gradients an image, and at most `searches` + 1 looks"

    shrink: float = 0.5  # each radius is this share of the one before
    searches: int = 15  # how many radii are tried

    def __post_init__(self) -> None:
        above(0, shrink=self.shrink)
        below(1, shrink=self.shrink)
        at_least(1, searches=self.searches)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Step once for every radius, and keep the first image that does not change the prediction."""

        def certainty(outputs: Outputs) -> Tensor:
            return victim.certainty(outputs, batch.labels)

        images = batch.images
        tracker = Tracker(batch, victim.certainty, keep="best", select="evade", doubt=doubt_of(victim.network))
        outputs, value, gradient = slope(victim.network, images, certainty)
        tracker.see(images, outputs, value, is_last=True)
        predicted = outputs.logits.argmax(1)
        direction = torch.where(wide(predicted == batch.labels, gradient), -gradient, gradient)
        answer, is_open = images, torch.ones_like(batch.labels, dtype=torch.bool)
        for search in range(self.searches):
            radius = budget.eps * self.shrink**search
            moved = project(step_up(images, direction, budget.norm, radius), images, budget.norm, radius)
            with torch.no_grad():
                outputs = victim.network(moved)
                tracker.see(moved, outputs, certainty(outputs), is_last=True)
            stays = outputs.logits.argmax(1) == predicted
            answer = torch.where(wide(stays & is_open, moved), moved, answer)
            is_open = is_open & ~stays
            if not bool(is_open.any()):
                break
        return Moved(answer, tracker.moved().boldest)

    def gradients_per_image(self, classes: int) -> int:
        """Return 1."""
        return 1
