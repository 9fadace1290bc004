"""A plan cut into units of work: each is done by one worker, in any order that respects what it comes after."""

import heapq
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from rrbench.planning.cells import Cell, Training


@dataclass(frozen=True)
class Unit:
    """A training, or the cells that share one run of an attack; no two units do the same work."""

    training: Training
    cells: tuple[Cell, ...]  # of a training: all that wait for its checkpoint
    is_training: bool = False
    is_member: bool = False  # an ensemble of the plan will ask for this attack's images
    after: tuple[int, ...] = ()  # positions of the units to be done before; always smaller than one's own

    @property
    def label(self) -> str:
        """The unit in one short line."""
        return f"training {self.training.trained_as}" if self.is_training else self.cells[0].label

    @property
    def trainings(self) -> tuple[Training, ...]:
        """The networks that it makes or needs."""
        return (self.training,) if self.is_training else self.cells[0].trainings


def units_of(cells: Sequence[Cell], untrained: Collection[Training]) -> list[Unit]:
    """Cut cells into units: attacks come after their training, ensembles after the attacks they are the worst of.

    Transfers come after the training of the other network, and after its own attack where that is planned.
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
    """Return what the cells that share one run of an attack have in common, wherever their checkpoint lies."""
    return cell.training, cell.attack_key("", "")


def longest_first(seconds: Sequence[float]) -> list[int]:
    """Return positions, the longest unit first: a long one begun last would keep all the others waiting."""
    return sorted(range(len(seconds)), key=lambda position: -seconds[position])


def wall_seconds(units: Sequence[Unit], seconds: Sequence[float], workers: int) -> float:
    """Play the schedule through: whenever a worker is free it takes the longest unit that can be begun."""
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
