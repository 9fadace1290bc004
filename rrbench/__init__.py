"""Measures how well a defence rejects its own wrong answers under attack.

The public names are imported when first used (PEP 562), so that `rrbench table` imports neither torch nor pandas.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rrbench.api import run as run
    from rrbench.errors import CellError as CellError
    from rrbench.errors import UseError as UseError
    from rrbench.files.checkpoints import read_checkpoint as read_checkpoint
    from rrbench.networks.wrapped import wrap as wrap
    from rrbench.own_models import evaluate as evaluate
    from rrbench.paper.frames import table as table
    from rrbench.protocols import Attack as Attack
    from rrbench.protocols import Batch as Batch
    from rrbench.protocols import Budget as Budget
    from rrbench.protocols import Calibration as Calibration
    from rrbench.protocols import DataInfo as DataInfo
    from rrbench.protocols import DataSource as DataSource
    from rrbench.protocols import Draws as Draws
    from rrbench.protocols import Framework as Framework
    from rrbench.protocols import Moved as Moved
    from rrbench.protocols import NetworkSource as NetworkSource
    from rrbench.protocols import Outputs as Outputs
    from rrbench.protocols import Rejector as Rejector
    from rrbench.protocols import Victim as Victim
    from rrbench.rows.row import read_rows as read_rows
    from rrbench.zoo.loading import load_model as load_model

_PLUGIN_WORDS = (
    "Attack Batch Budget Calibration DataInfo DataSource Draws Framework Moved NetworkSource Outputs Rejector Victim"
)
_HOMES = {
    "evaluate": "own_models",
    "load_model": "zoo.loading",
    "run": "api",
    "table": "paper.frames",
    "wrap": "networks.wrapped",
    "read_checkpoint": "files.checkpoints",
    "read_rows": "rows.row",
    "UseError": "errors",
    "CellError": "errors",
} | dict.fromkeys(_PLUGIN_WORDS.split(), "protocols")


def __getattr__(name: str) -> object:
    if name == "__version__":
        return import_module("rrbench.files.provenance").version()
    if name not in _HOMES:
        raise AttributeError(f"module 'rrbench' has no attribute {name!r}")
    return getattr(import_module(f"rrbench.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
