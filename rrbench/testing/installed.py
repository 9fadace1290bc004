"""The checks of installed plugins, by their names on the command line."""

from collections.abc import Iterator

from rrbench.datasets.search import roots
from rrbench.errors import UseError
from rrbench.names import Choice, long_form, parse, settings_of, unknown
from rrbench.planning.plan import variants
from rrbench.plugins.config import Config, load_preset
from rrbench.plugins.contract import BASES
from rrbench.plugins.registry import build, choose, expand, table
from rrbench.protocols import Attack, DataSource, Ensemble, Framework, MovedElsewhere, NetworkSource, Rejector
from rrbench.testing.attacks import attack_checks
from rrbench.testing.check import Check
from rrbench.testing.frameworks import framework_checks
from rrbench.testing.rejectors import rejector_checks
from rrbench.testing.sources import dataset_checks, network_checks

# Settings that make an attack or a training small, if it has them and the text does not give them.
SMALL = {"steps": 2, "restarts": 2, "searches": 2, "queries": 10}
DATASET = "digits"  # the preset's settings for small data are used


def installed_checks(text: str) -> Iterator[tuple[str, list[Check]]]:
    """Return (name, its checks) for every kind of plugin that has this name."""
    config = load_preset("quick")
    name = parse(text).name
    kinds = [kind for kind in BASES if _knows(kind, name)]
    if not kinds:
        raise unknown("plugin", name, {known for kind in BASES for known in table(kind)})
    found, refusals = [], []
    for kind in kinds:
        try:
            for variant in variants(expand("attack", text)) if kind == "attack" else [expand(kind, text)]:
                found.append((kind, choose(kind, _small(kind, variant.partition("@")[0]), config, DATASET)))
        except UseError as error:  # the settings may be those of another kind
            refusals.append(error)
    if refusals and (not found or "(" not in text):
        raise refusals[0]
    for kind, choice in found:
        yield f"{kind} {choice}", _checks(kind, choice, config)


def _small(kind: str, text: str) -> str:
    """Make an attack or a training small, unless its text gives the settings."""
    classes = table(kind).classes
    call = long_form(kind, parse(text), classes)
    if kind not in ("attack", "framework") or call.name not in classes:
        return text
    known, given = settings_of(classes[call.name]), dict(call.keywords)
    if call.positional is not None:
        given[next(iter(known))] = call.positional
    given |= {key: str(value) for key, value in SMALL.items() if key in known and key not in given}
    return f"{call.name}({','.join(f'{key}={value}' for key, value in given.items())})"


def _knows(kind: str, name: str) -> bool:
    """Tell whether a kind has a plugin of this name, in full or short like `pgd10`."""
    known = table(kind)
    return name in known or long_form(kind, parse(name), known.classes).name in known.classes


def _checks(kind: str, choice: Choice, config: Config) -> list[Check]:
    if kind == "rejector":
        return rejector_checks(build(Rejector, choice))
    if kind == "attack":
        attack = build(Attack, choice)
        # An attack that uses other attacks' images cannot answer alone.
        return attack_checks(attack)[:1] if isinstance(attack, Ensemble | MovedElsewhere) else attack_checks(attack)
    if kind == "framework":
        framework = build(Framework, choice)
        partners = [choose("rejector", name, config, DATASET) for name in framework.rejectors[:1]]
        return framework_checks(framework, build(Rejector, partners[0]) if partners else None)
    if kind == "network":
        return network_checks(build(NetworkSource, choice))
    return dataset_checks(build(DataSource, choice), roots(None))
