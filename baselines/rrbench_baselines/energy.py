"""Energy: logsumexp of the logits of any network (Liu et al., 2020, arXiv 2010.03759)."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.confidence import check_tau


@dataclass
class Energy(Rejector):
    """Certainty is tau * logsumexp(logits / tau); `ebd` is the same score on a network trained for it."""

    paper = "Liu et al. 2020, arXiv 2010.03759"
    scores = "logsumexp of the logits (negative energy), without training"

    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the negative energy."""
        return self.tau * (outputs.logits.double() / self.tau).logsumexp(1)
