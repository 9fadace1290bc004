"""Sets train or eval mode inside a block, and restores it: a user's network is never left changed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

from torch import nn

from rrbench.protocols import Network

Mode = Literal["train", "eval"]


@contextmanager
def mode(network: Network, wanted: Mode) -> Iterator[None]:
    """Put every module of a network into a mode; afterwards restore each module's own mode."""
    modules = (
        [each for each in network.modules() if hasattr(each, "training")] if isinstance(network, nn.Module) else []
    )
    before = [module.training for module in modules]
    for module in modules:
        module.training = wanted == "train"
    try:
        yield
    finally:
        for module, training in zip(modules, before, strict=True):
            module.training = training


class Learning(NamedTuple):
    """How a network learns: whether each module is in train mode, and whether each weight gets a gradient."""

    modules: list[tuple[str, nn.Module, bool]]
    weights: list[tuple[str, nn.Parameter, bool]]

    @classmethod
    def of(cls, network: nn.Module) -> "Learning":
        """Remember a network as it is."""
        return cls(
            [(name, each, each.training) for name, each in network.named_modules() if hasattr(each, "training")],
            [(name, weight, weight.requires_grad) for name, weight in network.named_parameters()],
        )

    def left(self) -> str:
        """Name the first that is otherwise now; empty if nothing is."""
        for name, module, was in self.modules:
            if module.training != was:
                what = f"the network's module {name!r}" if name else "the network"
                return f"{what} in {'eval' if was else 'train'} mode"
        for name, weight, was in self.weights:
            if weight.requires_grad != was:
                return f"the network's weight {name!r} {'frozen' if was else 'unfrozen'}"
        return ""


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
