"""A running mean of a network's weights: cheap, and often more robust than the weights themselves (2010.03593)."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Starts as the first weights; every step keeps the share `keep` of the mean and adds the rest from the network.

    Batch-norm statistics are averaged like weights, as the network's own statistics belong to other weights.
    Counters are not averaged: they stay the network's own.
    """

    def __init__(self, network: nn.Module, keep: float) -> None:
        own = {name: tensor for name, tensor in network.state_dict().items() if tensor.is_floating_point()}
        self.keep, self.tensors = keep, {name: tensor.clone() for name, tensor in own.items()}
        self._own = list(own.values())  # share the network's memory

    @torch.no_grad()
    def follow(self) -> None:
        """Move towards the network's weights, in place: a captured step expects the tensors at the same address."""
        torch._foreach_lerp_(list(self.tensors.values()), self._own, 1 - self.keep)

    @torch.no_grad()
    def take_over(self, tensors: Mapping[str, Tensor]) -> None:
        """Continue from a stored mean."""
        for name, tensor in self.tensors.items():
            tensor.copy_(tensors[name])

    @contextmanager
    def worn(self) -> Iterator[None]:
        """Use the mean as the network's weights inside the block."""
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
