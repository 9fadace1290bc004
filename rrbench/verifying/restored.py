"""What a stored cell names, built again: its plugins and its budget."""

from rrbench.planning.cells import read_budget
from rrbench.plugins.registry import build, restore
from rrbench.plugins.revisions import installed
from rrbench.protocols import NO_BUDGET, Attack, Budget, Rejector
from rrbench.rows.record import CellRecord


def rejector_of(record: CellRecord) -> Rejector:
    """Return a cell's rejector, not fitted."""
    return build(Rejector, restore("rejector", record.cell["rejector"]))


def attack_of(record: CellRecord) -> Attack:
    """Return a cell's attack."""
    return build(Attack, restore("attack", record.cell["attack"]))


def budget_of(record: CellRecord) -> Budget:
    """Return where a cell's attack may move an image."""
    return read_budget(record.cell["budget"]) or NO_BUDGET


def is_ensemble(record: CellRecord) -> bool:
    """Tell whether a row is the worst of several attacks; a transfer has one member, and its costs repeat exactly."""
    return bool(record.cell["members"]) and "moved_on" not in record.cell


def is_installed(record: CellRecord) -> bool:
    """Tell whether the rejector installed here has the revision that was measured."""
    name = record.cell["rejector"][0]
    return bool(installed("rejector", name) in (None, record.cell["revisions"]["rejector"]))


def is_given(record: CellRecord) -> bool:
    """Tell whether a cell's network brought its weights, so that no framework trained it."""
    return bool(record.cell["framework"][0] == "")
