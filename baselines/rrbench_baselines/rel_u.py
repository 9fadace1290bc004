"""Rel-U: learns between which classes wrong answers hesitate (Dadalto et al., 2024, arXiv 2306.01710)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.errors import CellError
from rrbench.protocols import Outputs, Rejector
from rrbench.ranges import at_least, at_most
from rrbench_baselines.confidence import check_tau, probabilities


@dataclass
class RelU(Rejector):
    """Certainty is 1 - p D p; for two classes, D is how much more probability wrong answers share than right ones.

    Differs from the paper: D is learnt on the training inputs, where a network is seldom wrong, not on part of the
    test inputs. Its largest entry is 1, not its norm: the order is the same, and certainty lies in [0, 1].
    Inputs are not preprocessed.
    """

    is_probability = True
    paper = "Dadalto et al. 2024, arXiv 2306.01710"
    scores = "1 minus the quadratic form p D p, D learnt from right and wrong training answers"

    weight: float = 0.5  # of the wrong answers; right answers have the remaining weight
    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)
        at_least(0, weight=self.weight)
        at_most(1, weight=self.weight)

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        """Learn D in closed form; if there is nothing to learn, D is 1 off the diagonal, the Gini index."""
        probability = probabilities(clean, self.tau)
        is_right = clean.logits.argmax(1) == labels
        right, wrong = probability[is_right], probability[~is_right]
        if not len(right):
            raise CellError("rel-u needs training inputs that are classified correctly, and has none")
        others = 1 - torch.eye(probability.shape[1], dtype=probability.dtype, device=probability.device)
        # Without wrong answers their mean is 0, as if they shared no probability.
        shared = self.weight * wrong.T @ wrong / max(1, len(wrong)) - (1 - self.weight) * right.T @ right / len(right)
        matrix = shared.relu() * others
        largest = matrix.amax()
        self.fitted = {"matrix": torch.where(largest > 0, matrix / largest, others)}

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return 1 - p D p."""
        probability = probabilities(outputs, self.tau)
        return 1 - (probability @ self.fitted["matrix"] * probability).sum(1)
