"""Objectives: small functions from (outputs, labels) to one value for each input."""

from torch import Tensor

from rrbench.ascent import Score
from rrbench.protocols import Outputs


def confidence(outputs: Outputs, labels: Tensor) -> Tensor:
    """Return max softmax: how certain an image looks to an attack that does not know the rejector."""
    return outputs.logits.double().softmax(1).amax(1)


def other_class(shift: int) -> Score:
    """Return log p_k, where class k comes `shift` (1 .. K - 1) after the true class."""

    def log_probability(outputs: Outputs, labels: Tensor) -> Tensor:
        targets = (labels + shift) % outputs.logits.shape[1]
        return outputs.logits.log_softmax(1).gather(1, targets[:, None]).squeeze(1)

    return log_probability
