"""Adds a rejector's second looks to a network: more passes over moved images give more columns of the head."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from rrbench.protocols import Outputs, Rejector


class Looking(nn.Module):
    """Answers as its network does, and adds what the rejector's `look` finds by asking the network again."""

    def __init__(self, network: nn.Module, rejector: Rejector) -> None:
        super().__init__()
        self.network, self.rejector = network, rejector

    def forward(self, images: Tensor) -> Outputs:
        """Ask the network, look again, and put the findings behind the head's own columns."""
        outputs: Outputs = self.network(images)
        looks = self.rejector.look(self.network, images, outputs)
        return outputs._replace(head=torch.cat([outputs.head, looks.to(outputs.head.dtype)], 1))

    def twin(self, dtype: torch.dtype) -> "Looking | None":
        """Return the same looks at the network's twin; None if it has no twin."""
        make = cast(Callable[[torch.dtype], nn.Module | None] | None, getattr(self.network, "twin", None))
        inner = make(dtype) if make is not None else None
        return None if inner is None else Looking(inner, self.rejector)


def with_looks(network: nn.Module, rejector: Rejector) -> nn.Module:
    """Return the network, with looks if the rejector has any."""
    return Looking(network, rejector) if rejector.has_look() else network


def without_looks(network: nn.Module) -> nn.Module:
    """Return the network without looks, for attacks that ignore the rejector."""
    return network.network if isinstance(network, Looking) else network
