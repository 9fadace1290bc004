"""RR, rectified rejection, and its ablations (Pang et al., 2022, arXiv 2105.14785)."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.protocols import Outputs, Rejector
from rrbench.ranges import at_least
from rrbench_baselines.confidence import check_tau, probabilities
from rrbench_baselines.head import rejection_head


@dataclass
class RR(Rejector):
    """Certainty is R-Con: confidence times A, where A (the head) learns p[true] / p[predicted]."""

    after_training = frozenset({"score"})
    paper = "Pang et al. 2022, arXiv 2105.14785"
    scores = "R-Con: confidence times the head's rectification A"

    score: Literal["rcon", "con"] = "rcon"  # con: the same network, judged only by confidence
    tau: float = 1.0  # temperature in the RR loss and in the score; cross-entropy keeps 1
    weight: float = 1.0
    form: Literal["product", "difference", "head", "confidence"] = "product"
    stop_gradient: bool = True

    def __post_init__(self) -> None:
        check_tau(self.tau)
        at_least(0, weight=self.weight)

    @property
    def is_probability(self) -> bool:
        """Whether certainty lies in [0, 1]; only the difference may be negative."""
        return self.score == "con" or self.form != "difference"

    def build_head(self, width: int, classes: int) -> nn.Module:
        """Build the head whose output is A before the sigmoid."""
        return rejection_head(width)

    def rectified(self, confidence: Tensor, outputs: Outputs) -> Tensor:
        """Combine a confidence and the head into R."""
        rectifier = outputs.head[:, 0].double().sigmoid()
        if self.form == "product":
            return confidence * rectifier
        if self.form == "difference":
            return confidence - rectifier
        return rectifier if self.form == "head" else confidence

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        """Add BCE(R, sg[T-Con]); inside R, confidence is held fixed if the prediction is right."""
        probability = probabilities(outputs, self.tau)
        confidence, predicted = probability.max(1)
        target = probability.gather(1, labels[:, None]).squeeze(1).detach()
        if self.stop_gradient:
            confidence = confidence.where(predicted != labels, confidence.detach())
        # The paper mentions the difference in a footnote without code; this keeps its BCE defined.
        edge = 1e-6 if self.form == "difference" else 0.0
        rectified = self.rectified(confidence, outputs).clamp(edge, 1 - edge)
        return classifier_loss + self.weight * F.binary_cross_entropy(rectified, target).to(classifier_loss.dtype)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return R-Con, or confidence at temperature 1 for `score=con`."""
        if self.score == "con":
            return probabilities(outputs).amax(1)
        return self.rectified(probabilities(outputs, self.tau).amax(1), outputs)
