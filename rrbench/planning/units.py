"""Cuts a plan into units of work. One worker does one unit, once the units in its `after` are done."""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rrbench.planning.cells import Cell, Training


@dataclass(frozen=True)
class Unit:
    """A training, or the cells that share one run of an attack; no two units do the same work."""

    training: Training
    cells: tuple[Cell, ...]  # of a training: all cells that wait for its checkpoint
    is_training: bool = False
    is_member: bool = False  # an ensemble of the plan will ask for this attack's images
    after: tuple[int, ...] = ()  # positions of the units that must be done first, all before its own

    @property
    def label(self) -> str:
        """The unit in one short line."""
        return f"training {self.training.trained_as}" if self.is_training else self.cells[0].label

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The networks that this unit trains or needs."""
        return (self.training,) if self.is_training else self.cells[0].trainings


def units_of(cells: Sequence[Cell], untrained: Collection[Training]) -> list[Unit]:
    """Cut cells into units: an attack comes after its training, an ensemble after the attacks it takes the worst of.

    A transfer comes after the training of the other network, and after the attack on that network if the plan has it.
    """
    groups: dict[tuple[Training, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(_group(cell), []).append(cell)
    members = {_group(cell.member(choice)) for cell in cells for choice in cell.members}
    units: list[Unit] = []
    trainings: dict[Training, int] = {}
    attacks: dict[tuple[Training, str], int] = {}
    for group, sharing in groups.items():
        for training in sharing[0].trainings:
            if training in untrained and training not in trainings:
                trainings[training] = len(units)
                waiting = tuple(cell for cell in cells if training in cell.trainings)
                units.append(Unit(training, waiting, is_training=True))
        parts = {_group(cell.member(choice)) for cell in sharing for choice in cell.members}
        after = [trainings[training] for training in sharing[0].trainings if training in trainings]
        after += sorted(attacks[part] for part in parts if part in attacks)
        attacks[group] = len(units)
        units.append(Unit(group[0], tuple(sharing), is_member=group in members, after=tuple(after)))
    return units


def _group(cell: Cell) -> tuple[Training, str]:
    """Return what cells must share to use one run of an attack; the checkpoint's place does not matter."""
    return cell.training, cell.attack_key("", "")


def longest_first(seconds: Sequence[float]) -> list[int]:
    """Return positions, the longest unit first: if a long unit starts last, all other workers wait for it."""
    return sorted(range(len(seconds)), key=lambda position: -seconds[position])


def wall_seconds(units: Sequence[Unit], seconds: Sequence[float], workers: int) -> float:
    """Simulate the schedule: a free worker takes the longest unit that may start."""
    waiting = longest_first(seconds)
    ended: set[int] = set()
    running: list[tuple[float, int]] = []  # (end, position)
    now = 0.0
    while waiting or running:
        for position in [index for index in waiting if ended.issuperset(units[index].after)]:
            if len(running) == workers:
                break
            waiting.remove(position)
            heapq.heappush(running, (now + seconds[position], position))
        now, position = heapq.heappop(running)
        ended.add(position)
    return now
