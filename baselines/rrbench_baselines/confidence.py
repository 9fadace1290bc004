"""Confidence: the largest softmax probability (Hendrycks and Gimpel, 2017, arXiv 1610.02136)."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.protocols import Outputs, Rejector


@dataclass
class Confidence(Rejector):
    """Certainty is max softmax of the logits over tau."""

    is_probability = True
    paper = "Hendrycks & Gimpel 2017, arXiv 1610.02136"
    scores = "largest softmax probability"

    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return max softmax."""
        return probabilities(outputs, self.tau).amax(1)


def check_tau(tau: float) -> None:
    """Refuse a temperature that would reverse probabilities, or not give any."""
    if not tau > 0:
        raise ValueError("tau must be above 0")


def probabilities(outputs: Outputs, tau: float = 1.0) -> Tensor:
    """Return softmax in float64: in float32 confident answers tie at exactly 1."""
    return (outputs.logits.double() / tau).softmax(1)
