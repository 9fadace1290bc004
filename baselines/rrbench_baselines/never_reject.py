"""Never-reject: the network without a rejector; every rejector must beat it."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.protocols import Outputs, Rejector


@dataclass
class NeverReject(Rejector):
    """Certainty is 1: every input is answered. An attack on it attacks only the classifier."""

    is_probability = True
    is_constant = True
    own_threshold = 1.0
    paper = "no rejector at all"
    scores = "REFERENCE: 1 for every input, nothing is rejected"

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return 1."""
        return torch.ones_like(outputs.logits[:, 0], dtype=torch.float64)
