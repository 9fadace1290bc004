"""ViM: energy against the part of features that training features do not span (Wang et al., 2022, arXiv 2203.10807)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.errors import CellError
from rrbench.protocols import Outputs, Rejector
from rrbench.ranges import at_least
from rrbench_baselines.energy import Energy
from rrbench_baselines.references import features_of

SMALLEST = 1e-10  # relative to the largest variance of any combination of features; anything smaller is rounding


@dataclass
class Vim(Rejector):
    """Certainty is energy minus a virtual logit: the scaled length of the features outside their principal subspace.

    Differs from the paper: the classifier's weights, which give the origin, come from a least-squares fit to its logits
    on the training inputs. If logits are no linear map of the features, this is the best linear fit.
    """

    needs = frozenset({"features"})
    paper = "Wang et al. 2022, arXiv 2203.10807"
    scores = "negative energy minus the scaled distance from the training features' principal subspace"

    dimensions: int | None = None  # of that subspace; None: 1000 of 2048 and more, 512 of 768 and more, else half

    def __post_init__(self) -> None:
        at_least(1, dimensions=self.dimensions)

    def principal(self, width: int) -> int:
        """Return the size of the principal subspace; the authors give none for widths below 768."""
        return self.dimensions or (1000 if width >= 2048 else 512 if width >= 768 else width // 2)

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        """Learn the origin, the residual subspace, and the scale that matches the virtual logit to the largest one."""
        features, logits = features_of(clean).detach().double(), clean.logits.detach().double()
        width = features.shape[1]
        dimensions = self.principal(width)
        if dimensions >= width:
            raise CellError(
                f"vim: a principal subspace of {dimensions} dimensions leaves nothing of a width of {width}"
            )
        if not bool(features.isfinite().all()):
            raise CellError("NaN or infinite features on the training inputs")
        origin = zero_logits(features, logits)
        centred = features - origin
        _, axes = torch.linalg.eigh(centred.T @ centred / len(centred))  # sorted: the smallest variance first
        residual = axes[:, : width - dimensions].contiguous()
        length = torch.linalg.vector_norm(centred @ residual, dim=1).mean()
        if not bool(length > SMALLEST * torch.linalg.vector_norm(centred, dim=1).mean()):
            raise CellError(f"vim: the training features have no residual beyond {dimensions} dimensions: set fewer")
        self.fitted = {"origin": origin, "residual": residual, "alpha": logits.amax(1).mean() / length}

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return energy minus the virtual logit."""
        off = (features_of(outputs).double() - self.fitted["origin"]) @ self.fitted["residual"]
        length: Tensor = torch.linalg.vector_norm(off, dim=1)
        return Energy().certainty(outputs) - self.fitted["alpha"] * length


def zero_logits(features: Tensor, logits: Tensor) -> Tensor:
    """Return the point nearest to 0 at which a linear classifier on the features gives logits of 0, or nearly 0."""
    centre, height = features.mean(0), logits.mean(0)
    centred = features - centre
    # Through the covariance: with width 512 it is a small matrix, while 45,000 rows are a large one.
    weight = torch.linalg.pinv(centred.T @ centred, rtol=SMALLEST, hermitian=True) @ (centred.T @ (logits - height))
    found: Tensor = (centre @ weight - height) @ torch.linalg.pinv(weight)
    return found
