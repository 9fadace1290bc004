"""Makes records, which are dataclasses or named tuples, of parsed JSON and CSV: every field must have its type.

Strict, since rrbench writes these files. What people type is read by `rrbench.names.convert`. Imports no torch.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from rrbench.errors import brief
from rrbench.numbers import read_whole

Record = TypeVar("Record")


class _Field(NamedTuple):
    kinds: tuple[Any, ...]  # the types that it may hold
    has_default: bool


@cache
def _fields(record: Callable[..., object]) -> Mapping[str, _Field]:
    """Return the fields of a record, computed once for all records of a type."""
    hints, parameters = typing.get_type_hints(record), inspect.signature(record).parameters
    return {name: _Field(_kinds(hints[name]), each.default is not each.empty) for name, each in parameters.items()}


def _kinds(hint: object) -> tuple[Any, ...]:
    options = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    return tuple(typing.get_origin(option) or option for option in options)


def from_json(record: Callable[..., Record], values: object, what: str) -> Record:
    """Make a record of a JSON object; if it does not fit, a TypeError says where. `what` is its name there."""
    fields = _fields(record)
    if not isinstance(values, Mapping):
        raise TypeError(f"{what} is {brief(values)}")
    for name in values:
        if name not in fields:
            raise TypeError(f"{what} has an unknown field {brief(name)}")
    lacking = [name for name, field in fields.items() if name not in values and not field.has_default]
    if lacking:
        raise TypeError(f"{what} lacks {', '.join(lacking)}")
    return record(**{name: _checked(value, fields[name].kinds, name, what) for name, value in values.items()})


def _checked(value: object, kinds: tuple[Any, ...], name: str, what: str) -> object:
    if isinstance(value, list) and tuple in kinds:  # JSON has no tuples
        return tuple(value)
    is_whole = type(value) is int and float in kinds  # JSON writes a whole number without a point
    if not (isinstance(value, kinds) or is_whole) or (isinstance(value, bool) and bool not in kinds):
        raise TypeError(f"{name} of {what} is {brief(value)}")
    return value


def from_texts(record: Callable[..., Record], texts: Mapping[str, str | None], what: str) -> Record:
    """Make a record of a line of a CSV, in which an empty text is None; a wrong or missing text is a ValueError."""
    return record(**{name: _read(texts.get(name), field.kinds, what) for name, field in _fields(record).items()})


def _read(text: str | None, kinds: tuple[Any, ...], what: str) -> object:
    if text is None:
        raise ValueError(f"{what} is cut off")
    if text == "" and type(None) in kinds:
        return None
    return read_whole(text) if kinds[0] is int else kinds[0](text)
