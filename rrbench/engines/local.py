"""The engine `local`: one unit after the other, in this process; on a GPU several trainings side by side before."""

from collections.abc import Generator, Sequence

from rrbench.engines.beside import beside, default_jobs
from rrbench.runner import Runner
from rrbench.units import Unit


def work_here(runner: Runner, units: Sequence[Unit]) -> Generator[Unit, None, None]:
    """Do the units in their order; what comes after a training that failed has failed with it."""
    trainings = {unit.training: unit for unit in units if unit.is_training}
    jobs, made = default_jobs(runner.device), dict[Unit, bool]()
    if jobs > 1:
        done = beside(runner, list(trainings), lambda training: runner.work(trainings[training]), jobs)
        made = dict(zip(trainings.values(), done, strict=True))
    undone: set[int] = set()
    for position, unit in enumerate(units):
        is_done = undone.isdisjoint(unit.after) and (made[unit] if unit in made else runner.work(unit))
        if not is_done:
            undone.add(position)
        yield unit
