"""Holds what users give as objects instead of names: networks, data, rejectors, attacks. Imports no torch.

Such an object has the name `own`, and among its settings a hash of what it does. So it has a choice, keys and rows as
an installed plugin has. It is held only while a call works with it.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rrbench.errors import UseError
from rrbench.names import Choice, Value

OWN = "own"
WORDS = {"dataset": "data set"}  # kinds that people call otherwise
_HELD: dict[tuple[str, str, str], Callable[[], Any]] = {}  # by kind, name and hash: makes the plugin


@contextmanager
def holding() -> Iterator[None]:
    """Forget afterwards what was held inside the block: a user's data may be large."""
    before = dict(_HELD)
    try:
        yield
    finally:
        _HELD.clear()
        _HELD.update(before)


def hold(
    kind: str, name: str, sha256: str, make: Callable[[], Any], settings: Mapping[str, Value] | None = None
) -> Choice:
    """Hold an object, and return the choice that names it; `make` returns the plugin, for each use anew."""
    _HELD[kind, name, sha256] = make
    return Choice(OWN, (*(settings or {}).items(), ("name", name), ("sha256", sha256)), name)


def make_held(kind: str, choice: Choice) -> Any:
    """Return the plugin that an own choice names."""
    settings = dict(choice.settings)
    make = _HELD.get((kind, str(settings.get("name")), str(settings.get("sha256"))))
    if make is None:
        raise UseError(f"{WORDS.get(kind, kind)} {settings.get('name')} was given in Python and is not here")
    return make()
