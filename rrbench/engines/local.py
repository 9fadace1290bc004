"""The engine `local`: does one unit after the other in this process; on a GPU, first several trainings at once."""

from collections.abc import Generator, Sequence

from rrbench.engines.side_by_side import Ended, default_jobs, train_side_by_side
from rrbench.errors import StoppedError
from rrbench.measuring.runner import Runner
from rrbench.planning.units import Unit


def work_here(runner: Runner, units: Sequence[Unit]) -> Generator[Unit, None, None]:
    """Do the units in their order until the time is over. If a training fails, all cells that need it fail too.

    The unit that the deadline stops, and all units after it, are not yielded.
    """
    trainings = {unit.training: unit for unit in units if unit.is_training}
    jobs, made = default_jobs(runner.materials.device), dict[Unit, Ended[bool]]()
    if jobs > 1:
        ended = train_side_by_side(
            runner.materials, list(trainings), lambda training: runner.work(trainings[training]), jobs
        )
        made = dict(zip(trainings.values(), ended, strict=True))
    for each in made.values():
        if each.error is not None and not isinstance(each.error, StoppedError):
            raise each.error  # here, since StoppedError below would hide it
    undone: set[int] = set()
    for position, unit in enumerate(units):
        try:
            is_done = undone.isdisjoint(unit.after) and (made[unit].get() if unit in made else runner.work(unit))
        except StoppedError:
            return
        if not is_done:
            undone.add(position)
        yield unit
