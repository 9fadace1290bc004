"""Max-logit: the largest logit (Hendrycks et al., 2022, arXiv 1911.11132)."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.protocols import Outputs, Rejector


@dataclass
class MaxLogit(Rejector):
    """Certainty is the largest logit, whatever the others are."""

    paper = "Hendrycks et al. 2022, arXiv 1911.11132"
    scores = "largest logit"

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return it."""
        return outputs.logits.amax(1)
