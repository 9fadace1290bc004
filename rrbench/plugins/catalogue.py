"""Lists what is installed by reading the plugins' source text: `rrbench list` imports neither torch nor any plugin.

A table is shown entry by entry only if it is a plain dict of imported classes.
"""

import ast
import importlib.util
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from rrbench.names import parse, short_form, show

PROTOCOLS = "rrbench.protocols"
BY_SETTINGS = "by its settings"


@dataclass(frozen=True)
class Card:
    """What one entry of a table declares."""

    name: str
    package: str
    attributes: dict[str, str] = field(default_factory=dict)  # class variables, as written
    settings: dict[str, str] = field(default_factory=dict)  # {setting: default}; empty if it must be given
    stands_for: str = ""  # an alias's target
    methods: frozenset[str] = frozenset()  # those that the class or a base defines, without the protocol's


class UnreadableError(Exception):
    """The source does not follow the convention."""


def cards(kind: str) -> list[Card]:
    """Return the cards of every installed table of one kind, in the tables' order."""
    found: list[Card] = []
    for entry in metadata.entry_points(group=f"rrbench.{kind}s"):
        package = entry.dist.name if entry.dist else entry.value
        try:
            found += list(_read_table(entry.module, entry.attr, package))
        except (UnreadableError, OSError, SyntaxError, ImportError):
            found.append(Card(entry.value, package, {"about": "its table is not a plain dict that can be read"}))
    return found


@cache
def plugins(kind: str) -> Mapping[str, Card]:
    """Return the cards of one kind by name, without aliases."""
    return {card.name: card for card in cards(kind) if not card.stands_for}


def plugin_name(kind: str, text: str) -> str:
    """Return the plugin that a text names: `pgd100x10` is `pgd`."""
    name = parse(text).name
    short = short_form(name, plugins(kind))
    return short[0] if short else name


@cache
def constant(module: str, name: str) -> str:
    """Return a constant of a module as the source text writes it."""
    tree, _ = _module(module)
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) == name:
            return _text(statement.value)
    raise UnreadableError(f"{module}.{name}")


def _read_table(module: str, attribute: str, package: str) -> Iterator[Card]:
    tree, imports = _module(module)
    for statement in tree.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == attribute for target in targets):
            value = getattr(statement, "value", None)
            if not isinstance(value, ast.Dict):
                raise UnreadableError(attribute)
            for key, item in zip(value.keys, value.values, strict=True):
                yield _card(module, imports, key, item, package)
            return
    raise UnreadableError(attribute)


def _card(module: str, imports: dict[str, str], key: ast.expr | None, item: ast.expr, package: str) -> Card:
    if not isinstance(key, ast.Constant) or not isinstance(key.value, str):
        raise UnreadableError(module)
    if isinstance(item, ast.Constant) and isinstance(item.value, str):
        return Card(key.value, package, stands_for=item.value)
    if not isinstance(item, ast.Name):
        raise UnreadableError(module)
    attributes, found, methods = _class(imports.get(item.id, module), item.id)
    ordered = sorted(found.items(), key=lambda part: part[1].is_by_name)
    settings = {name: setting.default for name, setting in ordered}
    return Card(key.value, package, attributes, settings, methods=methods)


@cache
def _module(name: str) -> tuple[ast.Module, dict[str, str]]:
    """Return a module's syntax tree, and which module each imported name comes from."""
    source = _source(name)
    tree = ast.parse(source.read_text(encoding="utf-8"))
    package = name if source.name == "__init__.py" else name.rpartition(".")[0]
    found: dict[str, str] = {}
    # Walk the whole tree: in `from rrbench import Rejector`, the import is under `if TYPE_CHECKING`.
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            found |= {alias.asname or alias.name: module for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
    return tree, found


def _source(name: str) -> Path:
    """Find a module's file without `find_spec` of a submodule, which would import its package."""
    package, *rest = name.split(".")
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        for candidate in (Path(folder, *rest, "__init__.py"), Path(folder, *rest).with_suffix(".py")):
            if candidate.is_file():
                return candidate
    if spec and spec.origin and not rest:
        return Path(spec.origin)
    raise UnreadableError(name)


class _Setting(NamedTuple):
    default: str
    is_by_name: bool  # the constructor takes the setting by name only


def _class(module: str, name: str) -> tuple[dict[str, str], dict[str, _Setting], frozenset[str]]:
    """Return a class's attributes, settings and methods; inherited settings come first, as in dataclasses."""
    tree, imports = _module(module)
    node = next((part for part in tree.body if isinstance(part, ast.ClassDef) and part.name == name), None)
    if node is None:
        if imports.get(name, module) == module:
            raise UnreadableError(f"{module}.{name}")
        return _class(imports[name], name)
    attributes: dict[str, str] = {}
    settings: dict[str, _Setting] = {}
    methods: set[str] = set()
    for base in node.bases:
        place, _, own = ast.unparse(base).rpartition(".")  # Rejector, or rrbench.Rejector
        if isinstance(base, ast.Name | ast.Attribute) and own not in ("ABC", "Protocol"):
            inherited = _class(imports.get(place or own, module), own)
            attributes |= inherited[0]
            settings |= inherited[1]
            methods |= inherited[2]
    decorators = [ast.unparse(decorator) for decorator in node.decorator_list]
    is_dataclass = any(text.startswith("dataclass") for text in decorators)
    is_by_name = any("kw_only=True" in text for text in decorators)
    for part in node.body:
        if isinstance(part, ast.FunctionDef):
            if any(ast.unparse(decorator).endswith("property") for decorator in part.decorator_list):
                attributes[part.name] = _answer(part)
            elif module != PROTOCOLS:
                methods.add(part.name)
        elif isinstance(part, ast.Assign) and isinstance(part.targets[0], ast.Name):
            attributes[part.targets[0].id] = _text(part.value)
        elif isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            is_plain = "ClassVar" in ast.unparse(part.annotation) or "init=False" in _text(part.value)
            if is_dataclass and not is_plain:
                settings[part.target.id] = _setting(part.value, is_by_name)
            else:
                attributes[part.target.id] = _text(part.value)
    return attributes, settings, frozenset(methods)


def _answer(part: ast.FunctionDef) -> str:
    """Write what a property returns: a value, or `setting=value` if the property compares one setting with it."""
    last = part.body[-1]
    value = last.value if isinstance(last, ast.Return) else None
    if isinstance(value, ast.Compare) and len(part.body) <= 2 and len(value.ops) == 1:
        setting, other = value.left, value.comparators[0]
        if isinstance(setting, ast.Attribute) and isinstance(value.ops[0], ast.Eq) and isinstance(other, ast.Constant):
            return f"{setting.attr}={_text(other)}"
    is_plain = value is not None and not any(isinstance(node, ast.Attribute) for node in ast.walk(value))
    return _text(value) if is_plain and len(part.body) <= 2 else BY_SETTINGS


def _setting(value: ast.expr | None, is_by_name: bool) -> _Setting:
    """Read a setting's default; `field(...)` holds it among other arguments."""
    if not isinstance(value, ast.Call) or ast.unparse(value.func) != "field":
        return _Setting(_text(value, ":"), is_by_name)
    keywords = {keyword.arg: keyword.value for keyword in value.keywords}
    return _Setting(_text(keywords.get("default"), ":"), is_by_name or _text(keywords.get("kw_only")) == "true")


def _text(value: ast.expr | None, joint: str = ", ") -> str:
    """Write a value as the command line takes it; else as Python writes it."""
    if value is None:
        return ""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "Fraction":
        return "/".join(ast.unparse(argument) for argument in value.args)
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "frozenset":
        return _text(value.args[0], joint) if value.args else ""
    if isinstance(value, ast.Set | ast.Tuple | ast.List):
        return joint.join(_text(item, joint) for item in value.elts)
    try:
        return show(ast.literal_eval(value))
    except ValueError:
        return ast.unparse(value)
