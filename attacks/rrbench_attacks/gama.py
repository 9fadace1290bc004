"""Guided adversarial margin attacks, GAMA-PGD and GAMA-FW (Sriramanan et al., 2020, arXiv 2011.14969)."""

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.ascent import Keep, Select, Tracker, margin, project, slope
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Outputs, Victim
from rrbench.ranges import at_least
from rrbench_attacks.climb import check_effort
from rrbench_attacks.objectives import confidence

GUIDED = 0.25  # share of the steps over which the guide's weight falls to 0: 25 of the paper's 100
DROPS = (60, 85)  # percent of the steps after which the step shrinks


@dataclass(frozen=True)
class Gama(Attack):
    """Climbs the margin of probabilities; at first a guide leads it away from the random start's probabilities.

    The paper takes 100 steps; the schedules scale to any other number.
    """

    norms = frozenset({"linf"})
    paper = "Sriramanan et al. 2020, arXiv 2011.14969"
    cost = "steps x restarts gradients an image"

    steps: int = 100
    restarts: int = 1
    weight: float = 50.0  # of the guide at the first step
    keep: Keep = "last"
    select: Select = "ce"

    def __post_init__(self) -> None:
        check_effort(self.steps, self.restarts, None)
        at_least(1, steps=self.steps)
        at_least(0, weight=self.weight)

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Climb from corners of the box, and keep one answer for each input over all of them."""
        network, eps, tracker = victim.network, budget.eps, Tracker(batch, confidence, self.keep, self.select)
        for restart in range(self.restarts):
            moved = corner(batch, eps, draws, restart)
            with torch.no_grad():
                reference = probabilities(network(moved))
            for index in range(self.steps):
                weight = guide_weight(self.weight, index, self.steps)

                def objective(outputs: Outputs, weight: float = weight, reference: Tensor = reference) -> Tensor:
                    return guided_margin(outputs, batch.labels, reference, weight)

                outputs, _, gradient = slope(network, moved, objective)
                if index > 0:  # the start is no candidate, as it may lie outside [0, 1]
                    # By the margin alone: the guide's weight falls, so values of different steps do not compare.
                    bare = guided_margin(outputs, batch.labels, reference, 0.0)
                    tracker.see(moved, outputs, bare, is_last=False)
                moved = project(self.move(moved, batch.images, gradient, eps, index), batch.images, "linf", eps)
            with torch.no_grad():
                outputs = network(moved)
                tracker.see(moved, outputs, guided_margin(outputs, batch.labels, reference, 0.0), is_last=True)
        return tracker.moved()

    @abstractmethod
    def move(self, moved: Tensor, images: Tensor, gradient: Tensor, eps: float, index: int) -> Tensor:
        """Take step `index`, before the projection."""

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x restarts; the reference costs one forward pass."""
        return self.steps * self.restarts


@dataclass(frozen=True)
class GamaPgd(Gama):
    """Takes sign steps of twice the radius; a tenth of that after 60 % of the steps, a hundredth after 85 %."""

    maximises = "the margin of softmax, with a falling bonus for leaving the start's softmax; sign steps"

    def move(self, moved: Tensor, images: Tensor, gradient: Tensor, eps: float, index: int) -> Tensor:
        """Add a sign step."""
        return moved + 2 * eps / 10.0 ** drops(index, self.steps) * gradient.sign()


@dataclass(frozen=True)
class GamaFw(Gama):
    """Moves a share of the way to the best corner: 1/2; 1/10 after 60 % of the steps, 1/50 after 85 %."""

    maximises = "the margin of softmax, with a falling bonus for leaving the start's softmax; Frank-Wolfe steps"

    def move(self, moved: Tensor, images: Tensor, gradient: Tensor, eps: float, index: int) -> Tensor:
        """Mix the perturbation with the corner of the box that the gradient points at."""
        share = 0.5 / 5.0 ** drops(index, self.steps)
        return images + (1 - share) * (moved - images) + share * eps * gradient.sign()


def corner(batch: Batch, eps: float, draws: Draws, restart: int) -> Tensor:
    """Start in a random corner of the box; not clipped to [0, 1], as in the release."""
    shape = tuple(batch.images.shape[1:])
    return batch.images + torch.where(draws.uniform(batch.ids, shape, restart) < 0.5, -eps, eps)


def probabilities(outputs: Outputs) -> Tensor:
    """Return softmax in float64: in float32 a confident network has no gradient."""
    return outputs.logits.double().softmax(1)


def guided_margin(outputs: Outputs, labels: Tensor, reference: Tensor, weight: float) -> Tensor:
    """Return max_{k != y} p_k - p_y + weight * squared l2 distance between p and the start's p."""
    probability = probabilities(outputs)
    return weight * (probability - reference).square().sum(1) - margin(probability, labels)


def guide_weight(weight: float, index: int, steps: int) -> float:
    """Return the guide's weight at a step: 50, 48, ... 2, then 0, for 100 steps."""
    return weight * max(0.0, 1 - index / (GUIDED * steps))


def drops(index: int, steps: int) -> int:
    """Count how often the step has shrunk."""
    return sum(100 * index >= percent * steps for percent in DROPS)
