"""Checks calls of the Python interface: a wrong argument gives one line that names it and shows a right one.

An argument's annotation says which types are right. Imports no torch.
"""

import inspect
import numbers
import operator
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from rrbench.errors import UseError, brief
from rrbench.names import unknown

# What a right argument looks like. Rejectors, attacks, data and others are checked where they are read.
EXAMPLES = {
    "address": '"auto"',
    "budget": '"linf:8/255"',
    "budgets": '"linf:8/255,l2:128/255"',
    "config": '"settings.toml"',
    "data_dir": '"data"',
    "dataset": '"digits"',
    "every": "10",
    "folders": '["runs"]',
    "frameworks": '"pgd-at,trades"',
    "keep": '"images,features"',
    "limit": "100",
    "name": '"mine"',
    "network": '"small-cnn"',
    "out": '"runs"',
    "paper": '"table2"',
    "preset": '"quick"',
    "progress": "False",
    "recipe": '{"epochs": 3}',
    "report": "rrbench.progress.reporter()",
    "results": '"runs"',
    "retrain": "True",
    "seed": "0",
    "seeds": "(0, 1, 2)",
    "stop_after": '"25m"',
    "trained_as": '"pgd-at"',
    "zoo": "True",
}

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def checked(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Let a function refuse wrong arguments before it begins."""
    signature = inspect.signature(function)

    @wraps(function)
    def called(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
        bound = check_call(function.__name__, signature, given, named)
        return function(*bound.args, **bound.kwargs)

    return called


def check_call(
    function: str, signature: inspect.Signature, given: Sequence[object], named: Mapping[str, object]
) -> inspect.BoundArguments:
    """Refuse unknown or missing arguments, and those whose type is wrong; return the arguments as plain objects."""
    for name in named:
        if name not in signature.parameters:
            raise unknown("option", name, signature.parameters)
    try:
        bound = signature.bind(*given, **named)
    except TypeError as error:
        raise UseError(f"rrbench.{function}: {error}") from None
    for name in bound.arguments.keys() & EXAMPLES.keys():
        value = bound.arguments[name]
        bound.arguments[name] = _plain(value)
        if not _fits(bound.arguments[name], signature.parameters[name].annotation):
            raise UseError(f"{name}={brief(value)} is of a wrong type: write it as in {name}={EXAMPLES[name]}")
    return bound


def _plain(value: object) -> object:
    """Turn NumPy's whole numbers into Python's, which keys and files know, and what is read only once into a tuple."""
    if isinstance(value, Iterator) or type(value) in (list, tuple):
        return tuple(map(_plain, typing.cast(Iterable[object], value)))
    return operator.index(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value


def _fits(value: object, hint: Any) -> bool:
    origin, arguments = typing.get_origin(hint) or hint, typing.get_args(hint)
    if hint is Any:
        return True
    if origin in (types.UnionType, typing.Union):
        return any(_fits(value, option) for option in arguments)
    if origin is Sequence:  # a set serves as well; a text is one word, not many letters
        is_several = isinstance(value, Collection) and not isinstance(value, str | bytes | Mapping)
        return is_several and all(_fits(item, arguments[0]) for item in typing.cast(Collection[object], value))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, origin)
