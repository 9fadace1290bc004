"""Entropy: how far the softmax is from saying nothing (Shannon, 1948)."""

import math
from dataclasses import dataclass

from torch import Tensor

from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.confidence import check_tau


@dataclass
class Entropy(Rejector):
    """Certainty is 1 - H / log K: 0 where all K classes are alike, 1 where one has all the probability."""

    is_probability = True
    paper = "Shannon 1948; as a rejector Hendrycks & Gimpel 2017, arXiv 1610.02136"
    scores = "1 minus the softmax's entropy, as a share of the largest possible"

    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the share of the largest entropy that is missing."""
        # Not p log p of a probability that has become 0: its slope would be NaN.
        log_probability = (outputs.logits.double() / self.tau).log_softmax(1)
        entropy = -(log_probability.exp() * log_probability).sum(1)
        # Rounding may carry a uniform softmax beyond log K.
        return (1 - entropy / math.log(outputs.logits.shape[1])).clamp_min(0)
