"""GDA and GDA* (Lee et al., 2018, arXiv 1807.03888) and GMM (Zheng and Hong, 2018): one Gaussian per class."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rrbench.errors import CellError
from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.references import correct_by_class, in_chunks

Inverse = Literal["fp64", "fp32", "ridge"]

SCATTER_RIDGE = 1e-10  # from the released code; helps a channel that is always 0, and changes almost nothing else
SMALLEST_PIVOT = 5e-12  # of a correlation matrix: below it, CPU and GPU scores differed in the fourth digit


@dataclass
class Gda(Rejector):
    """Certainty is minus the squared Mahalanobis distance to the nearest class mean; all classes share a covariance.

    Differs from the paper: one layer, no input preprocessing and no logistic regression, as in Pang et al. 2022.
    """

    needs = frozenset({"features"})
    paper = "Lee et al. 2018, arXiv 1807.03888"
    scores = "minus the squared Mahalanobis distance to the nearest class, one covariance for all"

    inverse: Inverse = "fp64"  # fp32: as in the released code; ridge: fp64 with 1e-6 of the mean variance added

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        """Learn the class means and the inverse of the pooled within-class covariance."""
        means, scatters, counts = class_statistics(correct_by_class(clean, labels))
        self.fitted = {"means": means, "precision": invert(scatters.sum(0), counts.sum(), self.inverse)}

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return minus the distance; without a log-determinant."""
        return -in_chunks(self.distance, outputs, self.fitted["means"].numel())

    def distance(self, outputs: Outputs) -> Tensor:
        """Return the squared distance to the nearest class."""
        return mahalanobis(outputs.features, self.fitted["means"], self.fitted["precision"]).amin(0)


@dataclass
class GdaStar(Gda):
    """Like GDA, with a covariance for each class."""

    scores = "minus the squared Mahalanobis distance to the nearest class, each with its own covariance"

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        """Learn each class's mean and the inverse of its covariance."""
        means, scatters, counts = class_statistics(correct_by_class(clean, labels, at_least=2))
        self.fitted = {"means": means, "precision": invert(scatters, counts, self.inverse)}


@dataclass
class Gmm(GdaStar):
    """Like GDA*, but uses only the predicted class.

    Differs from the paper: a single Gaussian for each class, on the features only, and one threshold for all classes,
    as in Pang et al. 2022.
    """

    paper = "Zheng & Hong 2018, NeurIPS (I-defender)"
    scores = "minus the squared Mahalanobis distance to the predicted class, each with its own covariance"

    def distance(self, outputs: Outputs) -> Tensor:
        """Return the squared distance to the predicted class."""
        distances = mahalanobis(outputs.features, self.fitted["means"], self.fitted["precision"])
        return distances.gather(0, outputs.logits.argmax(1)[None])[0]


def class_statistics(groups: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return means (classes, width), scatter matrices (classes, width, width) and counts (classes,), in float64."""
    means = torch.stack([group.double().mean(0) for group in groups])
    centred = [group - mean for group, mean in zip(groups, means, strict=True)]
    counts = torch.tensor([len(group) for group in groups], dtype=torch.float64, device=means.device)
    return means, torch.stack([group.T @ group for group in centred]), counts


def invert(scatter: Tensor, count: Tensor, inverse: Inverse) -> Tensor:
    """Invert scatter / count (one shared covariance, or one for each class); the error names a singular one."""
    width = scatter.shape[-1]
    identity = torch.eye(width, dtype=scatter.dtype, device=scatter.device)
    covariance = (scatter + SCATTER_RIDGE * identity) / count[..., None, None]
    if inverse == "fp32":
        single, failed = torch.linalg.inv_ex(covariance.float())
        precision: Tensor = single.double()
        is_singular: Tensor = failed > 0
    else:
        if inverse == "ridge":
            variance = covariance.diagonal(dim1=-2, dim2=-1).mean(-1)
            covariance = covariance + 1e-6 * variance[..., None, None] * identity
        precision, is_singular = invert_scaled(covariance)
    is_singular = is_singular | ~precision.isfinite().flatten(-2).all(-1)
    if bool(is_singular.any()):
        first = int(is_singular.int().argmax())
        whose = "shared covariance" if count.dim() == 0 else f"covariance of class {first}"
        inputs = int(count.flatten()[first])
        raise CellError(f"the {whose} ({inputs} inputs, width {width}) is singular in {inverse}: set inverse=ridge")
    return precision.contiguous()


def invert_scaled(covariance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the inverse, computed through the correlation matrix, and whether that is numerically singular.

    Channels' variances differ by many orders of magnitude; this alone must not count as singular.
    """
    deviation = covariance.diagonal(dim1=-2, dim2=-1).sqrt()
    scale = deviation[..., :, None] * deviation[..., None, :]
    factor, failed = torch.linalg.cholesky_ex(covariance / scale)
    smallest = factor.diagonal(dim1=-2, dim2=-1).amin(-1).square()
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype, device=covariance.device)
    # Not cholesky_inverse: it raises an error at a zero pivot before this code can judge it.
    return torch.cholesky_solve(identity, factor) / scale, (failed > 0) | ~(smallest > SMALLEST_PIVOT)


def mahalanobis(features: Tensor, means: Tensor, precision: Tensor) -> Tensor:
    """Return (classes, N): squared distances to each class, for one shared precision or one for each class."""
    centre = means.mean(0)
    features, means = features.double() - centre, (means - centre)[:, None]
    # Not (features - means) @ precision: here a shared precision multiplies each input once, not once for each class.
    return ((features - means) * (features @ precision - means @ precision)).sum(2)
