"""CCAT, confidence-calibrated adversarial training (Stutz et al., 2020, arXiv 1910.06259)."""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.ascent import ask_to_climb, best_other, project, slope
from rrbench.compute.eval_mode import Mode, mode
from rrbench.protocols import Batch, Draws, Framework, Network, Outputs, Victim
from rrbench.ranges import above, at_least, at_most

MOMENTUM = 0.9
SHRINK = 1.5  # a step that did not help is divided by this


@dataclass(frozen=True)
class Ccat(Framework):
    """Train a moved image towards a label that fades to uniform as the image moves farther.

    The defaults are the variant released with RR; the comments give the CCAT authors' own values for CIFAR-10.
    """

    added = frozenset({"scale"})
    paper = "Stutz et al. 2020, arXiv 1910.06259"
    minimises = "cross-entropy on clean inputs + KL(fading label || p(moved))"

    eps: Fraction = Fraction(8, 255)  # 3/100
    step: Fraction = Fraction(1, 255)  # 1/200
    steps: int = 20  # 40
    rho: float = 1.0  # 10; the label keeps the weight (1 - distance / (scale * eps)) ** rho
    scale: float = 1.0  # 1; with 2 the label is half faded at eps. The released code has this setting, too
    start: Literal["half-zero", "mixed"] = "half-zero"  # mixed: zero, of uniform norm, or Gaussian
    backtrack: Literal["ce", "objective"] = "ce"  # objective; the value that a step must not lower
    batches: Literal["whole", "halves"] = "whole"  # halves: one half of the batch is moved, the other stays clean
    attack_mode: Mode = "train"  # eval; the mode of batch norm during the attack

    def __post_init__(self) -> None:
        above(0, eps=self.eps, step=self.step, rho=self.rho, scale=self.scale)
        at_most(1, eps=self.eps)
        at_least(0, steps=self.steps)

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Attack, then return both terms, with the rejector's loss on the moved images."""
        if self.batches == "whole":
            # Before the attack, as in the released code: the order changes batch norm's running statistics.
            clean = victim.network(batch.images)
            attacked, moved = batch, self.move(victim.network, batch, draws)
            outputs = victim.network(moved)
            loss = F.cross_entropy(clean.logits, batch.labels) + self.fading_loss(outputs, moved, attacked).mean()
        else:
            half = batch.size // 2
            attacked = batch.at(slice(half, None))
            moved = self.move(victim.network, attacked, draws)
            both = victim.network(torch.cat([batch.images[:half], moved]))
            clean, outputs = both.at(slice(half)), both.at(slice(half, None))
            total = F.cross_entropy(clean.logits, batch.labels[:half], reduction="sum")
            loss = (total + self.fading_loss(outputs, moved, attacked).sum()) / batch.size
        return victim.training_loss(outputs, attacked.labels, loss)

    def fading_loss(self, outputs: Outputs, moved: Tensor, batch: Batch) -> Tensor:
        """Return KL from the faded label; it differs from cross-entropy only by a constant."""
        target = self.fading_label(moved, batch, outputs.logits.shape[1])
        return F.kl_div(outputs.logits.log_softmax(1), target, reduction="none").sum(1)

    def fading_label(self, moved: Tensor, batch: Batch, classes: int) -> Tensor:
        """Return (N, classes): one-hot where the image did not move, uniform where it moved by scale * eps or more."""
        distance = (moved - batch.images).flatten(1).abs().amax(1, keepdim=True)
        # Rounding may put the distance slightly above eps; a negative weight would make the loss NaN.
        weight = (1 - distance / (self.scale * float(self.eps))).clamp_min(0) ** self.rho
        return weight * F.one_hot(batch.labels, classes) + (1 - weight) / classes

    def move(self, network: Network, batch: Batch, draws: Draws) -> Tensor:
        """Climb with momentum; if a step does not help, the image stays and its next step is shorter."""
        labels, moved = batch.labels, self.begin(batch, draws)
        momentum = torch.zeros_like(moved)
        size = torch.full_like(moved[:, :1, :1, :1], float(self.step))
        bar = moved.new_zeros(batch.size)  # cross-entropy is never below 0, so the first step is always taken
        # As `project` does, with the box worked out once: in small batches each small kernel counts.
        lowest = (batch.images - float(self.eps)).clamp_min(0)
        highest = (batch.images + float(self.eps)).clamp_max(1)

        def climb(images: Tensor) -> tuple[Outputs, Tensor, Tensor]:
            # The authors climb p, not log p: only signs and comparisons count here, so the result is the same.
            return slope(network, images, lambda outputs: best_other(outputs, labels))

        def ask(images: Tensor) -> Outputs:
            with torch.no_grad():
                return ask_to_climb(network, images)

        # In eval mode an image's slope does not depend on its batch, as norms have running statistics.
        # So one pass rates a candidate and serves the next step.
        is_alone = self.attack_mode == "eval"
        with mode(network, self.attack_mode):
            for step in range(self.steps):
                if step == 0 or not is_alone:
                    _, value, gradient = climb(moved)
                momentum = (MOMENTUM * momentum).add_(gradient.sign(), alpha=1 - MOMENTUM)
                candidate = (moved + size * momentum).clamp(lowest, highest)
                goes_on = is_alone and step + 1 < self.steps
                outputs, *there = climb(candidate) if goes_on else (ask(candidate),)
                if self.backtrack == "ce":
                    rating = F.cross_entropy(outputs.logits, labels, reduction="none")
                    helps, shrinks = rating >= bar, rating <= bar
                    bar = torch.maximum(bar, rating)
                else:
                    helps = best_other(outputs, labels) >= value
                    shrinks = ~helps
                size = torch.where(shrinks.view_as(size), size / SHRINK, size)
                moved = torch.where(helps.view_as(size), candidate, moved)
                if there:
                    value = torch.where(helps, there[0], value)
                    gradient = torch.where(helps.view_as(size), there[1], gradient)
        return moved

    def begin(self, batch: Batch, draws: Draws) -> Tensor:
        """Start at the clean image or near it, at random."""
        radius, shape = float(self.eps), tuple(batch.images.shape[1:])
        normal = draws.normal(batch.ids, shape, 0).to(batch.images.dtype)
        choice, share = draws.uniform(batch.ids, (2, 1, 1, 1), 0).to(batch.images.dtype).unbind(1)
        nowhere = torch.zeros_like(normal)
        uniform_norm = normal * (share * radius / normal.abs().amax((1, 2, 3), keepdim=True))
        if self.start == "half-zero":
            delta = torch.where(choice < 1 / 2, nowhere, uniform_norm)
        else:
            # Differs from the authors' code: each image draws for itself; theirs draws once for a batch.
            gaussian = normal * (radius / (2 * math.log(math.prod(shape))))
            delta = torch.where(choice < 1 / 3, nowhere, torch.where(choice < 2 / 3, uniform_norm, gaussian))
        return project(batch.images + delta, batch.images, "linf", radius)

    def gradients_per_image(self) -> int:
        """Return the cost of the attack and the weight update, through both images; with halves, of every second image.

        A step also asks for its candidate; in eval mode that pass serves the next step.
        """
        passes = self.steps if self.attack_mode == "train" else min(self.steps, 1)
        attack = self.steps + passes / 2
        return math.ceil(attack) + 2 if self.batches == "whole" else math.ceil(attack / 2) + 1
