"""Refuses a data set that gives other inputs than those of the rows that a work folder has of it.

A key holds the name of a data set, not its inputs. A file behind that name may have changed since.
"""

import json
from collections.abc import Mapping
from typing import Any

from rrbench.datasets.check import fingerprint
from rrbench.errors import UseError
from rrbench.measuring.materials import Materials
from rrbench.planning.cells import Cell, Plan
from rrbench.plugins.registry import build, is_ours
from rrbench.protocols import DataSource


def check_inputs(materials: Materials, plan: Plan) -> None:
    """Compare the test inputs of each outsider's data set with those of its finished rows."""
    cells = [cell for cell in plan.cells if _is_by_name_alone(cell)]
    if not cells:
        return
    measured: dict[str, set[str]] = {}
    for record, _ in materials.store.cells():
        measured.setdefault(_name(record.cell), set()).add(record.row.data_sha256)
    asked = {_name(described): cell for described, cell in zip(materials.described(cells), cells, strict=True)}
    for name, cell in asked.items():
        hashes = measured.get(name, set()) - {""}
        if hashes and fingerprint(materials.test(cell)) not in hashes:
            raise UseError(
                f"the test inputs of {cell.dataset} are others than those that {materials.store.root} was measured on: "
                "give another --out; if they are in a file, let its DataSource's content() return a hash of it"
            )


def _is_by_name_alone(cell: Cell) -> bool:
    """Tell whether the key knows a data set by its name and package alone. Ours say which inputs they are."""
    return not is_ours("dataset", cell.dataset.name) and not build(DataSource, cell.dataset).content()


def _name(cell: Mapping[str, Any]) -> str:
    """Return what decides the test inputs of a cell that `Cell.describe` describes."""
    parts = cell["dataset"], cell["limit"], cell.get("every"), cell["revisions"].get("dataset")
    return json.dumps(parts, sort_keys=True, default=str)
