"""A tiny image problem and networks that solve it, for the checks of plugins."""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
from rrbench.compute.looking import with_looks
from rrbench.networks.small_cnn import SmallCnn
from rrbench.protocols import Batch, Calibration, DataInfo, Outputs, Rejector

INFO = DataInfo(classes=4, shape=(1, 8, 8), mean=(0.5,), std=(0.25,))
WIDTH = 16  # of the features
NETWORK = SmallCnn(width=WIDTH // 4)
CALIBRATION = Calibration(threshold=0.3, median=0.4, scale=0.1)


@dataclass
class Plain(Rejector):
    """Confidence: without head, loss or fit."""

    is_probability = True
    scores = "largest softmax probability"

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return max softmax."""
        return outputs.logits.double().softmax(1).amax(1)


@dataclass
class Headed(Plain):
    """Confidence times a head's sigmoid: an attack on it can use logits and head."""

    def build_head(self, width: int, classes: int) -> nn.Module:
        """Build one output."""
        return nn.Linear(width, 1)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the product."""
        return super().certainty(outputs) * outputs.head[:, 0].double().sigmoid()


@cache
def patterns() -> Batch:
    """Return a hundred images: four patterns, one for each class, with noise that makes some of them hard."""
    ids = torch.arange(100)
    labels = ids % INFO.classes
    return Batch(_drawn(labels, ids, 0.25), labels, ids + 1000)


def clear(batch: Batch) -> Batch:
    """Return the patterns with almost no noise, so that they are easy."""
    return batch._replace(images=_drawn(batch.labels, batch.ids, 0.05))


def _drawn(labels: Tensor, ids: Tensor, noise: float) -> Tensor:
    pattern = HashedDraws(11).uniform(labels, INFO.shape, 0) - 0.5
    return (0.5 + 0.5 * pattern + noise * HashedDraws(12).normal(ids, INFO.shape, 0)).clamp(0, 1)


def empty(batch: Batch) -> Batch:
    """Return images without a pattern but with the same labels: most are answered wrong."""
    return batch._replace(images=(0.5 + 0.5 * HashedDraws(14).normal(batch.ids, INFO.shape, 0)).clamp(0, 1))


def untrained(rejector: Rejector) -> nn.Module:
    """Build a network with its first weights, always the same."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return NETWORK.build(INFO, rejector)


@cache
def _weights() -> dict[str, Tensor]:
    """Train the weights that all networks here share."""
    batch, trained = patterns(), untrained(Plain())
    for _ in range(25):
        # Without torch.optim: its import takes longer than this training.
        parameters = list(trained.parameters())
        with torch.enable_grad():
            loss = F.cross_entropy(trained(batch.images).logits, batch.labels)
            slopes = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, slope in zip(parameters, slopes, strict=True):
                parameter.sub_(0.5 * slope)
    return trained.state_dict()


def build_network(rejector: Rejector) -> nn.Module:
    """Build a network in eval mode that classifies the patterns; only the rejector's head varies."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(1)
        network = NETWORK.build(INFO, rejector)
    network.load_state_dict(_weights(), strict=False)
    return with_looks(network.eval(), rejector)
