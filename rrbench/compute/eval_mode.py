"""Sets train or eval mode inside a block, and restores it: a user's network is never left changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from torch import nn

from rrbench.protocols import Network

Mode = Literal["train", "eval"]


@contextmanager
def mode(network: Network, wanted: Mode) -> Iterator[None]:
    """Put every module of a network into a mode; afterwards restore each module's own mode."""
    modules = list(network.modules()) if isinstance(network, nn.Module) else []
    before = [module.training for module in modules]
    for module in modules:
        module.training = wanted == "train"
    try:
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Put a network into eval mode without gradients for its parameters; restore both afterwards."""
    before = [parameter.requires_grad for parameter in network.parameters()]
    with mode(network, "eval"):
        network.requires_grad_(False)
        try:
            yield
        finally:
            for parameter, required in zip(network.parameters(), before, strict=True):
                parameter.requires_grad_(required)
