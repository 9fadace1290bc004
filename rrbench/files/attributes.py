"""What an object holds, and whether its class is a library's or a user's."""

import functools
import sys
import sysconfig
import types
from collections.abc import Iterator
from pathlib import Path

# Packages whose functions and classes are told by their names, and in whose modules no values are looked for.
LIBRARIES = frozenset(
    {
        "torch",
        "torchvision",
        "numpy",
        "scipy",
        "sklearn",
        "rrbench",
        "builtins",
        "math",
        "typing",
        "functools",
        "collections",
    }
)
# Of these, too, functions and classes are told by their names. Not of `types` and `abc`: classes that users make
# without a `class` statement say that they are from there.
STANDARD = sys.stdlib_module_names - {"types", "abc"}
PYTHON = Path(sysconfig.get_path("stdlib"))


def attributes(thing: object) -> Iterator[tuple[str, object]]:
    """Return the names and values that an object holds, in `__dict__` or in slots."""
    yield from sorted(vars(thing).items(), key=lambda item: item[0]) if hasattr(thing, "__dict__") else ()
    for base in type(thing).__mro__:
        # Slots of a library's class may be caches, as in a Path, of which `repr` tells enough.
        if "__slots__" in vars(base) and not is_library(base.__module__):
            for name, value in sorted(vars(base).items()):
                if isinstance(value, types.MemberDescriptorType) and hasattr(thing, name):
                    yield name, getattr(thing, name)


def is_library(module: str | None) -> bool:
    """Tell whether code of this module is a library's or Python's own: its name tells enough of it."""
    name = str(module).partition(".")[0]
    return name in LIBRARIES or (name in STANDARD and _is_pythons_own(name))


@functools.cache
def _is_pythons_own(name: str) -> bool:
    """Tell a standard module from a user's file of the same name, such as code.py."""
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or (Path(file).is_relative_to(PYTHON) and "site-packages" not in Path(file).parts)
