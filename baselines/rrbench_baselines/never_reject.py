"""Never-reject: the network without a rejector, the reference that every rejector must beat."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.protocols import Outputs, Rejector


@dataclass
class NeverReject(Rejector):
    """Certainty is 1: every input is answered. Attacks on it are attacks on the classifier alone."""

    is_probability = True
    is_constant = True
    own_threshold = 1.0
    paper = "no rejector at all"
    scores = "REFERENCE: 1 for every input, nothing is rejected"

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return 1."""
        return torch.ones_like(outputs.logits[:, 0], dtype=torch.float64)
