"""CARL, an abstain class learnt on moved images (Laidlaw and Feizi, 2019, arXiv 1911.11253)."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.ascent import margin
from rrbench.compute.second_derivatives import FastSecondDerivatives
from rrbench.frameworks.inner import InnerPgd, head_output
from rrbench.protocols import Batch, Draws, Network, Outputs, Rejector, Victim
from rrbench.ranges import at_least
from rrbench_baselines.head import rejection_head


@dataclass
class Carl(Rejector):
    """By default certainty falls with q_abs, the probability of an abstain class that is added to the K classes."""

    frameworks = ("carl",)
    after_training = frozenset({"sign"})
    paper = "Laidlaw & Feizi 2019, arXiv 1911.11253"
    scores = "log-odds of not abstaining"

    # +q_abs: as released with RR, where abstaining counts as certain. +logit: the abstain logit, tried for Table 2.
    sign: Literal["-q_abs", "+q_abs", "+logit"] = "-q_abs"

    def build_head(self, width: int, classes: int) -> nn.Module:
        """Build the head whose output is the abstain logit."""
        return rejection_head(width)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return log((1 - q_abs) / q_abs), which orders as 1 - q_abs does, but without ties at 0 and 1.

        With `+q_abs` it is the negative of that, with `+logit` the abstain logit alone.
        """
        if self.sign == "+logit":
            return outputs.head[:, 0].double()
        log_odds = outputs.logits.double().logsumexp(1) - outputs.head[:, 0].double()
        return log_odds if self.sign == "-q_abs" else -log_odds


@dataclass(frozen=True)
class CarlTraining(InnerPgd):
    """Moved images must get the right class or the abstain class, and the clean margin must be flat.

    The defaults are the variant released with RR, without its slip in the penalty; the comments give the CARL authors'
    own values. In that variant nothing makes abstaining costly: a network trained so abstains nearly everywhere.
    """

    rejectors = ("carl",)
    paper = "Laidlaw & Feizi 2019, arXiv 1911.11253"
    minimises = "cross-entropy + weight * -log(q_true + q_abs) on moved images + penalty on the clean margin's slope"
    added = frozenset({"lesson", "climbs"})

    weight: float = 0.5
    penalty: float = 0.02
    penalty_reduction: Literal["sum", "mean"] = "sum"  # mean: a slip of RR's authors that divides by the batch size
    lesson: Literal["moved", "clean"] = "moved"  # clean; cross-entropy: K classes, moved, or K + 1 classes, clean
    climbs: Literal["abstain-loss", "margin"] = "abstain-loss"  # margin; what the attack climbs

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, weight=self.weight, penalty=self.penalty)

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Attack, then return the three terms, with the rejector's loss."""
        outputs = victim.network(self.move(victim.network, batch, draws))
        if self.lesson == "moved":
            loss = F.cross_entropy(outputs.logits, batch.labels)
        else:
            loss = F.cross_entropy(with_abstain(victim.network(batch.images)), batch.labels)
        loss = loss + self.weight * abstain_loss(outputs, batch.labels).mean()
        loss = loss + self.penalty * self.slope(victim.network, batch)
        return victim.training_loss(outputs, batch.labels, loss)

    def move(self, network: Network, batch: Batch, draws: Draws) -> Tensor:
        """Climb the abstain loss, or the best other class's lead over the true one."""
        objective = abstain_loss if self.climbs == "abstain-loss" else lead_of_another
        return self.climb(network, batch, self.uniform_start(batch, draws), objective)

    def slope(self, network: Network, batch: Batch) -> Tensor:
        """Return the mean l1 norm of the clean margin's gradient; training differentiates it again."""
        images = batch.images.detach().requires_grad_()
        with FastSecondDerivatives() if images.is_cuda else nullcontext():
            margins = margin(network(images).logits, batch.labels)
        total = margins.sum() if self.penalty_reduction == "sum" else margins.mean()
        (gradient,) = torch.autograd.grad(total, images, create_graph=True)
        return gradient.flatten(1).abs().sum(1).mean()

    def gradients_per_image(self) -> int:
        """Return the attack's steps, the slope, and the weight update: through both images, and the clean lesson."""
        return self.steps + 3 + (self.lesson == "clean")


def with_abstain(outputs: Outputs) -> Tensor:
    """Return the K logits and the abstain logit, (N, K + 1)."""
    return torch.cat([outputs.logits, head_output(outputs)[:, None]], 1)


def lead_of_another(outputs: Outputs, labels: Tensor) -> Tensor:
    """Return the best other logit minus the true one: positive means wrong."""
    return -margin(outputs.logits, labels)


def abstain_loss(outputs: Outputs, labels: Tensor) -> Tensor:
    """Return -log(q_true + q_abs), one value per input."""
    every = with_abstain(outputs)
    accepted = torch.cat([outputs.logits.gather(1, labels[:, None]), every[:, -1:]], 1)
    return every.logsumexp(1) - accepted.logsumexp(1)
