"""A network with a rejector's second looks: further passes over moved images, as further columns of its head."""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn

from rrbench.protocols import Outputs, Rejector


class Looking(nn.Module):
    """Answers as its network does, and adds what the rejector finds by asking it again."""

    def __init__(self, network: nn.Module, rejector: Rejector) -> None:
        super().__init__()
        self.network, self.rejector = network, rejector

    def forward(self, images: Tensor) -> Outputs:
        """Ask, look again, and put the findings behind the head's own columns."""
        outputs: Outputs = self.network(images)
        looks = self.rejector.look(self.network, images, outputs)
        return outputs._replace(head=torch.cat([outputs.head, looks.to(outputs.head.dtype)], 1))

    def twin(self, dtype: torch.dtype) -> "Looking | None":
        """Return the same looks at the network's twin, where it has one."""
        make = cast(Callable[[torch.dtype], nn.Module | None] | None, getattr(self.network, "twin", None))
        inner = make(dtype) if make is not None else None
        return None if inner is None else Looking(inner, self.rejector)


def with_looks(network: nn.Module, rejector: Rejector) -> nn.Module:
    """Return the network as a rejector needs it."""
    return Looking(network, rejector) if rejector.has_look() else network


def without_looks(network: nn.Module) -> nn.Module:
    """Return the network as an attack sees it that does not look at the rejector."""
    return network.network if isinstance(network, Looking) else network
