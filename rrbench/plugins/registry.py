"""Merges the tables of all installed plugins; a name in two tables and an unknown name are errors."""

import inspect
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

from rrbench.errors import CellError, UseError, first_line, no_exit, reason
from rrbench.files.fingerprints import LENGTH
from rrbench.names import Call, Choice, convert, given_by, is_of, long_form, parse, resolve, settings_of, unknown
from rrbench.plugins.config import ALL, KINDS, Config
from rrbench.plugins.contract import BASES, check_entry, check_inherited, check_instance
from rrbench.plugins.naming import meaning
from rrbench.plugins.own import OWN, make_held
from rrbench.plugins.revisions import OURS, Revision, outside_revision
from rrbench.protocols import Attack, DataSource, Framework, NetworkSource, Rejector

Plugin = TypeVar("Plugin", Rejector, Attack, Framework, DataSource, NetworkSource)


@dataclass(frozen=True)
class Table:
    """One kind of plugin: classes by name, and aliases for them."""

    kind: str
    classes: Mapping[str, type]
    aliases: Mapping[str, str]
    owners: Mapping[str, str]  # {name: the distribution it comes from}

    def __iter__(self) -> Iterator[str]:
        return iter([*self.classes, *self.aliases])


@cache
def table(kind: str) -> Table:
    """Load every installed table of one kind; a broken plugin disables itself with a warning."""
    classes: dict[str, type] = {}
    aliases: dict[str, str] = {}
    owners: dict[str, str] = {}
    for entry in metadata.entry_points(group=f"rrbench.{kind}s"):
        package = entry.dist.name if entry.dist else entry.value
        try:
            with no_exit():
                rows = dict(entry.load())
                for name, value in rows.items():
                    check_entry(kind, name, value)
        except Exception as error:  # whatever a plugin raises, only this plugin is disabled
            warnings.warn(f"plugin {package!r} is disabled: {entry.value}: {reason(error)}", stacklevel=2)
            continue
        for name, value in rows.items():
            if name in owners:
                raise UseError(f"{kind} {name!r} is defined by both {owners[name]!r} and {package!r}; uninstall one")
            owners[name] = package
            if isinstance(value, str):
                aliases[name] = value
            else:
                classes[name] = value
    settings = {name: settings_of(plugin) for name, plugin in classes.items()}
    for name in owners:
        if means := meaning(kind, name, settings):
            warnings.warn(f"plugin {owners[name]!r} goes without {name!r}: {means}", stacklevel=2)
            classes.pop(name, None)
            aliases.pop(name, None)
    for name in list(classes):
        try:
            check_inherited(classes, name)
        except TypeError as error:
            warnings.warn(f"plugin {owners[name]!r} goes without {name!r}: {error}", stacklevel=2)
            del classes[name]
    return Table(kind, classes, aliases, owners)


def find(kind: str, name: str) -> type:
    """Return a plugin's class; an unknown name raises an error that lists near names."""
    known = table(kind)
    if name not in known.classes:
        raise unknown(kind, name, known)
    return known.classes[name]


def choose(kind: str, text: str, config: Config, dataset: str, extra: Mapping[str, object] | None = None) -> Choice:
    """Turn a text into a choice with every setting; later ones win: class, `extra`, preset, the text itself.

    The plugin is built once, so that it refuses wrong settings here, before any work is done.
    """
    classes = table(kind).classes
    call = long_form(kind, parse(text), classes)
    settings = settings_of(find(kind, call.name))
    defaults = {key: value for key, value in (extra or {}).items() if key in settings and value is not None}
    choice = resolve(kind, call, classes, defaults | config.settings(kind, call.name, dataset))
    build(BASES[kind], choice)
    return choice


def revision(kind: str, name: str) -> Revision:
    """Return a value that changes when the plugin's behaviour changes, for keys and rows."""
    plugin = cast(type[Attack], find(kind, name))  # all five kinds declare `revision`
    if is_ours(kind, name):
        return plugin.revision
    return outside_revision(table(kind).owners.get(name, ""), plugin.revision, _own_file(plugin))


def revision_of(kind: str, choice: Choice) -> Revision:
    """Return the revision of what a choice names; of a user's own files or objects it is a hash of what they hold."""
    if choice.name == OWN:
        return str(dict(choice.settings)["sha256"])[:LENGTH]
    if kind in ("dataset", "network"):
        plugin = build(DataSource, choice) if kind == "dataset" else build(NetworkSource, choice)
        if content := plugin.content():
            # Without a dot, which would tell a package: rows of a user's own are never superseded.
            return content[:LENGTH] if plugin.revision == 1 else f"{content[:LENGTH]}-{plugin.revision}"
    return revision(kind, choice.name)


def plain_rejector() -> str:
    """Name a rejector that fits any network: it changes no weights and does not ask the network again."""
    classes: Mapping[str, type[Rejector]] = table("rejector").classes
    found = (
        name
        for name, plugin in classes.items()
        if not (plugin.frameworks or plugin.has_training() or plugin.has_look())
    )
    return next(found)


def is_ours(kind: str, name: str) -> bool:
    """Tell whether a plugin comes with rrbench."""
    return table(kind).owners.get(name) == OURS


def _own_file(plugin: type) -> list[Path]:
    """Return the file that defines a class; a class typed at a prompt has none."""
    try:
        path = inspect.getsourcefile(plugin)
    except TypeError:
        path = None
    return [Path(path)] if path else []


def restore(kind: str, saved: Sequence[Any]) -> Choice:
    """Make a choice from the plain values in a cell file."""
    name, values = saved
    plugin, where = find(kind, name), f"{kind} {name!r}"
    if not is_of(plugin, values):
        raise UseError(f"{where} has other settings than when it was measured: another version of it is installed")
    hints = {key: hint for key, (hint, _) in settings_of(plugin).items() if key in values}
    settings = {key: convert(values[key], hint, f"{where}: setting {key!r}") for key, hint in hints.items()}
    return Choice(name, tuple(settings.items()), name)


def check_names(config: Config) -> None:
    """Refuse what names a plugin that is not installed, and settings that the plugin does not have or refuses."""
    datasets = config.values.get("dataset", {})
    for name in datasets:
        find("dataset", name)
    for part in (config.values, *datasets.values()):
        for kind in KINDS:
            for name, settings in part.get(kind, {}).items():
                _check_settings(kind, name, settings)
    usual = parse(config.run.dataset).name
    for where, kind, text in _texts(config):
        try:
            for kind_of_part, part in _parts(kind, text):
                _check_text(kind_of_part, part, config, usual)
        except UseError as error:
            raise UseError(f"{where}: {error}") from None


def _parts(kind: str, text: str) -> list[tuple[str, str]]:
    """Split `rejector@framework` into the two plugins that it names."""
    expanded = expand(kind, text)
    if kind != "rejector" or "@" not in expanded:
        return [(kind, expanded)]
    rejector, _, framework = expanded.partition("@")
    return [("rejector", rejector), ("framework", framework)]


def _check_text(kind: str, text: str, config: Config, dataset: str) -> None:
    call = long_form(kind, parse(text), table(kind).classes)
    find(kind, call.name)
    own = config.settings(kind, call.name, dataset)
    _check_settings(kind, call.name, {**own, **given_by(kind, call, table(kind).classes)})


def _check_settings(kind: str, name: str, settings: Mapping[str, object]) -> None:
    """Refuse wrong settings. A missing one may be given elsewhere; if none is missing, the plugin itself may refuse."""
    known = settings_of(find(kind, name))
    for key, value in settings.items():
        if key not in known:
            raise unknown(f"setting of {kind} {name!r}", key, known)
        convert(value, known[key][0], f"{kind} {name!r}: setting {key!r}")
    if all(key in settings or default is not MISSING for key, (_, default) in known.items()):
        build(BASES[kind], resolve(kind, Call(name, None, ()), table(kind).classes, settings))


def _texts(config: Config) -> Iterator[tuple[str, str, str]]:
    """Yield every text of a configuration that names a plugin: the key it stands under, the plugin's kind, the text."""
    run = config.run
    yield "[run] dataset", "dataset", run.dataset
    yield from (("[run] attacks", "attack", text) for text in run.attacks if run.attacks != (ALL,))
    yield from (("[run] all_attacks", "attack", text) for text in run.all_attacks)
    yield from (("[run] rejectors", "rejector", text) for text in run.rejectors if run.rejectors != (ALL,))
    for text in run.all_pairs:
        rejector, framework = split_pair(text)
        yield "[run] all_pairs", "rejector", rejector
        yield "[run] all_pairs", "framework", framework
    for name in config.values.get("dataset", {}):
        if network := config.dataset(name).network:
            yield f"[dataset.{name}] network", "network", network
        yield f"choose_by for {name}", "attack", config.recipe(name).choose_by


def split_pair(text: str) -> tuple[str, str]:
    """Split a pair of `all_pairs` into its rejector and its framework."""
    rejector, _, framework = text.rpartition("@")
    if not rejector:
        raise UseError(f"[run] all_pairs: {text!r} should be rejector@framework")
    return rejector, framework


def expand(kind: str, text: str) -> str:
    """Replace an alias by its target."""
    call = parse(text)
    target = table(kind).aliases.get(call.name)
    if target is None:
        return text
    if call.positional is not None or call.keywords:
        raise UseError(f"{call.name!r} is short for {target!r}; give settings to that")
    return target


def build(base: type[Plugin], choice: Choice) -> Plugin:
    """Make the plugin that a choice names; if it refuses its settings, the error says why in one line."""
    kind = next(kind for kind, known in BASES.items() if known is base)
    plugin = None if choice.name == OWN else find(kind, choice.name)
    try:
        with no_exit(f"{kind} {choice}", UseError):
            made = make_held(kind, choice) if plugin is None else plugin(**dict(choice.settings))
            check_instance(made)
            return cast(Plugin, made)
    except (UseError, CellError):
        raise
    except (ValueError, TypeError) as error:
        raise UseError(f"{kind} {choice}: {first_line(error)}") from None
    except Exception as error:  # the plugin did not mean to refuse, so the error's type helps
        raise UseError(f"{kind} {choice}: {reason(error)}") from None
