"""A network, a batch and a rejector small enough to follow by hand, for the tests of training frameworks."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.protocols import Batch, Outputs
from rrbench_baselines.rr import RR


class Small(nn.Module):
    """One hidden layer with a batch norm, whose running mean tells in which mode it worked."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.backbone, self.norm = nn.Linear(16, 12), nn.BatchNorm1d(12)
            self.classifier, self.head = nn.Linear(12, 3), nn.Linear(12, 1)

    def running_mean(self) -> Tensor:
        assert self.norm.running_mean is not None
        return self.norm.running_mean.clone()

    def forward(self, images: Tensor) -> Outputs:
        features = self.norm(self.backbone(images.flatten(1))).relu()
        return Outputs(features, self.classifier(features), self.head(features))


@dataclass
class OnlyTheShare(RR):
    """RR, whose share alone gives gradient."""

    def training_loss(self, outputs: Outputs, labels: Tensor, classifier_loss: Tensor) -> Tensor:
        return super().training_loss(outputs, labels, classifier_loss.detach())


def gradient_of(layer: nn.Linear) -> Tensor:
    assert layer.weight.grad is not None
    return layer.weight.grad.clone()


def batch_of(size: int) -> Batch:
    ids = torch.arange(size)
    images = HashedDraws(1).uniform(ids, (1, 4, 4), 0)
    images[0, 0, 0] = torch.tensor([0.0, 0.0, 1.0, 1.0])  # the range matters where the box leaves it
    return Batch(images, ids % 3, ids)
