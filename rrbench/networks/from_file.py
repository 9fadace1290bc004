"""A user's network from a Python file: a function of it makes the module, another file may hold the weights."""

import importlib.util
import sys
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rrbench.errors import UseError, no_exit, reason
from rrbench.files.checkpoints import Checkpoint, load_weights, read_checkpoint
from rrbench.files.disk import Stamp, stamp
from rrbench.networks.wrapped import OwnNetwork, hash_network, wrap
from rrbench.protocols import DataInfo, NetworkSource, Rejector

PARALLEL = "module."  # torch.nn.DataParallel puts it before each name


@dataclass(frozen=True)
class FromFile(NetworkSource):
    """Calls a function of a Python file, without arguments, and loads the weights."""

    has_weights = True
    about = "a trained network of yours, as in file(my_model.py,function=build,weights=w.safetensors)"

    path: str
    function: str = "build"
    weights: str | None = None  # None: the function loads them itself
    name: str = ""  # in rows; empty: all this

    def build(self, info: DataInfo, rejector: Rejector) -> nn.Module:
        """Return the network; it is made once for all uses."""
        return self._made.network

    def content(self) -> str:
        """Hash code and weights."""
        return self._made.sha256

    @property
    def architecture(self) -> str:
        """The name of the module's class."""
        return self._made.architecture

    @property
    def _made(self) -> OwnNetwork:
        stamps = stamp(self.path), stamp(self.weights) if self.weights is not None else None
        return _make(self.path, self.function, self.weights, stamps)


@lru_cache(maxsize=8)
def _make(path: str, function: str, weights: str | None, stamps: tuple[Stamp, Stamp | None]) -> OwnNetwork:
    """Make the network once for each state of its files, which `stamps` tell."""
    try:
        # The same weights in every run, also if the function draws some.
        with no_exit(path, UseError), torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            model = _call(_module(Path(path)), path, function)
    except UseError:
        raise
    except Exception as error:  # a user's file may fail in any way
        raise UseError(f"{path}:{function} fails: {reason(error)}") from None
    if not isinstance(model, nn.Module):
        raise UseError(f"{path}:{function} gives a {type(model).__name__} instead of a torch.nn.Module")
    if weights is not None:
        load_weights(model, _plain(read_checkpoint(Path(weights))))
    network = wrap(model.eval())
    return OwnNetwork(network, hash_network(network))


def _module(path: Path) -> Any:
    """Run a Python file; modules beside it can be imported."""
    # The prefix keeps it apart from libraries, whose code is not hashed.
    spec = importlib.util.spec_from_file_location(f"own_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UseError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    folder, before = path.resolve().parent, set(sys.modules)
    sys.modules[module.__name__] = module
    sys.path.insert(0, str(folder))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.pop(0)
        # The next file may lie beside another module of the same name, or this one may have been edited.
        for name in set(sys.modules) - before:
            if Path(getattr(sys.modules[name], "__file__", None) or "/").resolve().parent == folder:
                del sys.modules[name]
    return module


def _call(module: Any, path: str, function: str) -> object:
    found = getattr(module, function, None)
    if not callable(found):
        known = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
        own = [name for name in known if getattr(vars(module)[name], "__module__", "") == module.__name__]
        raise UseError(f"{path} has no function {function!r}" + (f"; it has {', '.join(own)}" if own else ""))
    return found if isinstance(found, nn.Module) else found()


def _plain(checkpoint: Checkpoint) -> Checkpoint:
    """Remove the word that DataParallel puts before every name."""
    names = list(checkpoint.tensors)
    if not names or not all(name.startswith(PARALLEL) for name in names):
        return checkpoint
    return replace(checkpoint, tensors={name[len(PARALLEL) :]: tensor for name, tensor in checkpoint.tensors.items()})
