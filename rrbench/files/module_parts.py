"""What decides a network's answers besides its public attributes: hidden attributes and hooks."""

import dis
import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from rrbench.files.attributes import attributes, is_library

# What a module that does nothing holds, and what torch.compile puts into one from outside.
TABLES = frozenset({*vars(nn.Module()), "_torchdynamo_orig_callable"})
# Hooks that decide what a network answers, or the gradients that an attack follows, and what PyTorch notes about them.
HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
NOTES = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")


def hidden(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Return the names and values of a module that `vars` does not show under a public name, but for PyTorch's own."""
    if isinstance(module, torch.jit.ScriptModule):
        yield from _of_script(module)
        return
    kind: Any = type(module)
    kept = TABLES | _kept_by_libraries(kind)
    for name, value in attributes(module):
        is_shown = name in vars(module) and not name.startswith("_")
        if name.startswith("__") and name.endswith("__"):  # of Python or PyTorch, such as the mark of what was scripted
            continue
        # A ScriptObject holds the weights of a quantized layer.
        if not is_shown and (name not in kept or isinstance(value, torch.ScriptObject)):
            yield name, value


@functools.lru_cache(maxsize=1024)
def _kept_by_libraries(kind: Any) -> frozenset[str]:
    """Return the attributes that libraries' code sets in its own objects: made of settings or weights, or a cache."""
    written = [value for base in kind.__mro__ if is_library(base.__module__) for value in vars(base).values()]
    methods = [value.fset if isinstance(value, property) else value for value in written]
    functions = [inspect.unwrap(method) for method in methods if isinstance(method, types.FunctionType)]
    steps = (step for function in functions for step in dis.get_instructions(function))
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR")


def _of_script(module: torch.jit.ScriptModule) -> Iterator[tuple[str, object]]:
    """Return the values that a network of torch.jit reads besides weights and buffers: Python does not hold them."""
    held = vars(module).get("_c")
    if held is not None:
        graphs = [held._get_method(name).graph for name in held._method_names()]
        names = {node.s("name") for graph in graphs for node in graph.findAllNodes("prim::GetAttr")}
        tensors = {name for name, _ in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]}
        for name in sorted(names - tensors):
            if held.hasattr(name) and not isinstance(value := held.getattr(name), torch._C.ScriptModule):
                yield name, value


def hooks(module: nn.Module) -> Iterator[tuple[str, object]]:
    """Return a module's hooks in their order, without their numbers, which count all hooks of the process."""
    for table in HOOKS:
        for number, hook in (vars(module).get(table) or {}).items():
            noted = [note for note in NOTES if note.startswith(table) and number in vars(module).get(note, {})]
            yield f"{table} {noted}", hook


def made_by_hooks(module: nn.Module) -> set[str]:
    """Return the tensors that PyTorch's hooks make anew of weights and buffers before each answer."""
    made = set()
    for hook in (vars(module).get("_forward_pre_hooks") or {}).values():
        if isinstance(hook, SpectralNorm | WeightNorm):
            made.add(hook.name)
        elif isinstance(hook, BasePruningMethod):
            made.add(hook._tensor_name)
    return made
