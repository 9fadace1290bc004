"""Plans cut into units: which cells share a unit, and which units come before it."""

from collections.abc import Sequence
from typing import Any

from rrbench.planning.cells import Plan
from rrbench.planning.plan import Request, make_plan
from rrbench.planning.units import Unit, units_of
from rrbench.plugins.config import load_preset


def plan(rejectors: Sequence[str], attacks: Sequence[str], **more: Any) -> Plan:
    return make_plan(Request(rejectors, attacks, **more), load_preset("quick"))


def shown(units: list[Unit]) -> list[tuple[str, list[str], tuple[int, ...]]]:
    return [(unit.label, [str(cell.rejector) for cell in unit.cells], unit.after) for unit in units]


def test_rejectors_of_a_checkpoint_share_a_unit_unless_the_attack_looks_at_them() -> None:
    planned = plan(["confidence", "kd", "rr"], ["pgd10", "adaptive(ce+rcon)"])
    assert shown(units_of(planned.cells, ())) == [
        ("pgd-at confidence clean", ["confidence", "kd"], ()),
        ("pgd-at confidence pgd10 linf:3/20", ["confidence", "kd"], ()),
        ("pgd-at confidence adaptive(ce+rcon) linf:3/20", ["confidence"], ()),
        ("pgd-at kd adaptive(ce+rcon) linf:3/20", ["kd"], ()),
        ("pgd-at+rr rr clean", ["rr"], ()),
        ("pgd-at+rr rr pgd10 linf:3/20", ["rr"], ()),
        ("pgd-at+rr rr adaptive(ce+rcon) linf:3/20", ["rr"], ()),
    ]


def test_what_is_not_trained_is_a_unit_that_its_attacks_come_after() -> None:
    planned = plan(["confidence", "kd", "rr"], ["pgd10"])
    trainings = list(planned.checkpoints())
    units = units_of(planned.cells, trainings)
    assert shown(units) == [
        ("training pgd-at", ["confidence", "kd", "confidence", "kd"], ()),
        ("pgd-at confidence clean", ["confidence", "kd"], (0,)),
        ("pgd-at confidence pgd10 linf:3/20", ["confidence", "kd"], (0,)),
        ("training pgd-at+rr", ["rr", "rr"], ()),
        ("pgd-at+rr rr clean", ["rr"], (3,)),
        ("pgd-at+rr rr pgd10 linf:3/20", ["rr"], (3,)),
    ]
    assert [unit.is_training for unit in units_of(planned.cells, trainings[1:])] == [False, False, True, False, False]


def test_an_ensemble_comes_after_the_attacks_it_is_the_worst_of_and_those_keep_their_images_for_it() -> None:
    planned = plan(["confidence", "kd"], ["worst-case", "pgd100", "pgd7"], budgets=["linf:1/10", "linf:1/5"])
    units = units_of(planned.cells, ())
    ensembles = [unit for unit in units if unit.cells[0].members]
    assert len(ensembles) == 4, "one for each rejector and budget: it looks at the rejector"
    for unit in ensembles:
        (cell,) = unit.cells
        assert "pgd100" in map(str, cell.members)
        before = [units[position] for position in unit.after]
        assert [(str(other.cells[0].attack), other.cells[0].budget) for other in before] == [("pgd100", cell.budget)]
    assert {str(unit.cells[0].attack) for unit in units if unit.is_member} == {"pgd100"}


def test_every_cell_is_in_one_unit_and_every_unit_comes_after_earlier_ones() -> None:
    planned = plan(["all"], ["all"], frameworks=["all"], seeds=[0, 1])
    units = units_of(planned.cells, list(planned.checkpoints()))
    cells = [cell for unit in units if not unit.is_training for cell in unit.cells]
    assert sorted(map(repr, cells)) == sorted(map(repr, planned.cells))
    assert all(before < position for position, unit in enumerate(units) for before in unit.after)
    assert sum(unit.is_training for unit in units) == len(planned.checkpoints())
