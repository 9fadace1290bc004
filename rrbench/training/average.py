"""A running mean of a network's weights: cheap, and often more robust than the weights themselves (2010.03593)."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """The mean keeps a share of itself at every step; it begins as the first weights.

    Batch-norm statistics are averaged like weights: those of the network in training are of other weights.
    Counters are not: they stay the network's own.
    """

    def __init__(self, network: nn.Module, keep: float) -> None:
        own = {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
        self.keep, self.tensors = keep, {name: tensor.clone() for name, tensor in own.items()}
        self._own = list(own.values())  # they share the network's memory

    @torch.no_grad()
    def follow(self) -> None:
        """Move towards the network's weights, in place: a captured step finds the tensors where they were."""
        torch._foreach_lerp_(list(self.tensors.values()), self._own, 1 - self.keep)

    @torch.no_grad()
    def take_over(self, tensors: Mapping[str, Tensor]) -> None:
        """Go on from a stored mean."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @contextmanager
    def worn(self) -> Iterator[None]:
        """Let the network have the mean for its weights for a while."""
        kept = [tensor.clone() for tensor in self._own]
        self._give(self.tensors.values())
        try:
            yield
        finally:
            self._give(kept)

    @torch.no_grad()
    def _give(self, tensors: Iterable[Tensor]) -> None:
        for own, tensor in zip(self._own, tensors, strict=True):
            own.copy_(tensor)
