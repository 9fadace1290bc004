"""Writes a small installable plugin package: one plugin of any kind, its table, its tests."""

import importlib.util
import keyword
import re
from importlib import resources
from pathlib import Path
from typing import Literal, NamedTuple

from rrbench.errors import UseError
from rrbench.files.disk import write_bytes
from rrbench.files.distributions import version_of
from rrbench.plugins.catalogue import cards
from rrbench.plugins.naming import meaning

Kind = Literal["rejector", "attack", "framework", "dataset", "network"]


class Form(NamedTuple):
    """What the templates of a kind differ in."""

    thing: str
    type: str  # of its table
    options: str  # of `rrbench run`, to try it


FORMS: dict[Kind, Form] = {
    "rejector": Form("A rejector", "RejectorTable", "--rejectors {}"),
    "attack": Form("An attack", "AttackTable", "--attacks {}"),
    "framework": Form("A framework", "FrameworkTable", "--frameworks {}"),
    "dataset": Form("A data set", "DataTable", "--dataset {} --network small-cnn --budgets linf:1/10"),
    "network": Form("A network", "NetworkTable", "--network {}"),
}


def trial(kind: Kind, name: str) -> str:
    """Return the command that tries a plugin."""
    return f"rrbench run {FORMS[kind].options.format(name)}"


def write_plugin(kind: Kind, name: str, folder: Path) -> Path:
    """Write a plugin into a new folder; an existing one is never touched."""
    module, class_name, form = name.replace("-", "_"), "".join(map(str.capitalize, name.split("-"))), FORMS[kind]
    _check_name(kind, name, module)
    if class_name in _imported(f"{kind}.py"):
        raise UseError(f"{name!r} would hide {class_name}, which its file imports; choose another name")
    target = folder / name
    if target.exists():
        raise UseError(f"{target} exists already")
    placeholders = {
        "NAME": name,
        "MODULE": module,
        "CLASS": class_name,
        "KIND": kind,
        "THING": form.thing,
        "WORD": form.thing.partition(" ")[2],
        "TABLE": f"{kind.upper()}S",
        "TYPE": form.type,
        "TRIAL": trial(kind, name),
    }
    for source, place in (
        ("pyproject.toml", "pyproject.toml"),
        ("README.md", "README.md"),
        ("table.py", f"{module}/__init__.py"),
        (f"{kind}.py", f"{module}/{kind}.py"),
        ("test.py", f"tests/test_{module}.py"),
    ):
        text = _template(source)
        for word, value in placeholders.items():
            text = text.replace(f"@{word}@", value)
        write_bytes(target / place, text.encode())
    return target


def _template(source: str) -> str:
    return (resources.files("rrbench.scaffold") / "templates" / f"{source}.txt").read_text(encoding="utf-8")


def _imported(source: str) -> set[str]:
    """Return the words of a template's imports."""
    lines = (line for line in _template(source).splitlines() if line.startswith(("from ", "import ")))
    return set(re.findall(r"\w+", " ".join(lines)))


def _check_name(kind: Kind, name: str, module: str) -> None:
    """Refuse a name that nobody can type, that means something already, or that would hide or replace a package."""
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise UseError(f"{name!r} is no plugin name: small letters, digits and single dashes, such as my-idea")
    installed = {card.name: card.settings for card in cards(kind)}
    if name in installed:
        raise UseError(f"{FORMS[kind].thing.lower()} {name!r} is installed already; choose another name")
    if means := meaning(kind, name, installed):
        raise UseError(f"{means}; choose another name")
    if keyword.iskeyword(module):
        raise UseError(f"{name!r} is a word of Python; choose another name")
    if importlib.util.find_spec(module):
        raise UseError(f"a package {module!r} exists already, and yours would hide it; choose another name")
    if version_of(name) is not None:
        raise UseError(f"a package {name!r} is installed already, and yours would replace it; choose another name")
