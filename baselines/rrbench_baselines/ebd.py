"""EBD, energy-based detection (Liu et al., 2020, arXiv 2010.03759), trained on adversarial inputs."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.protocols import Outputs, Rejector
from rrbench.ranges import at_least, at_most


@dataclass
class Ebd(Rejector):
    """Certainty is logsumexp of the logits; training pushes it above m_in if right and below m_out if wrong."""

    paper = "Liu et al. 2020, arXiv 2010.03759"
    scores = "logsumexp of the logits (negative energy)"

    m_in: float = 6.0
    m_out: float = 3.0
    weight: float = 0.1

    def __post_init__(self) -> None:
        at_least(0, weight=self.weight)
        at_most(self.m_in, m_out=self.m_out)

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        """Add both squared hinge terms; nothing if the batch is all right or all wrong."""
        certainty = self.certainty(outputs)
        right = outputs.logits.argmax(1) == labels
        high = F.relu(certainty - self.m_out).square()
        low = F.relu(self.m_in - certainty).square()
        # Masked sums instead of indexing: a training step then does not wait for the device.
        # An empty group counts as one input: 0 / 0 would make every gradient NaN, although it is left out below.
        hinges = (high * ~right).sum() / (~right).sum().clamp_min(1) + (low * right).sum() / right.sum().clamp_min(1)
        both = right.any() & ~right.all()
        return classifier_loss + self.weight * torch.where(both, hinges, 0.0)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return logsumexp."""
        return outputs.logits.logsumexp(1)
