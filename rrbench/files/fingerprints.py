"""Hashes that tell a user's own network, function or object from another with the same name."""

import functools
import hashlib
import re
import types
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

import numpy as np
import torch
from torch import Tensor, fx, nn

LENGTH = 16  # digits of a hash in a row
DEPTH = 12  # levels of nested objects that are hashed
# Packages whose functions and classes are told by their names.
LIBRARIES = frozenset(
    ["torch", "torchvision", "numpy", "builtins", "abc", "rrbench", "math", "typing", "functools", "collections"]
)


# The networks that are being hashed: one of torch.fx holds a graph, which holds the network.
_BEGUN: ContextVar[tuple[nn.Module, ...]] = ContextVar("begun", default=())


def of_network(network: nn.Module) -> str:
    """Hash a network's structure, weights and buffers."""
    begun = _BEGUN.get()
    if any(network is each for each in begun):
        return "again"
    digest = hashlib.sha256(_plain(repr(network)).encode())
    token = _BEGUN.set((*begun, network))
    try:
        for module in network.modules():
            # What `forward` does and reads besides tensors; names with `_` are PyTorch's own attributes.
            plain = {name: value for name, value in vars(module).items() if not name.startswith("_")}
            digest.update(of_object((type(module), plain)).encode())
            # The classes of these are a library's, and their code was made from a graph.
            if isinstance(module, fx.GraphModule):
                digest.update(module.code.encode())
            elif isinstance(module, torch.jit.ScriptModule) and hasattr(module, "code"):
                code, constants = module.code_with_constants
                digest.update(code.encode() + of_object(dict(constants.const_mapping)).encode())
    finally:
        _BEGUN.reset(token)
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        digest.update(name.encode() + _of_tensor(tensor))
    return digest.hexdigest()


def of_object(thing: object) -> str:
    """Hash what a function or an object does: its code, and the values that it holds or uses."""
    digest = hashlib.sha256()
    for part in _parts(thing, set(), DEPTH):
        digest.update(part)
    return digest.hexdigest()[:LENGTH]


def name_of(thing: object) -> str:
    """Name an object for a row; the name is the same in every run."""
    return str(getattr(thing, "__name__", None) or _plain(repr(thing)))


def _parts(thing: object, seen: set[int], depth: int) -> Iterator[bytes]:
    """Walk through code and values; skip what was met before or lies too deep."""
    if isinstance(thing, Tensor):
        yield _of_tensor(thing)
    elif isinstance(thing, np.ndarray):
        # A plain array: NumPy's `masked` refuses to give its bytes.
        yield repr((thing.dtype, thing.shape)).encode() + np.asarray(thing).tobytes()
    elif isinstance(thing, str | bytes | int | float | complex | bool | types.NoneType):
        yield repr(thing).encode()
    elif id(thing) in seen or not depth:
        yield b"again"
    else:
        seen.add(id(thing))
        yield type(thing).__qualname__.encode()
        for part in _inside(thing):
            yield from _parts(part, seen, depth - 1)


def _inside(thing: object) -> Iterator[object]:
    """Return the parts of an object; for a library's function or class the name is enough."""
    if isinstance(thing, nn.Module):
        yield from (of_network(thing), type(thing))
    elif isinstance(thing, types.CodeType):
        yield from (thing.co_code, thing.co_names, thing.co_consts)
    elif isinstance(thing, types.FunctionType) and _is_library(thing.__globals__.get("__name__")):
        # Named by its code: a decorator may have given it the name of a user's function, which its closure then holds.
        yield from (f"{thing.__globals__['__name__']}.{thing.__code__.co_qualname}", *_given(thing))
    elif isinstance(thing, types.FunctionType):
        yield from (thing.__code__, *_given(thing))
        names = set(_names(thing.__code__))
        for value in (thing.__globals__.get(name) for name in sorted(names)):
            if isinstance(value, types.ModuleType):
                is_own = not _is_library(value.__name__)
                yield from (getattr(value, name, None) for name in sorted(names) if is_own)
            else:
                yield value
    elif isinstance(thing, types.ModuleType):
        yield thing.__name__
    elif isinstance(thing, property):
        yield from (thing.fget, thing.fset)
    elif isinstance(thing, staticmethod | classmethod):
        yield thing.__func__
    elif isinstance(thing, types.MethodType):
        yield from (thing.__func__, thing.__self__)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, Mapping):
        yield from (part for item in thing.items() for part in item)
    elif isinstance(thing, tuple | list | set | frozenset):
        yield from sorted(thing, key=lambda part: _plain(repr(part))) if isinstance(thing, set | frozenset) else thing
    elif isinstance(thing, type):
        yield f"{thing.__module__}.{thing.__qualname__}"
        if not _is_library(thing.__module__):
            yield from (value for name, value in sorted(vars(thing).items()) if _is_code(name, value))
            yield from thing.__bases__
    else:
        yield from (type(thing), _plain(repr(thing)))
        yield from vars(thing).values() if hasattr(thing, "__dict__") else ()


def _given(function: types.FunctionType) -> Iterator[object]:
    """Return what a function was given when it was made: its defaults and what it closes over."""
    yield from (function.__defaults__, function.__kwdefaults__)
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            yield None


def _is_library(module: str | None) -> bool:
    return str(module).partition(".")[0] in LIBRARIES


def _names(code: types.CodeType) -> Iterator[str]:
    """Return the global names and attributes that code uses, including those in functions inside it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _is_code(name: str, value: object) -> bool:
    """Tell whether the author of a class wrote this attribute."""
    code = (types.FunctionType, property, staticmethod, classmethod)
    return isinstance(value, (*code, int, float, str, tuple, frozenset, list, dict, Tensor)) and name not in (
        "__module__",
        "__qualname__",
        "__doc__",
        "__firstlineno__",
        "__match_args__",
    )


def _of_tensor(tensor: Tensor) -> bytes:
    flat = tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) if tensor.numel() else torch.empty(0)
    return repr((tensor.dtype, tuple(tensor.shape))).encode() + flat.numpy().tobytes()


def _plain(text: str) -> str:
    """Remove memory addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", text)
