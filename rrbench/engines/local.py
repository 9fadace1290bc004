"""The engine `local`: one unit after the other, in this process."""

from collections.abc import Iterator, Sequence

from rrbench.runner import Runner
from rrbench.units import Unit


def work_here(runner: Runner, units: Sequence[Unit]) -> Iterator[Unit]:
    """Do the units in their order; what comes after a training that failed has failed with it."""
    undone: set[int] = set()
    for position, unit in enumerate(units):
        if not undone.isdisjoint(unit.after) or not runner.work(unit):
            undone.add(position)
        yield unit
