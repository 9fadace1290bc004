"""Which names a plugin may have: one can type them, and they mean nothing else already. Imports no torch."""

from collections.abc import Collection, Mapping

from rrbench.names import short_form
from rrbench.plugins.config import ALL
from rrbench.plugins.own import OWN, WORDS

# Commas, brackets and = belong to settings, @ and + to pairs and checkpoints, slashes to files, the rest to the shell.
MARKS = frozenset(",()=@+/\\'\"`$;&|<>")
MEANINGS = {ALL: "stands for every {}", OWN: "stands for objects that are given in Python"}


def is_typed(name: str) -> bool:
    """Tell whether a name can be written where the command line expects one."""
    is_plain = name.isprintable() and not any(sign.isspace() or sign in MARKS for sign in name)
    return bool(name) and is_plain and not name.startswith("-")


def meaning(kind: str, name: str, settings: Mapping[str, Collection[str]]) -> str:
    """Say what a name means already, or that nobody can type it; else empty. `settings`: of each installed plugin.

    In rows and on the command line, `pgd7` is `pgd` with 7 steps: nobody could tell a plugin of that name from it.
    """
    if not is_typed(name):
        return f"{name!r} cannot be typed: use letters, digits and dashes"
    if name in MEANINGS:
        return f"{name!r} {MEANINGS[name].format(WORDS.get(kind, kind))}"
    short = short_form(name, settings.keys() - {name})
    if short is None or not {"steps", "restarts"} <= set(settings[short[0]]):
        return ""
    plugin, steps, restarts = short
    return f"{name!r} is short for {plugin}(steps={steps}{f',restarts={restarts}' if restarts else ''})"
