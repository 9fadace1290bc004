"""The lines of the board: one network and one rejector at one budget, ranked where the worst case was measured.

Rows of all presets count for a line: a preset chooses attacks, and the victim is the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

from rrbench.names import radius_text
from rrbench.report.standings import Measured, is_worst_case
from rrbench.rows.currency import is_current
from rrbench.rows.notes import ORACLE, SUPERSEDED, WEAK, is_mixture, members_met
from rrbench.rows.paired import NEVER, Difference, ScoreFiles, differences
from rrbench.rows.repeats import gather, marks_in_all_presets, names
from rrbench.rows.row import ResultRow, order
from rrbench.rows.sight import attack_text, is_blind
from rrbench.rows.tables import summed_up

JOINT = "deploy_joint"
UNCOMMITTED = "+"  # at the end of a commit: the code was changed after it
NOISE = 1e-6  # points: a difference below it is rounding


class Reach(IntEnum):
    """How far a line was attacked; only the first is ranked, and the others stand below it."""

    WORST = 0
    FEWER = 1  # a worst case of fewer attacks than most others'
    NOT_YET = 2
    ORACLE = 3  # knows the labels: no defence


class Arena(NamedTuple):
    """What lines must share so that their numbers can be compared; without a budget nothing was attacked."""

    dataset: str
    data_sha256: str
    n: int | None
    norm: str
    eps: str

    @property
    def budget(self) -> str:
        """The budget as people read it."""
        return f"{self.norm}:{radius_text(Fraction(self.eps))}" if self.eps else "not attacked"


class Way(NamedTuple):
    """An attack with its settings: two presets may give one name to two attacks."""

    attack: str
    preset: str

    @classmethod
    def of(cls, measured: Measured) -> "Way":
        """Return the way in which rows were attacked."""
        return cls(measured.first.attack, measured.first.preset)


@dataclass(frozen=True)
class Line:
    """A victim at one budget."""

    arena: Arena
    measured: tuple[Measured, ...]  # under each attack at this budget, and clean
    mark: str  # tells its victim from another with the same names
    failed: tuple[ResultRow, ...] = ()  # its cells that could not be measured
    usual: frozenset[str] = frozenset()  # the attacks whose worst most lines of the arena met
    common: Way | None = None  # the blind attack that most lines of the arena met

    @cached_property
    def clean(self) -> Measured | None:
        """Its clean rows: those of the worst case's preset if there are several."""
        found = [each for each in self.measured if each.first.attack == "clean"]
        wanted = self.worst.first.preset if self.worst else ""
        return min(found, key=lambda each: each.first.preset != wanted, default=None)

    @cached_property
    def worst(self) -> Measured | None:
        """Its worst case: of several that which leaves the least, and of this code if one is."""
        found = [each for each in self.measured if is_worst_case(each.first) and each.values(JOINT)]
        return min(found, key=lambda each: (not is_current(each.first), _joint(each)), default=None)

    @cached_property
    def hardest(self) -> Measured | None:
        """The attack that leaves the least of the joint number."""
        found = [each for each in self.measured if each.first.eps and each.values(JOINT)]
        return min(found, key=_joint, default=None)

    @cached_property
    def blind(self) -> Measured | None:
        """What it has under the arena's common blind attack: under another one lines could not be compared."""
        found = [each for way, each in self.met_blindly() if way == self.common]
        return min(found, key=lambda each: (not is_current(each.first), each.mean("acc_tpr95") or 0.0), default=None)

    def met_blindly(self) -> list[tuple[Way, Measured]]:
        """Return the blind attacks that it met; one that mixes clean images in cannot be compared."""
        return [
            (Way.of(each), each)
            for each in self.measured
            if is_blind(each.first) and not is_mixture(each.first) and each.values("acc_tpr95")
        ]

    @property
    def first(self) -> ResultRow:
        """The row whose names are used for all."""
        return self.measured[0].first

    @property
    def rejector(self) -> str:
        """The rejector's name."""
        return self.first.rejector

    @property
    def network(self) -> str:
        """The network's name, with that of its checkpoint."""
        return ", ".join(filter(None, (self.first.network, self.first.trained_as)))

    @property
    def shown(self) -> list[Measured]:
        """The measurements that the line itself shows; its doubts are those of these."""
        found = (self.worst or self.hardest, self.clean, self.blind)
        return list(dict.fromkeys(each for each in found if each is not None))

    @property
    def members(self) -> tuple[str, ...]:
        """The attacks whose worst was taken, for every seed; one that failed did not count."""
        return members_met(*self.worst.rows) if self.worst else ()

    @property
    def reach(self) -> Reach:
        """How far it was attacked."""
        if any(ORACLE in each.notes for each in self.measured):
            return Reach.ORACLE
        if self.worst is None:
            return Reach.NOT_YET
        return Reach.WORST if self.usual <= set(self.members) else Reach.FEWER

    @property
    def rank_key(self) -> tuple[object, ...]:
        """Sort key: the worst case first, then the largest joint number."""
        by = self.worst or self.hardest
        return self.reach, by is None, -_joint(by) if by else 0.0, *order(self.first)

    def doubts(self) -> list[str]:
        """Say in a few words each what makes the line's numbers doubtful."""
        rows = [row for each in self.shown for row in each.rows]
        notes = [note for each in self.shown for note in each.notes]
        found = []
        if self.reach is Reach.ORACLE:
            found.append("oracle: knows the labels, no defence")
        if self.worst is None:
            found.append("not yet attacked to the worst case" if self.hardest else "not attacked")
        missing = sorted(self.usual - set(self.members)) if self.reach is Reach.FEWER else []
        if missing:
            found.append(f"worst case without {', '.join(missing)}")
        if self.worst and self.hardest and _joint(self.hardest) < _joint(self.worst) - NOISE:
            less = summed_up(self.hardest.rows, JOINT)
            found.append(f"{attack_text(self.hardest.first)} leaves less than the worst case: {less}")
        if any(row.commit.endswith(UNCOMMITTED) for row in rows):
            found.append("measured by uncommitted code")
        if any(not row.commit for row in rows):
            found.append("commit unknown")
        if any(note.startswith(SUPERSEDED) for note in notes):
            found.append("superseded")
        if any(note.startswith(WEAK) for note in notes):
            found.append("weak attack")
        others = [note for note in notes if note != ORACLE and not note.startswith((WEAK, SUPERSEDED))]
        if others:
            found.append("has notes")
        if self.failed:
            found.append(f"{len(self.failed)} failed")
        return found

    def beside_never(
        self, rows: Sequence[ResultRow], scores: dict[tuple[object, ...], ScoreFiles]
    ) -> list[Difference] | None:
        """Return its differences from never rejecting under the same worst case; None if nothing tells that."""
        if self.worst is None or self.rejector == NEVER:
            return None
        return differences(self.worst.rows, rows, NEVER, JOINT, scores)


def _joint(found: Measured) -> float:
    """Return the joint number of rows that have one."""
    value = found.mean(JOINT)
    assert value is not None
    return value


def find_lines(rows: Sequence[ResultRow]) -> dict[Arena, list[Line]]:
    """Return the lines of each arena, the best first; arenas with most worst cases come first.

    An attack without a budget is in no line, nor is a cell that failed: it is told to the lines of its victim.
    """
    done = [row for row in rows if row.status == "ok"]
    marks = marks_in_all_presets(done)
    victims: dict[tuple[object, ...], list[ResultRow]] = {}
    for row in sorted(done, key=order):
        alike = replace(row, preset="", precision="")
        victims.setdefault((names(alike), marks[row], row.data_sha256), []).append(row)
    found: list[Line] = []
    for (_, mark, _), own in victims.items():
        clean = [row for row in own if row.attack == "clean"]
        budgets = list(dict.fromkeys((row.norm, row.eps) for row in own if row.eps))
        for norm, eps in budgets or [("", "")]:
            first = own[0]
            arena = Arena(first.dataset, first.data_sha256, first.n, norm, eps)
            attacked = [row for row in own if row.eps and (row.norm, row.eps) == (norm, eps)]
            measured = tuple(Measured(group) for group in gather([*clean, *attacked]))
            if measured:
                found.append(Line(arena, measured, str(mark), _failed(rows, first, arena)))
    arenas: dict[Arena, list[Line]] = {}
    for line in found:
        arenas.setdefault(line.arena, []).append(line)
    ranked = {arena: _ranked(lines) for arena, lines in arenas.items()}
    return dict(sorted(ranked.items(), key=lambda item: _arena_key(*item)))


def _failed(rows: Sequence[ResultRow], like: ResultRow, arena: Arena) -> tuple[ResultRow, ...]:
    """Return the failed cells of a victim, clean or at this budget; such a row does not know how many inputs it had."""
    same = ("dataset", "network", "trained_as", "rejector")
    return tuple(
        row
        for row in rows
        if row.status != "ok"
        and all(getattr(row, name) == getattr(like, name) for name in same)
        and (row.norm, row.eps) in (("", ""), (arena.norm, arena.eps))
    )


def _ranked(lines: Sequence[Line]) -> list[Line]:
    """Sort the lines of an arena; a worst case of fewer attacks than most others' stands below theirs."""
    members = [set(line.members) for line in lines if line.worst is not None]
    everything = set().union(*members)
    usual = frozenset(each for each in everything if 2 * sum(each in met for met in members) > len(members))
    common = _common_blind(lines)
    return sorted((replace(line, usual=usual, common=common) for line in lines), key=lambda line: line.rank_key)


def _common_blind(lines: Sequence[Line]) -> Way | None:
    """Return the blind attack that most lines met; of several the one that leaves the least."""
    met: dict[Way, list[float]] = {}
    for line in lines:
        for way, measured in dict(line.met_blindly()).items():  # once, though it was measured again
            met.setdefault(way, []).append(measured.mean("acc_tpr95") or 0.0)
    return min(met, key=lambda way: (-len(met[way]), sum(met[way]) / len(met[way]), way), default=None)


def _arena_key(arena: Arena, lines: Sequence[Line]) -> tuple[object, ...]:
    ranked = sum(line.reach is Reach.WORST for line in lines)
    budget = not arena.eps, arena.norm != "linf", arena.norm
    return -ranked, *budget, -len(lines), Fraction(arena.eps or 0), arena.dataset, arena.n or 0, arena.data_sha256


def without_line(rows: Sequence[ResultRow]) -> int:
    """Count the measured rows that no line shows: those of attacks without a budget."""
    return sum(row.status == "ok" and row.attack != "clean" and not row.eps for row in rows)
