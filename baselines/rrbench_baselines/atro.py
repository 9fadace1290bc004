"""ATRO, a rejection function trained by a max-hinge loss on moved images (Kato et al., 2020, arXiv 2010.12905)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.eval_mode import Mode
from rrbench.frameworks.inner import InnerPgd, classifier_weights, head_output
from rrbench.protocols import Batch, Draws, Network, Outputs, Rejector, Victim
from rrbench.ranges import above, at_least
from rrbench_baselines.head import rejection_head


@dataclass
class Atro(Rejector):
    """Certainty is the raw rejection function a; the loss uses its tanh, which has the same order but ties."""

    frameworks = ("atro",)
    paper = "Kato et al. 2020, arXiv 2010.12905"
    scores = "the rejection function before its tanh"

    def build_head(self, width: int, classes: int) -> nn.Module:
        """Build the head whose output is the rejection function before tanh."""
        return rejection_head(width)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the head's output."""
        return outputs.head[:, 0]


@dataclass(frozen=True)
class AtroTraining(InnerPgd):
    """Accepting costs more the more wrong the answer is, rejecting costs `cost`; the attack climbs the larger cost.

    The defaults are the variant released with RR; the comments give the ATRO authors' own values.
    Differs from the paper: the network is not the authors' VGG, and the attack follows the gradient of every step.
    """

    rejectors = ("atro",)
    paper = "Kato et al. 2020, arXiv 2010.12905"
    minimises = "ce_weight * cross-entropy + weight * max-hinge loss with rejection, on moved images"
    added = frozenset({"agreement", "hinge", "ce_weight", "penalty"})

    attack_mode: Mode = "eval"
    cost: float = 0.3
    weight: float = 0.3  # the batch's size: the authors take the sum over a batch, and here a mean is taken
    alpha: float = 1.0
    agreement: Literal["probabilities", "logits"] = "probabilities"  # logits; what is compared with the label
    hinge: Literal["plain", "squared"] = "plain"  # squared: max(accepting, rejecting, 0) ** 2, without the 0 if plain
    ce_weight: float = 1.0  # 0
    penalty: float = 0.0  # 1/2; times the squared norm of the classifier's weights

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, weight=self.weight, ce_weight=self.ce_weight, penalty=self.penalty)
        above(0, alpha=self.alpha)
        if not 0 < self.cost < 0.5:
            raise ValueError(f"cost {self.cost} must lie between 0 and 1/2")

    @property
    def beta(self) -> float:
        """The slope of the cost of rejecting."""
        return 1 / (1 - 2 * self.cost)

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Attack, then return all terms, with the rejector's loss."""
        outputs = victim.network(self.move(victim.network, batch, draws))
        loss = self.weight * self.max_hinge(outputs, batch.labels).mean()
        if self.ce_weight:
            loss = self.ce_weight * F.cross_entropy(outputs.logits, batch.labels) + loss
        if self.penalty:
            loss = loss + self.penalty * classifier_weights(victim.network).square().sum()
        return victim.training_loss(outputs, batch.labels, loss)

    def move(self, network: Network, batch: Batch, draws: Draws) -> Tensor:
        """Climb the max-hinge loss."""
        return self.climb(network, batch, self.uniform_start(batch, draws), self.max_hinge)

    def max_hinge(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Return the larger of the costs of accepting and rejecting, one value for each input."""
        accepts = head_output(outputs).tanh()
        is_logits = self.agreement == "logits"
        answers = outputs.logits if is_logits else outputs.logits.softmax(1)
        total = outputs.logits.sum(1) if is_logits else 1  # of probabilities
        true = answers.gather(1, labels[:, None]).squeeze(1)
        # The mean over classes of u times the answer, with u = +1 for the true class and -1 for the others.
        agreement = (2 * true - total) / answers.shape[1]
        accepting = 1 + self.alpha / 2 * (accepts - agreement)
        rejecting = self.cost * (1 - self.beta * accepts)
        larger = torch.maximum(accepting, rejecting)
        return larger.clamp_min(0).square() if self.hinge == "squared" else larger

    def gradients_per_image(self) -> int:
        """Return the attack's steps plus the weight update."""
        return self.steps + 1
