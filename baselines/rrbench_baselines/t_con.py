"""T-Con: the true class's probability, an oracle that is an upper bound for every confidence-based rejector."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.confidence import check_tau, probabilities


@dataclass
class TCon(Rejector):
    """Certainty is softmax at the label; not a defence, as the label is unknown in use."""

    is_oracle = True
    is_probability = True
    paper = "Pang et al. 2022, arXiv 2105.14785"
    scores = "ORACLE: softmax probability of the true label"

    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Refuse: T-Con needs labels."""
        raise TypeError("t-con is an oracle: use oracle_certainty, which is given the labels")

    def oracle_certainty(self, outputs: Outputs, labels: Tensor) -> Tensor:
        """Return the true class's probability."""
        return probabilities(outputs, self.tau).gather(1, labels[:, None]).squeeze(1)
