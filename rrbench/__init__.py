"""How well does a defence reject what it would get wrong, when somebody attacks it.

The public words are loaded when first used (PEP 562), so that `rrbench table` imports neither torch nor pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rrbench.api import evaluate, run
    from rrbench.checkpoints import read_checkpoint
    from rrbench.errors import CellError, UseError
    from rrbench.networks.wrapped import wrap
    from rrbench.protocols import (
        Attack,
        Batch,
        Budget,
        Calibration,
        DataInfo,
        DataSource,
        Draws,
        Framework,
        Moved,
        NetworkSource,
        Outputs,
        Rejector,
        Victim,
    )
    from rrbench.rows import read_rows

_HOMES = {
    "evaluate": "api",
    "run": "api",
    "wrap": "networks.wrapped",
    "read_checkpoint": "checkpoints",
    "read_rows": "rows",
    "UseError": "errors",
    "CellError": "errors",
}
_HOMES |= dict.fromkeys(
    (
        "Attack",
        "Batch",
        "Budget",
        "Calibration",
        "DataInfo",
        "DataSource",
        "Draws",
        "Framework",
        "Moved",
        "NetworkSource",
        "Outputs",
        "Rejector",
        "Victim",
    ),
    "protocols",
)

__all__ = [
    "evaluate",
    "run",
    "wrap",
    "read_checkpoint",
    "read_rows",
    "UseError",
    "CellError",
    "Attack",
    "Batch",
    "Budget",
    "Calibration",
    "DataInfo",
    "DataSource",
    "Draws",
    "Framework",
    "Moved",
    "NetworkSource",
    "Outputs",
    "Rejector",
    "Victim",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("rrbench.provenance").version()
    if name not in _HOMES:
        raise AttributeError(f"module 'rrbench' has no attribute {name!r}")
    return getattr(import_module(f"rrbench.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
