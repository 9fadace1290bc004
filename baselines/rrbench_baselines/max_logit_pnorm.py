"""MaxLogit-pNorm: the largest logit of normalised logits (Cattelan and Silva, 2024, arXiv 2305.15508)."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.metrics.measures import aurc
from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.confidence import probabilities

GRID = tuple(float(p) for p in range(9))  # as in the release; 0 means no normalisation
CONFIDENCE = math.nan  # in place of p: no p did better than confidence


@dataclass
class MaxLogitPnorm(Rejector):
    """Certainty is the largest centred logit over the p-norm of all; p has the smallest area under risk-coverage.

    As published, it falls back on confidence if no p does better. A temperature would not change the order.
    Differs from the paper: p is chosen on the training inputs, not on a part of the held-out ones; if a network gets
    them all right, it falls back.
    """

    paper = "Cattelan & Silva 2024, arXiv 2305.15508"
    scores = "largest centred logit over the p-norm of all; p fitted, else confidence"

    p: float | None = None  # None: chosen from 0 to 8

    def __post_init__(self) -> None:
        if self.p is not None and self.p != 0 and not self.p >= 1:
            raise ValueError(f"p must be 0, or at least 1, not {self.p:g}")

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        """Choose p, unless it is given."""
        chosen = self.p if self.p is not None else self.choose(clean, labels)
        self.fitted = {"p": torch.tensor(chosen, dtype=torch.float64, device=labels.device)}

    def choose(self, clean: Outputs, labels: Tensor) -> float:
        """Return the p with the smallest area, which must be below the area of confidence."""
        is_right = (clean.logits.argmax(1) == labels).cpu().numpy()

        def area(p: float) -> float:
            return aurc(score(clean, p).cpu().numpy(), is_right)

        best = min(GRID, key=area)
        return best if area(best) < area(CONFIDENCE) else CONFIDENCE

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the score with the fitted p."""
        return score(outputs, float(self.fitted["p"]))


def score(outputs: Outputs, p: float) -> Tensor:
    """Return the largest centred logit over the p-norm of all, or confidence."""
    if math.isnan(p):
        return probabilities(outputs).amax(1)
    logits = outputs.logits.double()
    centred = logits - logits.mean(1, keepdim=True)
    if p == 0:
        return centred.amax(1)
    # A constant factor cancels; with this one, no power overflows and rounding does not count as a difference.
    largest = centred.detach().abs().amax(1, keepdim=True)
    scaled = centred / largest.clamp_min(1e-9 * logits.detach().abs().amax(1, keepdim=True) + 1e-30)
    norm: Tensor = torch.linalg.vector_norm(scaled, p, dim=1)
    return scaled.amax(1) / norm.clamp_min(1)
