"""Checks what plugins were lent: a plugin that wrote into it is refused, and the original is kept."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rrbench.errors import CellError

WRITES = "the network writes into the images that it is given: work on a copy"
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors hold the same bits, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Not `==`: NaN differs from itself. No integer type has the size of a complex number.
    kind = None if one.is_complex() else WHOLE.get(one.element_size())
    return torch.equal(one, other) if kind is None else torch.equal(one.view(kind), other.view(kind))


def is_written(lent: Tensor, original: Tensor) -> bool:
    """Tell whether a copy was written into, even with equal values, or in a way that PyTorch does not see."""
    return lent._version > 0 or not is_same(lent, original)


def writes_into(method: str, name: str, part: str) -> str:
    """Say which method wrote into which lent tensor."""
    return f"{method} of {name} writes into the {part} that it is given: work on a copy"


class _Slot(NamedTuple):
    """A place in a module, the tensor that belongs there, and a copy of its values."""

    owner: dict[str, Tensor | None]
    key: str
    name: str
    tensor: Tensor
    copy: Tensor

    def put_back(self) -> bool:
        """Tell whether the tensor was changed or replaced, and undo it."""
        if self.owner.get(self.key) is self.tensor and is_same(self.tensor.detach(), self.copy):
            return False
        self.owner[self.key] = self.tensor
        if self.tensor.shape == self.copy.shape:
            self.tensor.data.copy_(self.copy)  # into the same memory, which a twin may share
        else:
            self.tensor.data = self.copy
        return True


def _slots(network: nn.Module) -> Iterator[_Slot]:
    for prefix, module in network.named_modules():
        for kind, owner in (("weight", module._parameters), ("buffer", module._buffers)):
            for key, tensor in owner.items():
                if tensor is not None:
                    name = f"{kind} {'.'.join(filter(None, (prefix, key)))!r}"
                    yield _Slot(owner, key, name, tensor, tensor.detach().clone())


@contextmanager
def kept(network: object, refusal: Callable[[str], str]) -> Iterator[None]:
    """Restore weights and buffers afterwards, and raise `refusal` for the first that was changed.

    Copies, not version counters: counters miss writes through `.data`, and cannot restore anything.
    """
    slots = list(_slots(network)) if isinstance(network, nn.Module) else []
    try:
        yield
    finally:
        changed = [slot.name for slot in slots if slot.put_back()]
    if changed:
        raise CellError(refusal(changed[0]))
