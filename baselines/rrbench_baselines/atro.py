"""ATRO, a rejection function trained by a max-hinge loss on moved images (Kato et al., 2020, arXiv 2010.12905)."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.eval_mode import Mode
from rrbench.frameworks.inner import InnerPgd, head_output
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

    Differs from the paper, like RR's authors: probabilities instead of logits, no hinge at 0, no square,
    no weight penalty, and cross-entropy is added.
    """

    rejectors = ("atro",)
    paper = "Kato et al. 2020, arXiv 2010.12905"
    minimises = "cross-entropy + weight * max-hinge loss with rejection, on moved images"

    attack_mode: Mode = "eval"
    cost: float = 0.3
    weight: float = 0.3
    alpha: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, weight=self.weight)
        above(0, alpha=self.alpha)
        if not 0 < self.cost < 0.5:
            raise ValueError(f"cost {self.cost} must lie between 0 and 1/2")

    @property
    def beta(self) -> float:
        """The slope of the cost of rejecting."""
        return 1 / (1 - 2 * self.cost)

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Attack, then return both terms, with the rejector's loss."""
        outputs = victim.network(self.move(victim.network, batch, draws))
        loss = F.cross_entropy(outputs.logits, batch.labels)
        loss = loss + self.weight * self.max_hinge(outputs, batch.labels).mean()
        return victim.training_loss(outputs, batch.labels, loss)

    def move(self, network: Network, batch: Batch, draws: Draws) -> Tensor:
        """Climb the max-hinge loss."""
        return self.climb(network, batch, self.uniform_start(batch, draws), self.max_hinge)

    def max_hinge(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Return the larger of the costs of accepting and rejecting, one value for each input."""
        accepts = head_output(outputs).tanh()
        true = outputs.logits.softmax(1).gather(1, labels[:, None]).squeeze(1)
        # The mean over classes of u p, with u = +1 for the true class and -1 for the others.
        agreement = (2 * true - 1) / outputs.logits.shape[1]
        accepting = 1 + self.alpha / 2 * (accepts - agreement)
        rejecting = self.cost * (1 - self.beta * accepts)
        return torch.maximum(accepting, rejecting)

    def gradients_per_image(self) -> int:
        """Return the attack's steps plus the weight update."""
        return self.steps + 1
