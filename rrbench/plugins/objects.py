"""Turns the rejectors and attacks that users give as objects into choices: of an installed plugin, or of one's own."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from torch import Tensor, nn

from rrbench.errors import UseError
from rrbench.files.fingerprints import name_of, of_object
from rrbench.names import Call, Choice, Value, resolve, settings_of
from rrbench.plugins.config import Config
from rrbench.plugins.contract import check_class
from rrbench.plugins.own import hold
from rrbench.plugins.registry import table
from rrbench.protocols import Attack, Outputs, Rejector


@dataclasses.dataclass
class Function(Rejector):
    """A rejector made of a plain function from Outputs to certainty."""

    needs = frozenset({"features"})  # a function cannot say which outputs it reads

    function: Callable[[Outputs], Tensor]

    def certainty(self, outputs: Outputs) -> Tensor:
        """Call the function."""
        return self.function(outputs)

    def __repr__(self) -> str:
        return getattr(self.function, "__name__", "function")


def choose_rejector(given: object, config: Config, name: str | None = None, *, refit: bool) -> Choice:
    """Return the choice of a Rejector or a function; a fitted Rejector keeps its fit unless `refit`."""
    if isinstance(given, type):
        raise UseError(
            f"a rejector is a name, a Rejector or a function, not the class {given.__name__}: make one of it"
        )
    if isinstance(given, Rejector):
        _check_class(given)
        if not hasattr(given, "fitted"):
            raise UseError(f"{type(given).__name__}.__init__ does not call super().__init__(): write it there first")
        is_fitted = bool(given.fitted) and not refit
        fit = dict(given.fitted) if is_fitted else {}

        def make() -> Rejector:
            own = copy.copy(given)
            own.fitted = dict(fit)
            return own

        known = None if is_fitted or name else _installed("rejector", given, config)
        bare = make()
        return known or hold("rejector", name or _name(given), of_object(bare), make, _settings(given))
    if callable(given):
        function = Function(given)
        return hold("rejector", name or repr(function), of_object(given), lambda: function, _settings(function))
    raise UseError(f"a rejector is a name, a Rejector or a function, not {type(given).__name__}")


def choose_attack(given: object, config: Config, name: str | None = None) -> Choice:
    """Return the choice of an Attack."""
    if not isinstance(given, Attack):
        raise UseError(f"an attack is a name or an Attack, not {type(given).__name__}")
    _check_class(given)
    known = None if name else _installed("attack", given, config)
    return known or hold("attack", name or _name(given), of_object(given), lambda: _copied(given), _settings(given))


def _copied(attack: Attack) -> Attack:
    """Return a copy to run: what it keeps in itself does not go to another cell. What cannot be copied is shared."""
    held = getattr(attack, "__dict__", {})
    if any(map(_has_hooks, held.values())):  # a hook's function may know the attack, and would still write into it
        return attack
    own = copy.copy(attack)
    # One copy of all: what two attributes share, such as weights and their optimiser, the copies must share.
    memo = {id(attack): own} | {id(value): value for value in held.values() if not _can_be_copied(value)}
    with suppress(Exception):  # something deep inside cannot be copied: everything is shared
        own.__dict__.update(copy.deepcopy(held, memo))
    return own


def _has_hooks(value: object) -> bool:
    """Tell whether a model, or one of several, has hooks."""
    parts = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else [value]
    modules = [each for part in parts if isinstance(part, nn.Module) for each in part.modules()]
    return any(each._forward_hooks or each._forward_pre_hooks or each._backward_hooks for each in modules)


def _can_be_copied(value: object) -> bool:
    try:
        copy.deepcopy(value)
    except Exception:  # a lock or a module of Python
        return False
    return True


def _installed(kind: str, plugin: Rejector | Attack, config: Config) -> Choice | None:
    """Return the choice of an installed plugin with the settings of this object; None if its class is not installed."""
    classes = table(kind).classes
    name = next((name for name, found in classes.items() if found is type(plugin)), None)
    if name is None:
        return None
    values = {key: getattr(plugin, key) for key in settings_of(type(plugin))}
    # The text names only what differs from the preset: it must say the same to who reads the row and to `verify`.
    choice = resolve(kind, Call(name, None, tuple(values.items())), classes, config.settings(kind, name, ""))
    return choice if dict(choice.settings) == values else None


def _check_class(plugin: Rejector | Attack) -> None:
    """Refuse a plugin that would also be refused as an installed plugin."""
    try:
        check_class(type(plugin))
    except TypeError as error:
        raise UseError(str(error)) from None


def _name(plugin: Rejector | Attack) -> str:
    """Name a plugin alike in every run: what Python itself prints for an object holds its address."""
    return type(plugin).__name__ if type(plugin).__repr__ is object.__repr__ else name_of(plugin)


def _settings(plugin: Rejector | Attack) -> Mapping[str, Value]:
    """Return a plugin's settings as values of a choice; what a choice cannot hold becomes text."""
    return {key: _plain(getattr(plugin, key)) for key in settings_of(type(plugin))}


def _plain(value: Any) -> Value:
    if isinstance(value, tuple | list):
        return tuple(_plain(item) for item in value)  # type: ignore[misc] # of settings that only rows print
    return value if isinstance(value, str | int | float | None) else name_of(value)
