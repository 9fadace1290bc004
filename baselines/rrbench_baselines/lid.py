"""LID, local intrinsic dimensionality (Ma et al., 2018, arXiv 1801.02613)."""

from dataclasses import dataclass

from torch import Tensor

from rrbench.errors import CellError
from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.references import correct_features, in_chunks, squared_distances

SMALLEST_GAP = 1e-9  # k equal distances would make the dimension infinite or, by rounding, negative


@dataclass
class Lid(Rejector):
    """Certainty is minus the dimension estimated from the distances to the k nearest training features.

    Differs from the paper: one layer, one fixed set of references instead of the query's own batch, and no
    logistic regression, as in Pang et al. 2022. No neighbour is dropped as being the query itself.
    """

    needs = frozenset({"features"})
    paper = "Ma et al. 2018, arXiv 1801.02613"
    scores = "minus the local intrinsic dimension among the k nearest training features"

    k: int = 600
    references: int = 10_000  # at most so many of all classes together

    def __post_init__(self) -> None:
        if not 2 <= self.k <= self.references:
            raise ValueError("k must be at least 2, and at most the number of references")

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        """Keep the first correctly classified features."""
        references = correct_features(clean, labels)[0][: self.references].clone()
        if len(references) < self.k:
            raise CellError(f"lid has {len(references)} correctly classified training inputs, fewer than k={self.k}")
        self.fitted = {"references": references}

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return -LID."""
        return -in_chunks(self.dimension, outputs, len(self.fitted["references"]))

    def dimension(self, outputs: Outputs) -> Tensor:
        """Return 1 / (log d_k - mean_i log d_i); the mean includes the k-th distance."""
        distances = squared_distances(outputs.features, self.fitted["references"])
        logarithms = distances.topk(self.k, largest=False, sorted=False).values.log() / 2
        return 1 / (logarithms.amax(1) - logarithms.mean(1)).clamp_min(SMALLEST_GAP)
