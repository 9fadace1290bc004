"""KNN: the distance to the k-th nearest training feature (Sun et al., 2022, arXiv 2204.06507)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
from rrbench.errors import CellError
from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.references import features_of, in_chunks, squared_distances


@dataclass
class Knn(Rejector):
    """Certainty is minus the distance to the k-th nearest training feature; all features are scaled to length 1.

    Right and wrong training inputs count equally, as published. Differs from the paper: a tenth of CIFAR-10's training
    inputs, drawn once, and a tenth of its k = 50, like the authors do when they use a part.
    """

    needs = frozenset({"features"})
    paper = "Sun et al. 2022, arXiv 2204.06507"
    scores = "minus the distance to the k-th nearest training feature, on the unit sphere"

    k: int = 5
    references: int = 5000  # at most so many of all classes together: 10 MB for features of width 512
    seed: int = 0  # chooses the references

    def __post_init__(self) -> None:
        if not 1 <= self.k <= self.references:
            raise ValueError("k must be at least 1, and at most the number of references")

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        """Keep the features of randomly drawn training inputs."""
        features = features_of(clean).detach()
        if len(features) < self.k:
            raise CellError(f"knn has {len(features)} training inputs, fewer than k={self.k}")
        if not bool(features.isfinite().all()):
            raise CellError("NaN or infinite features on the training inputs")
        lots = HashedDraws(self.seed).uniform(torch.arange(len(features)), (), 0)
        # A stable sort, so that equal numbers are ordered the same on every machine; then in file order, like others.
        chosen = lots.argsort(stable=True)[: self.references].sort().values
        self.fitted = {"references": features[chosen.to(features.device)].clone()}

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return minus the distance."""
        return -in_chunks(self.distance, outputs, len(self.fitted["references"]))

    def distance(self, outputs: Outputs) -> Tensor:
        """Return the distance to the k-th neighbour."""
        queries, references = (F.normalize(part.double()) for part in (outputs.features, self.fitted["references"]))
        nearest = squared_distances(queries, references).topk(self.k, largest=False, sorted=False).values
        return nearest.amax(1).sqrt()
