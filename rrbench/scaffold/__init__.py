"""Writes a small installable plugin package: one rejector or one attack, its table, its tests."""

import importlib.util
import keyword
import re
from importlib import resources
from pathlib import Path
from typing import Literal

from rrbench.errors import UseError
from rrbench.files.disk import write_bytes
from rrbench.plugins.catalogue import cards

Kind = Literal["rejector", "attack"]
THINGS: dict[Kind, str] = {"rejector": "A rejector", "attack": "An attack"}


def write_plugin(kind: Kind, name: str, folder: Path) -> Path:
    """Write a plugin into a new folder; an existing one is never touched."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UseError(f"{name!r} is no plugin name: small letters, digits and single dashes, such as my-idea")
    if name == "all":
        raise UseError(f"'all' stands for every {kind}; choose another name")
    if any(card.name == name for card in cards(kind)):
        raise UseError(f"{THINGS[kind].lower()} {name!r} is installed already; choose another name")
    module = name.replace("-", "_")
    if keyword.iskeyword(module):
        raise UseError(f"{name!r} is a word of Python; choose another name")
    if importlib.util.find_spec(module):
        raise UseError(f"a package {module!r} exists already, and yours would hide it; choose another name")
    target = folder / name
    if target.exists():
        raise UseError(f"{target} exists already")
    placeholders = {
        "NAME": name,
        "MODULE": module,
        "CLASS": "".join(part.capitalize() for part in name.split("-")),
        "KIND": kind,
        "THING": THINGS[kind],
        "TABLE": f"{kind.upper()}S",
        "TYPE": f"{kind.capitalize()}Table",
    }
    for source, place in (
        ("pyproject.toml", "pyproject.toml"),
        ("README.md", "README.md"),
        ("table.py", f"{module}/__init__.py"),
        (f"{kind}.py", f"{module}/{kind}.py"),
        (f"test_{kind}.py", f"tests/test_{module}.py"),
    ):
        text = (resources.files("rrbench.scaffold") / "templates" / f"{source}.txt").read_text(encoding="utf-8")
        for word, value in placeholders.items():
            text = text.replace(f"@{word}@", value)
        write_bytes(target / place, text.encode())
    return target
