"""A linear network whose nearest wrong image is known, for tests of other people's attacks."""

from fractions import Fraction
from typing import Literal

import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.protocols import Batch, Norm, Outputs, Victim
from rrbench_baselines.confidence import Confidence

Version = Literal["standard", "original", "apgd", "package"]
RADII = {"linf": Fraction(1, 250), "l2": Fraction(1, 40)}
SHAPE = (1, 8, 8)


class Linear(nn.Module):
    """Logits W (x - 1/2)."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        ids = torch.arange(classes)
        self.weight = HashedDraws(1).normal(ids, (64,), 0)

    def forward(self, images: Tensor) -> Outputs:
        none = images.new_zeros(len(images), 0)
        return Outputs(none, (images - 0.5).flatten(1) @ self.weight.T, none)

    def distances(self, images: Tensor, labels: Tensor, norm: Norm) -> Tensor:
        """Return how far the nearest point of another class is; negative where the answer is wrong already."""
        logits = self(images).logits
        gaps = logits.gather(1, labels[:, None]) - logits
        slopes = self.weight[labels][:, None] - self.weight
        dual = slopes.abs().sum(2) if norm == "linf" else slopes.norm(dim=2)
        nearest: Tensor = (gaps / dual).scatter(1, labels[:, None], torch.inf).amin(1)
        return nearest


def problem(classes: int, count: int = 60) -> tuple[Linear, Batch, Tensor]:
    """Return a linear network, images well inside [0, 1], and which of them bear another label than its answer."""
    network, ids = Linear(classes), torch.arange(count)
    images = 0.5 + 0.2 * (HashedDraws(2).uniform(ids, SHAPE, 0) - 0.5)
    answers = network(images).logits.argmax(1)
    is_wrong = ids % 10 == 3
    return network, Batch(images, torch.where(is_wrong, (answers + 1) % classes, answers), ids + 100), is_wrong


def victim_of(network: nn.Module) -> Victim:
    return Victim(network, Confidence())
