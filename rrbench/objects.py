"""Reads the words and objects of a request from Python: rejectors, attacks, networks and data, one or several of each.

Objects become choices. They are held until the call ends (`plugins/own.py`).
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rrbench.datasets.given import OwnData, own_data
from rrbench.errors import UseError
from rrbench.names import Call, Choice, parse, resolve, split_list
from rrbench.networks.wrapped import OwnNetwork, hash_network, wrap
from rrbench.planning.plan import Named
from rrbench.plugins.contract import BASES
from rrbench.plugins.own import hold
from rrbench.plugins.registry import build, table

Names = str | Sequence[str] | None
Things = Any  # names, objects, or a list or a dict of these; a dict gives names
OWN_DATA = "own data"  # in rows, if the user gives no name


def read_names(names: Names) -> list[str] | None:
    """Return names as texts; refuse an empty list."""
    if names is None:
        return None
    listed = split_list(names) if isinstance(names, str) else [name for text in names for name in split_list(text)]
    if not listed:
        raise UseError(f"an empty list of names: {names!r}")
    return listed


def read_things(given: Things, choose: Callable[[object, str | None], Choice]) -> list[Named] | None:
    """Return names as texts and objects as choices."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        pairs: list[tuple[str | None, object]] = [(_own_name(name), each) for name, each in given.items()]
    elif isinstance(given, list | tuple | set | frozenset):
        pairs = [(None, each) for each in given]
    else:
        pairs = [(None, given)]
    found: list[Named] = []
    for name, each in pairs:
        if isinstance(each, str):
            if name not in (None, each):
                raise UseError(f"{each!r} has its own name: leave out {name!r}, and give it in a list")
            found += split_list(each)
        else:
            found.append(each if isinstance(each, Choice) else choose(each, name))
    if not found:
        raise UseError(f"an empty list of names: {given!r}")
    return found


def _own_name(name: object) -> str:
    """Refuse a name that a line of a table cannot show."""
    text = str(name)
    if not text.strip() or not text.isprintable():
        raise UseError(f"{text!r} is no name: write one line of letters that can be seen")
    return text


def read_networks(given: Things) -> list[Named] | None:
    """Return networks by name as texts, those with weights as choices."""
    return read_things(_named_models(given), _choose_network)


def _named_models(given: Things) -> Things:
    """Give networks without a name that of their class; several of one class are numbered."""
    if isinstance(given, nn.Module):
        given = [given]
    if not isinstance(given, list | tuple) or not any(isinstance(each, nn.Module) for each in given):
        return given
    classes = Counter(type(each).__name__ for each in given)
    counts: Counter[str] = Counter()
    named: dict[str, object] = {}
    for each in given:
        name = type(each).__name__
        counts[name] += 1
        named[each if isinstance(each, str) else name if classes[name] == 1 else f"{name} {counts[name]}"] = each
    return named


def _choose_network(given: Any, name: str | None) -> Choice:
    """Hold a user's network, and return its choice."""
    network = wrap(given)
    sha256 = hash_network(network)
    source = OwnNetwork(network, sha256)
    return hold("network", name or source.architecture, sha256, lambda: source)


def device_of(given: Things) -> torch.device | None:
    """Return the device of the user's networks: they are measured where they are. None if there is none."""
    models = (
        list(given.values()) if isinstance(given, Mapping) else given if isinstance(given, list | tuple) else [given]
    )
    parameters = [next(each.parameters(), None) for each in models if isinstance(each, nn.Module)]
    devices = {torch.device("cpu") if each is None else each.device for each in parameters}
    if len(devices) > 1:
        raise UseError(f"the models are on several devices ({', '.join(sorted(map(str, devices)))}): move them to one")
    return next(iter(devices), None)


def read_datasets(given: Things, *more: object) -> list[Named] | None:
    """Return the data sets: names as texts, inputs as choices; `more` are their fit_data and calibration_data."""
    if isinstance(given, Choice):
        return [given]
    is_named = given is None or isinstance(given, str)
    is_named = is_named or (isinstance(given, list | tuple) and all(isinstance(each, str) for each in given))
    if is_named:
        if any(each is not None for each in more):
            raise UseError("fit_data and calibration_data go with inputs that are given; a named data set has its own")
        return list(read_names(given) or ()) or None
    named = given if isinstance(given, Mapping) else {OWN_DATA: given}
    found: list[Named] = []
    for name, inputs in named.items():
        found.append(_choose_data(_own_name(name), own_data(inputs, *more)))
    return found


def _choose_data(name: str, source: OwnData) -> Choice:
    return hold("dataset", name, source.content(), lambda: source)


def networks_of(models: Sequence[str], weights: Sequence[str], names: str | None) -> list[Choice]:
    """Return the networks that a command names as FILE.py:FUNCTION, each with its weights."""
    places = [_place(text) for text in models]
    if len(places) == 1 and len(weights) > 1:
        places = places * len(weights)
    if weights and len(weights) != len(places):
        raise UseError(f"{len(places)} models and {len(weights)} files of weights: give one for each, or none")
    files: Sequence[str | None] = weights or [None] * len(places)
    named = split_list(names) if names is not None else _short_names([place[1] for place in places], files)
    if len(named) != len(places) or len(set(named)) < len(named):
        raise UseError(f"{len(places)} models need as many different names, not {', '.join(named)}")
    return [
        _file_choice("network", "file", path=path, function=function, weights=file, name=name)
        for (path, function), file, name in zip(places, files, named, strict=True)
    ]


def _place(text: str) -> tuple[str, str]:
    path, colon, function = text.rpartition(":")
    if not colon or not path.endswith(".py") or not function:
        raise UseError(f"{text!r} names no function of a file; write FILE.py:FUNCTION, such as my_model.py:build")
    return path, function


def _short_names(functions: Sequence[str], weights: Sequence[str | None]) -> list[str]:
    """Name models by their weights or functions; those that would share a name are numbered."""
    plain = [Path(file).stem if file else function for function, file in zip(functions, weights, strict=True)]
    return [
        name if plain.count(name) == 1 else f"{name} {1 + plain[:index].count(name)}"
        for index, name in enumerate(plain)
    ]


def find_data(text: str) -> str | Choice:
    """Return the data set that a command names: a file or a folder by its path, any other by its name."""
    if text.endswith(".npz"):
        return _file_choice("dataset", "npz", path=text)
    if Path(text).is_dir() and text not in table("dataset"):
        return _file_choice("dataset", "folder", path=text)
    if parse(text).name not in table("dataset") and ("/" in text or "." in text):
        raise UseError(f"there is no data set {text}: give an .npz file, a folder of pictures, or a name")
    return text


def _file_choice(kind: str, plugin: str, **settings: str | None) -> Choice:
    """Return the choice of a plugin that reads a file; a path may hold signs that a name cannot."""
    given = tuple((key, value) for key, value in settings.items() if value is not None)
    choice = resolve(kind, Call(plugin, None, given), table(kind).classes, {})
    build(BASES[kind], choice)
    return choice
