"""Checks what plugins were lent: a plugin that wrote into it is refused, and the original is kept."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from rrbench.errors import CellError

WRITES = "the network writes into the images that it is given: work on a copy"
TENSORS = ("_parameters", "_buffers")
# PyTorch's own tables in a module, with words for what they hold.
WORDS = {"_modules": "modules", "_parameters": "weights", "_buffers": "buffers"}
TABLES = {key: WORDS.get(key, "hooks") for key, value in vars(nn.Module()).items() if isinstance(value, dict)}
WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def is_same(one: Tensor, other: Tensor) -> bool:
    """Tell whether two tensors hold the same bits, NaN included."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    # Not `==`: NaN differs from itself. No integer type has the size of a complex number.
    if one.layout != torch.strided:
        return torch.equal(one.to_dense(), other.to_dense())
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
        is_replaced = isinstance(self.owner, dict) and self.owner.get(self.key) is not self.tensor
        is_changed = is_replaced or not is_same(self.tensor.detach(), self.copy)
        if is_replaced:  # never of torch.jit's modules, which have no such tables
            self.owner[self.key] = self.tensor
        if is_changed:
            if _form(self.tensor) == _form(self.copy):
                self.tensor.data.copy_(self.copy)  # into the same memory, which a twin may share
            else:
                self.tensor.data = self.copy
        self._put_gradient_back()
        return is_changed

    def _put_gradient_back(self) -> None:
        if not self.tensor.is_leaf:
            return
        there, gradient = self.tensor.grad, self.gradient
        if gradient is None or there is None or not is_same(there, gradient):
            self.tensor.grad = gradient


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tensor.shape, tensor.dtype, tensor.device


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
        tables = {key: dict(vars(module)[key]) for key in TABLES if isinstance(vars(module).get(key), dict)}
        return cls(module, name, type(module), tables, _own_methods(module))

    def put_back(self) -> list[str]:
        """Name what was changed, and undo it."""
        changed, own = [], vars(self.module)
        if type(self.module) is not self.kind:
            self.module.__class__ = self.kind
            changed.append("class")
        for key in _own_methods(self.module) | self.methods:
            if own.get(key) is not self.methods.get(key):
                if key in self.methods:
                    own[key] = self.methods[key]
                else:
                    del own[key]
                changed.append(f"method {key!r}")
        for key, before in self.tables.items():
            # The values of tensors are looked at by slots; a table of a module's own parts is compared by identity.
            if key in TENSORS and own[key].keys() == before.keys():
                continue
            if list(own[key]) != list(before) or any(own[key][each] is not before[each] for each in before):
                own[key].clear()
                own[key].update(before)
                changed.append(TABLES[key])
        where = f" of {self.name!r}" if self.name else ""
        return [what + where for what in changed]


def _own_methods(module: nn.Module) -> dict[str, object]:
    """Return what hides a method of the module's class, such as a `forward` that was set on this module alone."""
    own = vars(module)
    kind: Any = type(module)
    return {key: own[key] for key in own.keys() & _methods(kind)}


@lru_cache(maxsize=1024)
def _methods(kind: Any) -> frozenset[str]:
    # Without special names: Python looks them up on the class, and to ask for `__annotations__` would change the class.
    plain = (name for name in dir(kind) if not name.startswith("__"))
    return frozenset(name for name in plain if callable(getattr(kind, name, None)))


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
    """Restore afterwards what a plugin may have set for the whole process: the current folder, PyTorch's modes.

    For one thread at a time: another one would take what a plugin has set for what was there before. Around several
    threads it restores what they leave, but PyTorch's gradient mode, which each thread has for itself.
    """
    folder, is_climbing = _folder(), torch.is_grad_enabled()
    default, strictness = torch.get_default_dtype(), _strictness()
    try:
        yield
    finally:
        torch.set_grad_enabled(is_climbing)
        if torch.get_default_dtype() != default:
            torch.set_default_dtype(default)
        if _strictness() != strictness:  # only then: the call imports a compiler, which takes two seconds
            torch.use_deterministic_algorithms(strictness[0], warn_only=strictness[1])
        if folder is not None and _folder() != folder:
            with suppress(OSError):  # it was deleted
                os.chdir(folder)


def _strictness() -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _folder() -> str | None:
    """Return the current folder; None if it was deleted."""
    try:
        return os.getcwd()
    except OSError:
        return None


@contextmanager
def kept(network: object, refusal: Callable[[str], str], *, may_build: bool = False) -> Iterator[None]:
    """Restore weights, buffers, modules and hooks afterwards, and raise `refusal` for the first that was changed.

    Copies, not version counters: counters miss writes through `.data`, and cannot restore anything. `may_build`: only
    what was there is looked at, as a network may make some of its parts when it answers for the first time.
    """
    if not isinstance(network, nn.Module):
        yield
        return
    slots = list(_slots(network))
    builds = [] if may_build else [_Build.of(module, name) for name, module in network.named_modules()]
    try:
        yield
    finally:
        changed = [what for build in builds for what in build.put_back()]
        changed += [slot.name for slot in slots if slot.put_back()]
    if changed:
        raise CellError(refusal(changed[0]))
