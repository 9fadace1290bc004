"""Small networks and settings on which tests run CW."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
from rrbench.datasets.digits import Digits
from rrbench.protocols import Batch, Budget, Calibration, Moved, Norm, Outputs, Rejector, Victim
from rrbench_attacks.cw import CarliniWagner, CwL2, CwLinf
from small_rejectors import Confidence

BOTH: list[CarliniWagner] = [CwL2(), CwLinf(maximum="smooth")]
SHORT: dict[str, Any] = {"c0": 1.0, "learning_rate": 0.05, "steps": 50, "searches": 4}


@contextmanager
def fast_on_small_networks() -> Iterator[None]:
    """On networks as small as these a second thread only waits, and oneDNN is ten times slower than none on ARM."""
    threads, onednn = torch.get_num_threads(), torch.backends.mkldnn.enabled
    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]  # a property, typed as its descriptor
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.mkldnn.enabled = onednn


@dataclass
class Linear:
    """Two classes and 64 pixels; the boundary is a plane."""

    weights: Tensor  # (64,), of the logit by which class 1 leads
    sizes: list[int] = field(default_factory=list)  # of the batches asked for gradients

    def __call__(self, images: Tensor) -> Outputs:
        if images.requires_grad:
            self.sizes.append(len(images))
        flat = images.flatten(1)
        lead = (flat - 0.5) @ self.weights
        return Outputs(flat, torch.stack([torch.zeros_like(lead), lead], 1), lead[:, None] / 4)

    def nearest(self, batch: Batch, norm: Norm, lead: float = 0.0) -> Tensor:
        """How far it is to where the wrong class leads by `lead`."""
        margin = self(batch.images).logits[:, 1] * (2 * batch.labels - 1) + lead
        return margin / float(torch.linalg.vector_norm(self.weights, ord=1 if norm == "linf" else 2))


def linear(count: int = 12, seed: int = 0) -> tuple[Linear, Batch]:
    """Inputs of both classes, well inside [0, 1], at linf distances of 0.02 to 0.06 from the plane."""
    generator = torch.Generator().manual_seed(seed)
    network = Linear(torch.randn(64, generator=generator))
    images = 0.35 + 0.3 * torch.rand(count, 64, generator=generator)
    labels = torch.arange(count) % 2
    far = torch.linspace(0.02, 0.06, count) * network.weights.abs().sum() * (2 * labels - 1)
    step = far - (images - 0.5) @ network.weights
    images = images + step[:, None] * network.weights / network.weights.square().sum()
    return network, Batch(images.view(count, 1, 8, 8), labels, torch.arange(count))


@cache
def digits(count: int = 100) -> tuple[nn.Module, Batch]:
    """A small network with a head, trained on digits for a second."""
    torch.manual_seed(0)
    body, head = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 11)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = body, head

        def forward(self, images: Tensor) -> Outputs:
            features = self.body(images)
            outputs = self.head(features)
            return Outputs(features, outputs[:, :10], outputs[:, 10:])

    network, train = Network(), Digits().load("train").at(slice(500))
    parameters = list(network.parameters())
    for _ in range(120):  # without torch.optim, which takes five seconds to import
        outputs = network(train.images)
        right = (outputs.logits.argmax(1) == train.labels).float()
        loss = F.cross_entropy(outputs.logits, train.labels)
        loss = loss + F.binary_cross_entropy_with_logits(outputs.head[:, 0], right)
        for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
            parameter.data -= gradient
    return network.requires_grad_(False), Digits().load("test").at(slice(count))


def run(
    attack: CarliniWagner,
    network: Callable[[Tensor], Outputs],
    batch: Batch,
    rejector: Rejector | None = None,
    median: float = math.nan,
) -> Moved:
    victim = Victim(network, rejector or Confidence(), Calibration(math.nan, median, 1.0))
    (norm,) = attack.norms
    return attack(victim, batch, Budget("linf" if norm == "linf" else "l2", None), HashedDraws(0))


def distances(moved: Tensor, batch: Batch, norm: Norm) -> Tensor:
    delta = (moved - batch.images).flatten(1)
    sizes: Tensor = torch.linalg.vector_norm(delta, ord=math.inf if norm == "linf" else 2, dim=1)
    return sizes


def flags(moved: Moved) -> Tensor:
    assert moved.reached is not None
    return moved.reached
