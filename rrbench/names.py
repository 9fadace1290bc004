"""The text form of choices and budgets: `rr(tau=0.5)`, `pgd100x10`, `linf:8/255`. Imports no torch.

A choice is `name` or `name(positional,key=value,...)`, at most one positional (the first setting).
A name that ends in digits is short for steps and restarts: `pgd100x10` is `pgd(steps=100,restarts=10)`.
"""

import dataclasses
import difflib
import math
import re
import types
import typing
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from types import MappingProxyType

from rrbench.errors import UseError, brief
from rrbench.numbers import read_fraction, read_whole

NORMS = ("linf", "l2")
Value = str | int | float | bool | Fraction | None | tuple[float | Fraction, ...]


@dataclass(frozen=True)
class Choice:
    """A plugin by name with all its settings; `label` is its shortest unambiguous text."""

    name: str
    settings: tuple[tuple[str, Value], ...] = ()
    label: str = dataclasses.field(default="", compare=False)

    def __str__(self) -> str:
        return self.label or self.name


@dataclass(frozen=True)
class Call:
    """A parsed text; its name is not looked up yet."""

    name: str
    positional: str | None
    keywords: tuple[tuple[str, str], ...]


def split_list(text: str, at: str = ",") -> list[str]:
    """Split at commas, or at another character, outside brackets; drop empty parts."""
    parts, depth, part = [], 0, ""
    for character in text:
        depth += (character == "(") - (character == ")")
        if depth < 0:
            raise UseError(f"unbalanced bracket in {text!r}")
        if character == at and depth == 0:
            parts.append(part)
            part = ""
        else:
            part += character
    if depth:
        raise UseError(f"unbalanced bracket in {text!r}")
    return [stripped for piece in [*parts, part] if (stripped := piece.strip())]


@lru_cache(maxsize=4096)  # tables ask for the names in their rows again and again
def parse(text: str) -> Call:
    """Parse `name` or `name(positional,key=value,...)`."""
    text = text.strip()
    name, bracket, rest = text.partition("(")
    if bracket and not rest.endswith(")"):
        raise UseError(f"cannot read {text!r}: expected name(setting=value,...)")
    positional, keywords = None, {}
    for index, argument in enumerate(split_list(rest[:-1]) if bracket else []):
        key, equals, value = argument.partition("=")
        is_named = equals and "(" not in key  # in transfer(pgd-at+rr(form=head)) the = belongs to an inner setting
        if not is_named and index == 0:
            positional = argument
        elif not is_named:
            raise UseError(f"cannot read {text!r}: {argument!r} needs a name, as in key=value")
        elif (key := key.strip()) in keywords:
            raise UseError(f"{text!r} gives {key!r} twice")
        else:
            keywords[key] = value.strip()
    if not name.strip():
        raise UseError(f"cannot read {text!r}: no name")
    return Call(name.strip(), positional, tuple(keywords.items()))


def unknown(kind: str, name: str, known: Iterable[str]) -> UseError:
    """Return an error that says that `name` is unknown, and which known names are near."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5) or known[:12]
    return UseError(f"unknown {kind} {brief(name)}" + (f"; near: {', '.join(near)}" if near else ""))


@cache
def settings_of(plugin: type) -> Mapping[str, tuple[object, object]]:
    """Return {setting: (type, default)} of a plugin class; a setting without default has `dataclasses.MISSING`.

    The order is the constructor's: keyword-only settings come last. A plan needs them often, so they are cached and
    read-only.
    """
    if not dataclasses.is_dataclass(plugin):
        return MappingProxyType({})
    hints = typing.get_type_hints(plugin)
    ordered = sorted((item for item in dataclasses.fields(plugin) if item.init), key=lambda item: item.kw_only is True)
    return MappingProxyType({item.name: (hints[item.name], item.default) for item in ordered})


def added_to(plugin: type) -> frozenset[str]:
    """Return the settings that a framework or an attack did not always have."""
    found = getattr(plugin, "added", None)
    return found if isinstance(found, frozenset) else frozenset()


def is_of(plugin: type, values: Mapping[str, object]) -> bool:
    """Tell whether stored values are of this version of a plugin: they may lack only settings that were added."""
    return (settings_of(plugin).keys() ^ values.keys()) <= added_to(plugin)


def convert(value: object, hint: object, where: str) -> Value:
    """Convert a text or a TOML value to a setting's type."""
    try:
        return _convert(value, hint)
    except (ValueError, TypeError, ArithmeticError):
        raise UseError(f"{where} cannot be {brief(value)}; expected {_describe(hint)}") from None


def _convert(value: object, hint: object) -> Value:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if type(None) in arguments and (value is None or value == "none"):
            return None
        return _convert(value, next(option for option in arguments if option is not type(None)))
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError
        return typing.cast(Value, value)
    if origin is tuple:
        items = value.split(":") if isinstance(value, str) else value if isinstance(value, list | tuple) else [value]
        return typing.cast(Value, tuple(_convert(item, arguments[0]) for item in items))
    if hint is bool:
        if str(value).lower() not in ("true", "false"):
            raise ValueError
        return str(value).lower() == "true"
    if isinstance(value, bool):
        raise ValueError
    if hint is str:
        return str(value)
    if hint is float:
        is_ratio = isinstance(value, str) and "/" in value
        number = float(read_fraction(typing.cast(str, value)) if is_ratio else typing.cast(float, value))
        if not math.isfinite(number):
            raise ValueError
        return number
    # A float would be cut to a whole number, or become a fraction that no user wrote.
    if hint is int and isinstance(value, int | str):
        return read_whole(value)
    if hint is Fraction and isinstance(value, int | str | Fraction):
        return read_fraction(value)
    raise TypeError


_IN_WORDS: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    Fraction: "a fraction such as 8/255",
    type(None): "none",
}


def _describe(hint: object) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return "one of " + ", ".join(map(str, arguments))
    if origin in (types.UnionType, typing.Union):
        return " or ".join(map(_describe, arguments))
    if origin is tuple:
        return "numbers joined by ':'"
    return _IN_WORDS.get(hint, str(hint))


def show(value: object) -> str:
    """Print a setting's value so that `convert` reads it back."""
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, tuple | list):  # JSON has lists
        return ":".join(map(show, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def short_form(name: str, known: Collection[str]) -> tuple[str, str, str | None] | None:
    """Read `pgd100x10` as (pgd, 100, 10) and `pgd100` as (pgd, 100, None); None unless `pgd` is known."""
    short = re.fullmatch(r"(.*?[^\d])(\d+)(?:x(\d+))?", name)
    return (short[1], short[2], short[3]) if short and name not in known and short[1] in known else None


def long_form(kind: str, call: Call, table: Mapping[str, type]) -> Call:
    """Spell out a short name: `pgd100x10` becomes `pgd(steps=100,restarts=10)`."""
    short = short_form(call.name, table)
    if short is None:
        return call
    name, steps, restarts = short
    numbers = {"steps": steps, "restarts": restarts or "1"}
    given = dict(call.keywords)
    for key in numbers:
        if key not in settings_of(table[name]):
            raise UseError(f"{kind} {name!r} has no setting {key!r}, so {call.name!r} means nothing")
    if "steps" in given or ("restarts" in given and restarts):
        raise UseError(f"{kind} {call.name!r} is given its steps or restarts twice")
    return Call(name, call.positional, tuple({**numbers, **given}.items()))


def given_by(kind: str, call: Call, table: Mapping[str, type]) -> dict[str, str]:
    """Return the settings that a call gives, by name: one without a name is the first."""
    known, given = settings_of(table[call.name]), dict(call.keywords)
    if call.positional is not None:
        if not known:
            raise UseError(f"{kind} {call.name!r} has no settings")
        first = next(iter(known))
        if first in given:
            raise UseError(f"{kind} {call.name!r} is given {first!r} twice")
        given[first] = call.positional
    return given


def resolve(kind: str, call: Call, table: Mapping[str, type], defaults: Mapping[str, object]) -> Choice:
    """Look up a call and fill in every setting; later ones win: the class's default, `defaults`, the call.

    An added setting is left out where it has the class's default: so has every choice from before it was added.
    """
    name = call.name
    if name not in table:
        raise unknown(kind, name, table)
    known, given = settings_of(table[name]), given_by(kind, call, table)
    for key in [*given, *defaults]:
        if key not in known:
            raise unknown(f"setting of {kind} {name!r}", key, known)
    values: dict[str, Value] = {}
    base: dict[str, Value] = {}
    for key, (hint, default) in known.items():
        where = f"{kind} {name!r}: setting {key!r}"
        standard = defaults.get(key, default)
        if standard is not dataclasses.MISSING:
            base[key] = convert(standard, hint, where)
        if key in given:
            values[key] = convert(given[key], hint, where)
        elif key in base:
            values[key] = base[key]
        else:
            raise UseError(f"{kind} {name!r} needs {key!r}, as in {name}({key}=...)")
    added = added_to(table[name])
    kept = [(key, value) for key, value in values.items() if key not in added or value != known[key][1]]
    return Choice(name, tuple(kept), _label(name, values, base))


def spelled(kind: str, call: Call, table: Mapping[str, type], values: Mapping[str, object]) -> str:
    """Return the canonical form of a call with the settings that it names; `values` has all others.

    Defaults do not matter here: a user's file may have changed them, so that any setting may have to be named.
    """
    choice, known = resolve(kind, call, table, values), settings_of(table[call.name])
    every: dict[str, object] = {key: default for key, (_, default) in known.items()} | dict(choice.settings)
    first = [] if call.positional is None else [next(iter(known))]
    base = every | dict.fromkeys([*first, *dict(call.keywords)], dataclasses.MISSING)  # unlike any value
    for key in first:
        if known[key][1] is dataclasses.MISSING:  # so it may be written without its name
            del base[key]
    return _label(call.name, every, base)


def _label(name: str, values: Mapping[str, object], base: Mapping[str, object]) -> str:
    """Write the canonical form: no spaces, only settings that differ from their default, sorted."""
    differ = {key: value for key, value in values.items() if key not in base or value != base[key]}
    if "steps" in values and "restarts" in values and differ.keys() & {"steps", "restarts"}:
        name += str(values["steps"]) + (f"x{values['restarts']}" if values["restarts"] != 1 else "")
        differ = {key: value for key, value in differ.items() if key not in ("steps", "restarts")}
    first = next(iter(values), None)
    # A setting without a default is written without its name: adaptive(ce+rcon), but rr(score=con).
    is_positional = first in differ and first not in base and isinstance(differ[first], str)
    arguments = [show(differ.pop(str(first)))] if is_positional else []
    arguments += [f"{key}={show(value)}" for key, value in sorted(differ.items())]
    return f"{name}({','.join(arguments)})" if arguments else name


def parse_budget(text: str, shape: Sequence[int] | None = None) -> tuple[str, Fraction]:
    """Parse `linf:8/255` into a norm and an exact radius; refuse a radius that would hold every image of a `shape`."""
    if not isinstance(text, str):
        raise UseError(f"a budget is text such as linf:8/255, not {text!r}")
    norm, colon, radius = text.strip().partition(":")
    if norm not in NORMS or not colon:
        raise UseError(f"cannot read budget {text!r}; write a norm and a radius such as linf:8/255 or l2:128/255")
    try:
        exact = read_fraction(radius)
    except ValueError:
        raise UseError(f"cannot read the radius of budget {brief(text)}; write a fraction such as 8/255") from None
    if exact < 0:
        raise UseError(f"budget {text!r} has a negative radius")
    if norm == "linf" and exact > 1:
        raise UseError(f"budget {text!r} exceeds the range [0, 1] of images; {norm}:{radius.strip()}/255 perhaps?")
    if norm == "l2" and shape is not None and exact**2 > math.prod(shape):
        most = f"{math.sqrt(math.prod(shape)):.3g}, the largest l2 distance of two images"
        raise UseError(f"budget {text!r} exceeds {most}; {norm}:{radius.strip()}/255 perhaps?")
    return norm, exact


def radius_text(radius: Fraction) -> str:
    """Print a radius; 4/85 is printed as 12/255, as people write it."""
    return f"{radius * 255}/255" if radius.denominator in (17, 51, 85) else str(radius)
