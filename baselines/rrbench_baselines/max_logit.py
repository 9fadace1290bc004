"""Max-logit: the largest logit (Hendrycks et al., 2022, arXiv 1911.11132)."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.protocols import Outputs, Rejector


@dataclass
class MaxLogit(Rejector):
    """Certainty is the largest logit; the other logits do not matter."""

    paper = "Hendrycks et al. 2022, arXiv 1911.11132"
    scores = "largest logit"

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the largest logit."""
        return outputs.logits.amax(1)
