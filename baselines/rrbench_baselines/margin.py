"""Margin: how far the first class leads the second (Scheffer et al., 2001)."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.confidence import check_tau, probabilities


@dataclass
class Margin(Rejector):
    """Certainty is the largest softmax probability minus the second largest."""

    is_probability = True
    paper = "Scheffer et al. 2001, IDA (active hidden Markov models)"
    scores = "largest softmax probability minus the second largest"

    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the difference."""
        first, second = probabilities(outputs, self.tau).topk(2, dim=1).values.unbind(1)
        return first - second
