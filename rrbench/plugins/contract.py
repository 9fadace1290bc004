"""Checks that a class can be a plugin, as far as the class alone shows; runs when its table is loaded."""

import inspect
from collections.abc import Mapping
from dataclasses import MISSING
from typing import get_args

from rrbench.errors import no_exit, reason
from rrbench.names import settings_of
from rrbench.protocols import Attack, DataSource, Framework, NetworkSource, Norm, Rejector

BASES: dict[str, type] = {
    "rejector": Rejector,
    "attack": Attack,
    "framework": Framework,
    "dataset": DataSource,
    "network": NetworkSource,
}
NEEDS = {"features"}
RENAMED: dict[type, str] = {Rejector: "inherits_training_of", DataSource: "uses_networks_of"}  # both were trains_as
METHODS = {"build_head", "certainty", "fit", "oracle_certainty", "training_loss"}


def check_entry(kind: str, name: object, value: object) -> None:
    """Refuse a wrong entry of a table; an alias is a text, and is checked when it is used."""
    if not isinstance(name, str) or not name:
        raise TypeError(f"the table's key {name!r} is no name")
    if isinstance(value, str):
        return
    if not (isinstance(value, type) and issubclass(value, BASES[kind])):
        raise TypeError(f"{name!r} is {value!r}, not a subclass of {BASES[kind].__name__}")
    undefined = getattr(value, "__abstractmethods__", ())
    if undefined:
        raise TypeError(f"{name!r} does not define {', '.join(sorted(undefined))}")
    check_class(value)


def check_class(plugin: type) -> None:
    """Refuse a class that would be misunderstood; the error names the class and what to write."""
    name = plugin.__name__
    for base in plugin.__mro__:
        own = [key for key, hint in inspect.get_annotations(base).items() if "ClassVar" not in str(hint)]
        is_plugin = issubclass(base, tuple(BASES.values())) and base not in BASES.values()
        if own and is_plugin and "__dataclass_params__" not in vars(base):
            raise TypeError(
                f"{base.__name__} has settings ({', '.join(own)}) and is no dataclass: write @dataclass above"
            )
    for base, word in RENAMED.items():
        if issubclass(plugin, base) and hasattr(plugin, "trains_as"):
            raise TypeError(f"{name}.trains_as has another name now: write {word} instead")
    settings = settings_of(plugin)
    for base in (Rejector, Attack, Framework):
        for fact in _facts(base) & settings.keys() if issubclass(plugin, base) else ():
            raise TypeError(f"{name}.{fact} has a type, which makes it a setting: write {fact} = ... without one")
    if issubclass(plugin, Rejector):
        _check_rejector(plugin, set(settings))
    if issubclass(plugin, Attack):
        _check_attack(plugin)
    if issubclass(plugin, Attack | Framework):
        _check_added(plugin, {key for key, (_, default) in settings.items() if default is not MISSING})


def check_instance(plugin: object) -> None:
    """Refuse an object that sets methods on itself, or whose facts raise an error."""
    name = type(plugin).__name__
    for method in sorted(vars(plugin).keys() & METHODS):
        raise TypeError(f"{name} sets self.{method}: write it as a method, or nobody sees that it has one")
    for fact in ("is_adaptive", "norms", "is_probability"):
        try:
            with no_exit():
                getattr(plugin, fact, None)
        except Exception as error:
            raise TypeError(f"{name}.{fact} raises {reason(error)}") from None


def _facts(base: type) -> set[str]:
    """Return the names of the variables and properties of a base class."""
    return {
        key
        for key, value in vars(base).items()
        if not key.startswith("_") and not inspect.isfunction(value) and not isinstance(value, classmethod)
    }


def _check_rejector(plugin: type[Rejector], settings: set[str]) -> None:
    name = plugin.__name__
    if hasattr(plugin, "training_key"):
        raise TypeError(
            f"{name} writes training_key, which rrbench makes itself now: delete it, and name in after_training "
            "the settings that change neither the head nor the loss"
        )
    for what in ("needs", "after_training"):
        if not isinstance(getattr(plugin, what), frozenset | set):
            raise TypeError(f"{name}.{what} must be a set of names: write {what} = frozenset({{...}})")
    for need in sorted(plugin.needs - NEEDS):
        raise TypeError(f"{name}.needs holds {need!r}: delete it, only 'features' is declared; methods say the rest")
    for setting in sorted(plugin.after_training - settings):
        raise TypeError(f"{name}.after_training holds {setting!r}, which is none of its settings")
    if plugin.oracle_certainty is not Rejector.oracle_certainty and not plugin.is_oracle:
        raise TypeError(f"{name}.oracle_certainty is given the labels: write is_oracle = True, or certainty instead")


def _check_attack(plugin: type[Attack]) -> None:
    norms = inspect.getattr_static(plugin, "norms")
    if isinstance(norms, str) or (isinstance(norms, frozenset | set) and not norms <= set(get_args(Norm))):
        raise TypeError(f"{plugin.__name__}.norms must be of linf and l2: write norms = frozenset({{'linf'}})")


def _check_added(plugin: type[Attack | Framework], settings: set[str]) -> None:
    name = plugin.__name__
    if not isinstance(plugin.added, frozenset):
        raise TypeError(f"{name}.added must be a set of names: write added = frozenset({{...}})")
    for setting in sorted(plugin.added - settings):
        raise TypeError(f"{name}.added holds {setting!r}, which is none of its settings with a default")


def check_inherited(classes: Mapping[str, type], name: str) -> None:
    """Refuse a rejector that declares the training of another but does not inherit its methods."""
    plugin = classes[name]
    if not issubclass(plugin, Rejector) or not plugin.inherits_training_of:
        return
    other = classes.get(plugin.inherits_training_of)
    is_same = other is not None and all(
        getattr(plugin, method) is getattr(other, method) for method in ("build_head", "training_loss")
    )
    if not is_same:
        said = f"{plugin.__name__} trains as {plugin.inherits_training_of!r}"
        raise TypeError(f"{said} but not by its methods: delete inherits_training_of")
