"""SNet, SelectiveNet (Geifman and El-Yaniv, 2019, arXiv 1901.09192), trained on moved images."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.protocols import Outputs, Rejector
from rrbench.ranges import above, at_least, at_most
from rrbench_baselines.head import rejection_head


@dataclass
class Snet(Rejector):
    """Certainty is the selector g, which learns where the classifier may abstain at a wanted coverage.

    Differs from the paper: the selector is the same head as RR's.
    """

    frameworks = ("pgd-at", "standard")  # its loss replaces the framework's: TRADES or CCAT would be lost
    is_probability = True
    paper = "Geifman & El-Yaniv 2019, arXiv 1901.09192"
    scores = "the selector g"

    weight: float = 8.0
    coverage: float = 0.7

    def __post_init__(self) -> None:
        at_least(0, weight=self.weight)
        above(0, coverage=self.coverage)
        at_most(1, coverage=self.coverage)

    def build_head(self, width: int, classes: int) -> nn.Module:
        """Build the selector and the auxiliary classifier."""
        return SelectorAndAuxiliary(width, classes)

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        """Return half the auxiliary loss, and half the selective risk with coverage penalty; there is no other loss."""
        raw, auxiliary = outputs.head[:, 0], outputs.head[:, 1:]
        missing = F.relu(self.coverage - raw.sigmoid().mean())
        # g / sum(g), even if every g underflows to 0.
        shares = F.logsigmoid(raw).softmax(0)
        risk = (shares * F.cross_entropy(outputs.logits, labels, reduction="none")).sum()
        return 0.5 * (F.cross_entropy(auxiliary, labels) + self.weight * missing.square() + risk)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return g in float64: in float32 confident answers tie at exactly 1."""
        return outputs.head[:, 0].double().sigmoid()


class SelectorAndAuxiliary(nn.Module):
    """The selector before its sigmoid, then the logits of a classifier that only training uses."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.selector = rejection_head(width)
        self.auxiliary = nn.Linear(width, classes)

    def forward(self, features: Tensor) -> Tensor:
        """Return (N, 1 + classes)."""
        return torch.cat([self.selector(features), self.auxiliary(features)], 1)
