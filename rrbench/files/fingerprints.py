"""Hashes that tell a user's own network, function or object from another with the same name."""

import functools
import hashlib
import logging
import re
import types
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle

from rrbench.files.attributes import LIBRARIES, attributes, is_library
from rrbench.files.module_parts import hidden, hooks, made_by_hooks

LENGTH = 16  # digits of a hash in a row
DEPTH = 12  # levels of nested objects that are hashed
# What Python and not the author puts into a class; some of it comes and goes, or has an address.
NOT_WRITTEN = frozenset(
    {
        "__module__",
        "__qualname__",
        "__doc__",
        "__firstlineno__",
        "__static_attributes__",
        "__match_args__",
        "__slotnames__",
        "_abc_impl",
    }
)
VALUES: tuple[Any, ...] = (str, bytes, bool, int, float, complex, types.NoneType)

Seen = dict[int, tuple[int, object]]

# The networks that are being hashed: one of torch.fx holds a graph, which holds the network.
_BEGUN: ContextVar[tuple[nn.Module, ...]] = ContextVar("begun", default=())
# What was met in the hidden parts of these networks: those of a hundred modules may each lead to all others.
_MET: ContextVar[Seen | None] = ContextVar("met", default=None)


def of_network(network: nn.Module) -> str:
    """Hash a network's structure, weights, buffers, attributes and hooks."""
    begun, met = _BEGUN.get(), _MET.get()
    if any(network is each for each in begun):
        return "again"
    met = {} if met is None else met
    for module in network.modules():
        met.setdefault(id(module), (len(met), module))  # each is hashed here: whatever leads to it need not do it
    digest = hashlib.sha256(_plain(repr(network)).encode())
    token = _BEGUN.set((*begun, network))
    try:
        for module in network.modules():
            # What `forward` does and reads besides tensors.
            made = made_by_hooks(module)
            plain = {
                name: value for name, value in vars(module).items() if not name.startswith("_") and name not in made
            }
            digest.update(of_object((type(module), plain)).encode())
            # The classes of these are a library's, and their code was made from a graph.
            if isinstance(module, fx.GraphModule):
                digest.update(module.code.encode())
            elif isinstance(module, torch.jit.ScriptModule) and hasattr(module, "code"):
                code, constants = module.code_with_constants
                digest.update(code.encode() + of_object(dict(constants.const_mapping)).encode())
            # Only if there are some: without them a hash stays as it was before these counted.
            if found := [*hidden(module), *hooks(module)]:
                for part in _of_hidden(found, met):
                    digest.update(part)
    finally:
        _BEGUN.reset(token)
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        digest.update(name.encode() + _of_tensor(tensor))
    return digest.hexdigest()


def _of_hidden(parts: list[tuple[str, object]], met: Seen) -> Iterator[bytes]:
    token = _MET.set(met)
    try:
        for name, value in parts:
            yield name.encode()
            yield from _parts(value, met, DEPTH)
    finally:
        _MET.reset(token)


def of_object(thing: object) -> str:
    """Hash what a function or an object does: its code, and the values that it holds or uses."""
    digest = hashlib.sha256()
    for part in _parts(thing, {}, DEPTH):
        digest.update(part)
    return digest.hexdigest()[:LENGTH]


def name_of(thing: object) -> str:
    """Name an object for a row; the name is the same in every run."""
    return str(getattr(thing, "__name__", None) or _plain(repr(thing)))


def _parts(thing: object, seen: Seen, depth: int) -> Iterator[bytes]:
    """Walk through code and values; skip what was met before or lies too deep.

    What was seen is kept alive: another object could get its id.
    """
    value = _of_value(thing)
    if value is not None:
        yield value
    if value is not None and is_library(type(thing).__module__):
        return
    if id(thing) in seen:
        yield f"again {seen[id(thing)][0]}".encode()
    elif not depth:
        yield b"too deep"
    else:
        seen[id(thing)] = (len(seen), thing)
        yield type(thing).__qualname__.encode()
        for part in _inside(thing):
            yield from _parts(part, seen, depth - 1)


def _of_value(thing: object) -> bytes | None:
    """Return the bytes of a tensor, an array, a text or a number; None of anything else."""
    if isinstance(thing, Tensor):
        return _of_tensor(thing)
    if isinstance(thing, np.ndarray | np.generic) and not thing.dtype.hasobject:
        # A plain array: NumPy's `masked` refuses to give its bytes.
        return repr((thing.dtype, thing.shape)).encode() + np.asarray(thing).tobytes()
    # Of the first type that fits: a class of the user's may print less than its value.
    kind = next((kind for kind in VALUES if isinstance(thing, kind)), None)
    return None if kind is None else str(kind.__repr__(thing)).encode()


def _inside(thing: object) -> Iterator[object]:
    """Return the parts of an object; for a library's function or class the name is enough."""
    if isinstance(thing, nn.Module):
        yield from (of_network(thing), type(thing))
    elif _of_value(thing) is not None:
        yield from _added(thing)
    elif isinstance(thing, types.CodeType):
        yield from (thing.co_code, thing.co_names, thing.co_consts)
    elif isinstance(thing, np.ndarray | np.generic):
        yield from (repr(np.shape(thing)), thing.tolist(), *_added(thing))  # its bytes are addresses
    elif isinstance(thing, logging.Logger):
        yield thing.name  # it leads to every logger of the process
    elif isinstance(thing, RemovableHandle):
        yield from ()  # its number counts all hooks of the process
    elif isinstance(thing, torch.ScriptObject):
        held: Any = thing
        yield held.__getstate__() if held._has_method("__getstate__") else _plain(repr(held))
    elif isinstance(thing, types.FunctionType) and is_library(thing.__globals__.get("__name__")):
        # Named by its code: a decorator may have given it the name of a user's function, which its closure then holds.
        yield from (f"{thing.__globals__['__name__']}.{thing.__code__.co_qualname}", *_given(thing))
        # What a decorator took over from a user's function. PyTorch puts names with `_` there, some when it is called.
        yield from (part for item in attributes(thing) if not item[0].startswith("_") for part in item)
    elif isinstance(thing, types.FunctionType):
        yield from (thing.__code__, *_given(thing))
        names = sorted(set(_names(thing.__code__)))
        yield from _reached([thing.__globals__.get(name) for name in names], names)
        yield from (part for item in attributes(thing) if item[0] != "__isabstractmethod__" for part in item)
    elif isinstance(thing, types.ModuleType):
        yield thing.__name__
    elif isinstance(thing, property):
        yield from (thing.fget, thing.fset, *_added(thing))
    elif isinstance(thing, staticmethod | classmethod):
        yield from (thing.__func__, *_added(thing))
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords, *_added(thing))
        if type(thing) is functools.partial:
            yield from (part for item in attributes(thing) for part in item)
    elif isinstance(thing, Mapping):
        yield from (part for item in thing.items() for part in item)
        yield from (thing.default_factory,) if isinstance(thing, defaultdict) else ()
        yield from _added(thing)
    elif isinstance(thing, tuple | list | set | frozenset):
        yield from sorted(thing, key=lambda part: _plain(repr(part))) if isinstance(thing, set | frozenset) else thing
        yield from _added(thing)
    elif isinstance(thing, type):
        yield f"{thing.__module__}.{thing.__qualname__}"
        if not is_library(thing.__module__):
            written = sorted((name, value) for name, value in vars(thing).items() if _is_written(name, value))
            yield from (part for item in written for part in item)
            yield from thing.__bases__
        elif thing.__module__ == parametrize.__name__:  # PyTorch made it of the module's class, which may be a user's
            yield from (base for base in thing.__bases__ if not is_library(base.__module__))
    else:
        yield from (type(thing), _plain(repr(thing)))
        yield from (part for item in attributes(thing) for part in item)
        yield from thing if isinstance(thing, deque) else ()  # `repr` leaves out most of a large tensor


def _added(thing: object) -> Iterator[object]:
    """Return what an object of a user's class has besides the values of the builtin: the class, and attributes."""
    if not is_library(type(thing).__module__):
        yield type(thing)
        yield from (part for item in attributes(thing) for part in item)


def _reached(values: list[object], names: list[str]) -> Iterator[object]:
    """Return the values that code finds by its names, also through modules, and modules in these."""
    modules: list[types.ModuleType] = []
    while values:
        value = values.pop(0)
        if not isinstance(value, types.ModuleType):
            yield value
        elif value not in modules and value.__name__.partition(".")[0] not in LIBRARIES:
            modules.append(value)
            values += [getattr(value, name, None) for name in names]


def _given(function: types.FunctionType) -> Iterator[object]:
    """Return what a function was given when it was made: its defaults and what it closes over."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None


def _names(code: types.CodeType) -> Iterator[str]:
    """Return the global names and attributes that code uses, including those in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_written(name: str, value: object) -> bool:
    """Tell whether the author of a class wrote this attribute."""
    return name not in NOT_WRITTEN and not isinstance(value, types.GetSetDescriptorType | types.MemberDescriptorType)


def _of_tensor(tensor: Tensor) -> bytes:
    if tensor.is_quantized:  # its bytes leave out the scale
        return repr(tensor.dtype).encode() + _of_tensor(tensor.dequantize())
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)
    return repr((tensor.dtype, tuple(tensor.shape))).encode() + flat.numpy().tobytes()


def _plain(text: str) -> str:
    """Remove memory addresses."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", text)
