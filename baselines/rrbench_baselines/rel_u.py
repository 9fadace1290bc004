"""Rel-U: which classes wrong answers hesitate between (Dadalto et al., 2024, arXiv 2306.01710)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.errors import CellError
from rrbench.protocols import Outputs, Rejector
from rrbench.ranges import at_least, at_most
from rrbench_baselines.confidence import check_tau, probabilities


@dataclass
class RelU(Rejector):
    """Certainty is 1 - p D p: D holds, for two classes, how much more wrong answers share between them than right ones.

    Differs from the paper: D is learnt from the training inputs, of which a network gets few wrong, and not from a part
    of the test inputs. Its largest entry is 1 instead of its norm: the order is the same, and certainty is in [0, 1].
    No input is preprocessed.
    """

    is_probability = True
    paper = "Dadalto et al. 2024, arXiv 2306.01710"
    scores = "1 minus the quadratic form p D p, D learnt from right and wrong training answers"

    weight: float = 0.5  # of the wrong answers; the right ones have the rest
    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)
        at_least(0, weight=self.weight)
        at_most(1, weight=self.weight)

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        """Learn D in closed form; where there is nothing to learn it is 1 off the diagonal, the Gini index."""
        probability = probabilities(clean, self.tau)
        is_right = clean.logits.argmax(1) == labels
        right, wrong = probability[is_right], probability[~is_right]
        if not len(right):
            raise CellError("rel-u needs training inputs that are classified correctly, and has none")
        others = 1 - torch.eye(probability.shape[1], dtype=probability.dtype, device=probability.device)
        # No wrong answer is a mean of nothing: 0, as if wrong answers shared no probability.
        shared = self.weight * wrong.T @ wrong / max(1, len(wrong)) - (1 - self.weight) * right.T @ right / len(right)
        matrix = shared.relu() * others
        largest = matrix.amax()
        self.fitted = {"matrix": torch.where(largest > 0, matrix / largest, others)}

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return 1 - p D p."""
        probability = probabilities(outputs, self.tau)
        return 1 - (probability @ self.fitted["matrix"] * probability).sum(1)
