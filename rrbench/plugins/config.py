"""Reads presets and configuration files (TOML) into a frozen Config. Imports no torch.

A preset holds values only; no code asks which preset is used. A file may extend a preset; unknown keys are errors.
"""

import dataclasses
import json
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal, TypeVar

from rrbench.errors import UseError
from rrbench.files.disk import parse_toml
from rrbench.metrics.columns import TprRule
from rrbench.names import NORMS, convert, parse_budget, show, unknown

KINDS = ("rejector", "attack", "framework")
PLAIN = frozenset({"extends", "about"})  # keys of a file outside its tables
TABLES = frozenset({"run", "metrics", "recipe", *KINDS, "dataset"})
ALL = "all"  # in place of names: every rejector or framework, or the attacks of `all_attacks`
DATASET_TABLES = frozenset({*KINDS, "recipe", "step"})  # of [dataset.NAME], beside its own keys


@dataclass(frozen=True)
class Recipe:
    """How a network is trained, with any framework."""

    epochs: int
    batch: int
    learning_rate: float
    drops: tuple[Fraction, ...]  # the rate is multiplied by `drop_factor` after each of these shares of all epochs
    drop_factor: float
    optimizer: Literal["sgd", "adam"]
    momentum: float  # of Adam: its first beta
    weight_decay: float
    choose_by: str  # the attack whose accuracy chooses the epoch
    choose_on: Literal["test", "calibration"]
    average: float  # the share of itself that the mean of the weights keeps at every step; 0: no mean is taken

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch < 1:
            raise UseError(f"a training needs at least 1 epoch of batches of 1, not {self.epochs} of {self.batch}")
        if not 0 <= self.average < 1:
            raise UseError(f"average must be at least 0 and below 1, not {self.average:g}")
        if not self.drop_factor > 0:
            raise UseError(f"drop_factor must be above 0, not {self.drop_factor:g}")
        if self.optimizer == "adam" and not 0 <= self.momentum < 1:
            raise UseError(f"Adam's momentum must be at least 0 and below 1, not {self.momentum:g}")

    def facts(self) -> dict[str, Any]:
        """Return what keys and headers hold; nothing of ADDED at its usual value: older checkpoints keep their keys."""
        return {key: value for key, value in dataclasses.asdict(self).items() if ADDED.get(key) != value}


# The keys of a recipe that came after checkpoints were published, with the values that those checkpoints have.
ADDED: Mapping[str, object] = {"average": 0.0, "drop_factor": 0.1, "optimizer": "sgd"}

FEWEST_RESAMPLES = 20  # the ends of a 95 % interval are then its smallest and largest draws
MOST_RESAMPLES = 100_000  # a row of 10,000 inputs then takes minutes, and its intervals hardly change any more


@dataclass(frozen=True)
class MetricSettings:
    """How rows are computed from scores."""

    tpr_rule: TprRule
    resamples: int  # 0: rows without intervals

    def __post_init__(self) -> None:
        """Refuse an unknown rule and a negative number of draws."""
        if self.tpr_rule not in typing.get_args(TprRule):
            raise unknown("tpr_rule", self.tpr_rule, typing.get_args(TprRule))
        if self.resamples < 0:
            raise UseError(f"resamples must not be negative, as {self.resamples} is")


@dataclass(frozen=True)
class RunDefaults:
    """What `rrbench run` does if the command line does not say."""

    dataset: str
    rejectors: tuple[str, ...]
    attacks: tuple[str, ...]
    all_attacks: tuple[str, ...]
    all_pairs: tuple[str, ...]  # rejector@framework: the meaning of `--rejectors all --frameworks all`


@dataclass(frozen=True)
class DatasetDefaults:
    """How a data set is measured if the command line does not say; empty if the preset does not say either."""

    network: str
    budgets: tuple[str, ...]


Section = TypeVar("Section", RunDefaults, MetricSettings, Recipe, DatasetDefaults)


@dataclass(frozen=True)
class Config:
    """A preset with everything it extends already merged in."""

    preset: str
    values: Mapping[str, Any] = dataclasses.field(repr=False)

    @property
    def run(self) -> RunDefaults:
        """What to run by default."""
        return _section(RunDefaults, self.values.get("run", {}), "run")

    @property
    def metrics(self) -> MetricSettings:
        """How rows are computed from scores; refuses a number of draws that gives no interval or would not end."""
        found = _section(MetricSettings, self.values.get("metrics", {}), "metrics")
        if found.resamples and not FEWEST_RESAMPLES <= found.resamples <= MOST_RESAMPLES:
            asked = f"0, or from {FEWEST_RESAMPLES} to {MOST_RESAMPLES}"
            raise UseError(f"resamples must be {asked}, not {found.resamples}")
        return found

    def recipe(self, dataset: str, changes: Mapping[str, object] | None = None) -> Recipe:
        """Return the training recipe of a data set, with the changes that a command asks for."""
        merged = {**self.values.get("recipe", {}), **self._dataset(dataset).get("recipe", {}), **(changes or {})}
        return _section(Recipe, merged, "recipe")

    def dataset(self, dataset: str) -> DatasetDefaults:
        """Return the network and budgets of a data set."""
        plain = {key: value for key, value in self._dataset(dataset).items() if not isinstance(value, Mapping)}
        return _section(DatasetDefaults, {"network": "", "budgets": [], **plain}, f"dataset.{dataset}")

    def step(self, dataset: str, norm: str) -> Fraction | None:
        """Return the step size of gradient attacks; it does not depend on the radius."""
        text = self._dataset(dataset).get("step", {}).get(norm)
        return typing.cast(Fraction | None, convert(text, Fraction | None, f"[dataset.{dataset}.step] {norm}"))

    def settings(self, kind: str, name: str, dataset: str) -> dict[str, object]:
        """Return the settings that the preset gives a plugin; those for this data set win."""
        if kind not in KINDS:
            return {}
        general = self.values.get(kind, {}).get(name, {})
        return {**general, **self._dataset(dataset).get(kind, {}).get(name, {})}

    def _dataset(self, dataset: str) -> Mapping[str, Any]:
        return typing.cast(Mapping[str, Any], self.values.get("dataset", {}).get(dataset, {}))


@cache
def _hints(kind: type) -> Mapping[str, object]:
    """Return the types of a section's keys, worked out once: every plan reads every section."""
    return typing.get_type_hints(kind)


def _section(kind: type[Section], values: Mapping[str, object], where: str) -> Section:
    hints = _hints(typing.cast(type, kind))
    for key in values:
        if key not in hints:
            raise unknown(f"key in [{where}]", key, hints)
    missing = [key for key in hints if key not in values]
    if missing:
        raise UseError(f"[{where}] lacks {', '.join(missing)}")
    for key, value in values.items():
        if hints[key] == tuple[str, ...] and not isinstance(value, list | tuple):
            raise UseError(f"[{where}] {key} must be a list, such as {key} = [{json.dumps(show(value))}]")
    converted = {key: convert(value, hints[key], f"[{where}] {key}") for key, value in values.items()}
    return kind(**typing.cast(Any, converted))


def preset_names() -> list[str]:
    """Return the presets inside the package."""
    folder = resources.files("rrbench.plugins") / "presets"
    return sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml"))


def check_preset(name: str) -> None:
    """Refuse a preset that is not inside the package."""
    if name not in preset_names():
        raise unknown("preset", name, preset_names())


@cache
def load_preset(name: str) -> Config:
    """Read a preset of the package by name, once; nobody changes its values."""
    check_preset(name)
    text = (resources.files("rrbench.plugins") / "presets" / f"{name}.toml").read_text(encoding="utf-8")
    return _checked(name, _extended(_parse(text, f"preset {name!r}"), f"preset {name!r}"))


def load_file(path: Path, preset: str) -> Config:
    """Read a user's file; it extends the preset that it names, else `preset`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UseError(f"cannot read the configuration {path}: {error}") from None
    values = _parse(text, str(path))
    base = str(values.setdefault("extends", preset))
    return _checked(base, _extended(values, str(path), is_users=True))


def _checked(preset: str, values: Mapping[str, Any]) -> Config:
    """Read every section once: a wrong value is an error even if the run does not use it."""
    config = Config(preset, values)
    _section(RunDefaults, values.get("run", {}), "run")
    _ = config.metrics
    for name in values.get("dataset", {}):
        config.recipe(name)
        for text in config.dataset(name).budgets:
            parse_budget(text)
        for norm in NORMS:
            config.step(name, norm)
    return config


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise UseError(f"{where} is not valid TOML: {error}") from None
    _check_shape(values, PLAIN, TABLES, where)
    _check_plugins(values, where)
    for name, section in values.get("dataset", {}).items():
        place = f"{where}, [dataset.{name}]"
        if not isinstance(section, dict):
            raise UseError(f"{place} must be a section")
        _check_shape(section, typing.get_type_hints(DatasetDefaults), DATASET_TABLES, place)
        _check_shape(section.get("step", {}), NORMS, (), f"{place}, step")
        _check_plugins(section, place)
    return values


def _check_shape(values: Mapping[str, Any], plain: Collection[str], sections: Collection[str], where: str) -> None:
    """Refuse unknown keys, plain values where sections belong, and sections where plain values belong."""
    for key, value in values.items():
        if key not in plain and key not in sections:
            raise unknown(f"key in {where}:", key, [*plain, *sections])
        if isinstance(value, dict) != (key in sections):
            raise UseError(f"{where}: {key!r} must be {'a section' if key in sections else 'a plain value'}")


def _check_plugins(values: Mapping[str, Any], where: str) -> None:
    """Check that each plugin's settings are a section; the registry checks the plugins' names."""
    for kind in KINDS:
        _check_shape(values.get(kind, {}), (), values.get(kind, {}), f"{where}, [{kind}]")


def _extended(values: dict[str, Any], where: str, *, is_users: bool = False) -> dict[str, Any]:
    base = values.pop("extends", None)
    if base is None:
        return values
    if base not in preset_names():
        raise unknown(f"preset (extended by {where})", str(base), preset_names())
    below = load_preset(str(base)).values
    return _merged(_giving_way(below, values) if is_users else below, values)


def _giving_way(preset: Mapping[str, Any], file: Mapping[str, Any]) -> dict[str, Any]:
    """Return the preset without its settings for single data sets where the file gives one for all of them.

    Else [recipe] epochs = 3 in a user's file would do nothing on digits, for which the preset says 15.
    """
    general = {key: file[key] for key in ("recipe", *KINDS) if key in file}
    return {**preset, "dataset": {name: _without(section, general) for name, section in preset["dataset"].items()}}


def _without(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return values less those that are given, table by table."""
    return {
        key: _without(value, given.get(key, {})) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if key not in given or isinstance(value, Mapping)
    }


def _merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(base)
    for key, value in over.items():
        before = base.get(key)
        # A section may replace a plain value here; the code that reads the value refuses it.
        inner = before if isinstance(before, Mapping) else {}
        merged[key] = _merged(inner, value) if isinstance(value, dict) else value
    return merged
