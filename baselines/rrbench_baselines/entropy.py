"""Entropy: how far the softmax is from uniform (Shannon, 1948)."""

import math
from dataclasses import dataclass

from torch import Tensor

from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.confidence import check_tau


@dataclass
class Entropy(Rejector):
    """Certainty is 1 - H / log K: 0 if all K classes are equally likely, 1 if one class has all the probability."""

    is_probability = True
    paper = "Shannon 1948; as a rejector Hendrycks & Gimpel 2017, arXiv 1610.02136"
    scores = "1 minus the softmax's entropy, as a share of the largest possible"

    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return 1 minus the entropy as a share of the largest."""
        # From log-probabilities: p log p of a probability that has become 0 would have a NaN gradient.
        log_probability = (outputs.logits.double() / self.tau).log_softmax(1)
        entropy = -(log_probability.exp() * log_probability).sum(1)
        # Rounding may make the entropy of a uniform softmax larger than log K.
        return (1 - entropy / math.log(outputs.logits.shape[1])).clamp_min(0)
