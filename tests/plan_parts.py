"""Plans made from requests, and the names in them, for the tests of plans."""

from collections.abc import Sequence
from typing import Any

from rrbench.planning.cells import Cell, Plan
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import Config, load_preset
from tested_plugins import TESTED

QUICK, PAPER = load_preset("quick"), load_preset("paper")


def plan(
    rejectors: Sequence[str] = ("confidence",),
    attacks: Sequence[str] = ("pgd10",),
    config: Config = QUICK,
    **more: Any,
) -> Plan:
    return make_plan(Request(rejectors, attacks, **more), config)


def pairs(planned: Plan) -> list[tuple[str, str]]:
    return list(dict.fromkeys((str(cell.rejector), str(cell.training.framework)) for cell in planned.cells))


def without_strangers(planned: Plan) -> Plan:
    """Leave out the rejectors of packages that happen to be installed here."""
    return Plan(tuple(cell for cell in planned.cells if cell.rejector.name in TESTED["rejector"]), planned.dropped)


def trainings(planned: Plan) -> list[str]:
    return [training.trained_as for training in planned.checkpoints()]


def attacks(planned: Plan) -> list[str]:
    return list(dict.fromkeys(str(cell.attack) for cell in planned.cells))


def only(planned: Plan, attack: str = "pgd10") -> Cell:
    (cell,) = (cell for cell in planned.cells if str(cell.attack) == attack)
    return cell
