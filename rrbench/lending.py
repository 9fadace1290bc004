"""Checks what plugins were lent: a plugin that wrote into it is refused, and the original is kept."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rrbench.errors import CellError

WRITES = "the network writes into the images that it is given: work on a copy"
TENSORS = ("_parameters", "_buffers")
TABLES = {"_modules": "modules", "_parameters": "weights", "_buffers": "buffers"}  # a module's tables, without hooks
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
    """A place in a module, the tensor that belongs there, and copies of its values and of its gradient."""

    owner: dict[str, Tensor | None]
    key: str
    name: str
    tensor: Tensor
    copy: Tensor
    gradient: Tensor | None

    def put_back(self) -> bool:
        """Tell whether the tensor was changed or replaced, and undo it; a gradient that was left there goes."""
        self._put_gradient_back()
        if self.owner.get(self.key) is self.tensor and is_same(self.tensor.detach(), self.copy):
            return False
        self.owner[self.key] = self.tensor
        if self.tensor.shape == self.copy.shape:
            self.tensor.data.copy_(self.copy)  # into the same memory, which a twin may share
        else:
            self.tensor.data = self.copy
        return True

    def _put_gradient_back(self) -> None:
        if not self.tensor.is_leaf:
            return
        there, gradient = self.tensor.grad, self.gradient
        if gradient is None or there is None or not is_same(there, gradient):
            self.tensor.grad = gradient


class _Build(NamedTuple):
    """How a module is built: its class, its tables of parts and hooks, and methods that were put on this one alone."""

    module: nn.Module
    name: str
    kind: type[nn.Module]
    tables: dict[str, dict[Any, Any]]
    methods: dict[str, object]

    @classmethod
    def of(cls, module: nn.Module, name: str) -> "_Build":
        """Remember a module as it is."""
        tables = {key: dict(value) for key, value in vars(module).items() if _is_table(key, value)}
        return cls(module, name, type(module), tables, _own_methods(module))

    def put_back(self) -> list[str]:
        """Name what was changed, and undo it."""
        changed, own = [], vars(self.module)
        if type(self.module) is not self.kind:
            self.module.__class__ = self.kind
            changed.append("class")
        for key in _own_methods(self.module) | self.methods:
            if own.get(key) is not self.methods.get(key):
                own.pop(key, None)
                own |= {key: self.methods[key]} if key in self.methods else {}
                changed.append(f"method {key!r}")
        for key, before in self.tables.items():
            # The values of tensors are looked at by slots; a table of a module's own parts is compared by identity.
            if key in TENSORS and own[key].keys() == before.keys():
                continue
            if list(own[key]) != list(before) or any(own[key][each] is not before[each] for each in before):
                own[key].clear()
                own[key].update(before)
                changed.append(TABLES.get(key, "hooks"))
        where = f" of {self.name!r}" if self.name else ""
        return [what + where for what in changed]


def _is_table(key: str, value: object) -> bool:
    return isinstance(value, dict) and (key in TABLES or "hooks" in key)


def _own_methods(module: nn.Module) -> dict[str, object]:
    """Return what hides a method of the module's class, such as a `forward` that was set on this module alone."""
    return {key: value for key, value in vars(module).items() if callable(getattr(type(module), key, None))}


def _slots(network: nn.Module) -> Iterator[_Slot]:
    for prefix, module in network.named_modules():
        for kind, owner in (("weight", module._parameters), ("buffer", module._buffers)):
            for key, tensor in owner.items():
                if tensor is not None:
                    name = f"{kind} {'.'.join(filter(None, (prefix, key)))!r}"
                    gradient = tensor.grad.clone() if tensor.is_leaf and tensor.grad is not None else None
                    yield _Slot(owner, key, name, tensor, tensor.detach().clone(), gradient)


@contextmanager
def surroundings_kept() -> Iterator[None]:
    """Restore afterwards what a plugin may have set for the whole process: the current folder, PyTorch's modes."""
    folder, is_climbing, kind = _folder(), torch.is_grad_enabled(), torch.get_default_dtype()
    is_strict, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    try:
        yield
    finally:
        if folder is not None and _folder() != folder:
            os.chdir(folder)
        torch.set_grad_enabled(is_climbing)
        torch.set_default_dtype(kind)
        torch.use_deterministic_algorithms(is_strict, warn_only=only_warns)


def _folder() -> str | None:
    """Return the current folder; None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


@contextmanager
def kept(network: object, refusal: Callable[[str], str]) -> Iterator[None]:
    """Restore weights, buffers, modules and hooks afterwards, and raise `refusal` for the first that was changed.

    Copies, not version counters: counters miss writes through `.data`, and cannot restore anything.
    """
    if not isinstance(network, nn.Module):
        yield
        return
    slots, builds = list(_slots(network)), [_Build.of(module, name) for name, module in network.named_modules()]
    try:
        yield
    finally:
        changed = [what for build in builds for what in build.put_back()]
        changed += [slot.name for slot in slots if slot.put_back()]
    if changed:
        raise CellError(refusal(changed[0]))
