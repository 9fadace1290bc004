"""KD, kernel density (Feinman et al., 2017, arXiv 1703.00410)."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.references import correct_by_class, in_chunks, squared_distances


@dataclass
class Kd(Rejector):
    """Certainty is the log density of training features of the predicted class, at the input's features.

    Differs from the paper: no dropout uncertainty, no logistic regression, as in Pang et al. 2022. Their text divides
    the squared distance by sigma^2; their code multiplies it, and so do we, by g. The logarithm is ours: it keeps the
    order, while densities of far inputs would underflow and tie at 0.
    """

    needs = frozenset({"features"})
    paper = "Feinman et al. 2017, arXiv 1703.00410"
    scores = "log of the mean of exp(-g distance^2) to training features of the predicted class"

    g: float = 1e-3
    references: int = 1000  # at most so many of each class

    def __post_init__(self) -> None:
        if not self.g > 0 or self.references < 1:
            raise ValueError("g must be above 0, and references at least 1")

    def fit(self, clean: Outputs, labels: Tensor) -> None:
        """Keep the first correctly classified features of each class."""
        groups = [group[: self.references] for group in correct_by_class(clean, labels)]
        classes = [torch.full_like(labels[: len(group)], index) for index, group in enumerate(groups)]
        self.fitted = {"references": torch.cat(groups), "classes": torch.cat(classes)}

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the log density."""
        return in_chunks(self.log_density, outputs, len(self.fitted["references"]))

    def log_density(self, outputs: Outputs) -> Tensor:
        """Return log-mean-exp over the references of the predicted class."""
        # A mask over all classes' references: a loop over predicted classes waits for the device, and is slower.
        own = self.fitted["classes"] == outputs.logits.argmax(1, keepdim=True)
        kernels = -self.g * squared_distances(outputs.features, self.fitted["references"])
        return kernels.where(own, -torch.inf).logsumexp(1) - own.sum(1, dtype=torch.float64).log()
