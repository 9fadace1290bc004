"""DOCTOR: the probability that two draws from the softmax agree (Granese et al., 2021, arXiv 2106.02395)."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.confidence import check_tau, probabilities


@dataclass
class Doctor(Rejector):
    """Certainty is g, the sum of the squared probabilities (D-alpha, which rejects if (1 - g) / g is large).

    Differs from the paper: g instead of the ratio, which falls as g rises. The order is the same, and g lies in [0, 1].
    Inputs are not preprocessed. D-beta is left out, because it has the order of `confidence`.
    """

    is_probability = True
    paper = "Granese et al. 2021, arXiv 2106.02395"
    scores = "sum of the squared softmax probabilities (D-alpha)"

    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the sum."""
        return probabilities(outputs, self.tau).square().sum(1)
