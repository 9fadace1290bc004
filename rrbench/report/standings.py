"""Each rejector at its weakest: for every budget the attack that harms it most. `summary` puts it into words."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

from rrbench.metrics.intervals import Interval, share_interval
from rrbench.rows.repeats import gather, names, victim_marks
from rrbench.rows.row import COLUMNS, ResultRow, stated
from rrbench.rows.tables import budget_text

METRICS = ("deploy_joint", "deploy_robust", "acc_tpr95")  # weakness is measured by the first that the rows have
ORACLE = "oracle: knows the labels"


@dataclass(frozen=True)
class Measured:
    """The rows of one victim under one attack and budget, one for each seed."""

    rows: tuple[ResultRow, ...]

    @property
    def first(self) -> ResultRow:
        """The row whose names are used for all."""
        return self.rows[0]

    @property
    def notes(self) -> list[str]:
        """The rows' notes, which say what is doubtful or special, each once."""
        return list(dict.fromkeys(part for row in self.rows for part in row.note.split("; ") if part))

    def values(self, column: str) -> list[float]:
        """Return a column's defined values."""
        return [value for row in self.rows if (value := getattr(row, column)) is not None]

    def mean(self, column: str) -> float | None:
        """Return a column's mean over seeds."""
        values = self.values(column)
        return fmean(values) if values else None

    def interval(self, column: str) -> Interval | None:
        """Return the 95 % interval over examples: the rows' own bounds, else Wilson's for shares of inputs."""
        if f"{column}_low" in COLUMNS:
            lows, highs = self.values(f"{column}_low"), self.values(f"{column}_high")
            if lows and highs:
                return fmean(lows), fmean(highs)
        totals, value = self.values("deploy_n" if column.startswith("deploy_") else "n"), self.mean(column)
        if value is None or not totals or not (column == "acc_all" or column.startswith("deploy_")):
            return None
        # Seeds share their inputs: more seeds do not mean more examples.
        low, high = share_interval(value / 100 * min(totals), int(min(totals)))
        return 100 * low, 100 * high


@dataclass(frozen=True)
class Standing:
    """A victim under its strongest attack at one budget."""

    metric: str  # of METRICS
    strongest: Measured
    single: Measured  # the strongest attack that is no ensemble
    clean: Measured | None
    attacks: int  # how many attacks were tried
    mark: str = ""  # tells its victim from another with the same names

    @property
    def rejector(self) -> str:
        """The rejector's name."""
        return self.strongest.first.rejector

    @property
    def trained_as(self) -> str:
        """The checkpoint's name."""
        return " ".join(filter(None, (self.strongest.first.trained_as, f"[{self.mark}]" if self.mark else "")))

    @property
    def budget(self) -> str:
        """The budget as the command line takes it."""
        return budget_text(self.strongest.first)

    @property
    def value(self) -> float:
        """The metric under the strongest attack."""
        value = self.strongest.mean(self.metric)
        assert value is not None
        return value

    @property
    def interval(self) -> Interval:
        """The value's interval over examples; the whole range if it has none."""
        return self.strongest.interval(self.metric) or (0.0, 100.0)

    @property
    def is_oracle(self) -> bool:
        """Whether the rejector knows the labels, and so is not a defence."""
        return ORACLE in self.strongest.notes


def find_standings(rows: Sequence[ResultRow]) -> list[Standing]:
    """Return every victim at every budget, the best first; `rows` are of one setting."""
    metric = next((name for name in METRICS if any(getattr(row, name) is not None for row in rows if row.eps)), None)
    if metric is None:
        return []
    marks = victim_marks(rows)

    def victim(found: Measured) -> tuple[object, ...]:
        return names(found.first), marks[found.first]

    measured = [Measured(group) for group in gather(rows)]
    clean: dict[tuple[object, ...], Measured] = {}
    for found in measured:
        if found.first.attack == "clean":
            clean.setdefault(victim(found), found)
    groups: dict[tuple[object, ...], list[Measured]] = {}
    for found in measured:
        if found.first.eps and found.values(metric):
            groups.setdefault((victim(found), found.first.norm, found.first.eps), []).append(found)
    standings = []
    for group in groups.values():
        ranked = sorted(group, key=lambda found: (found.mean(metric), found.first.attack))
        single = next((found for found in ranked if "members" not in stated(found.first)), ranked[0])
        attacks = len({found.first.attack for found in ranked})
        mark = marks[ranked[0].first]
        standings.append(Standing(metric, ranked[0], single, clean.get(victim(ranked[0])), attacks, mark))
    return sorted(standings, key=lambda standing: (*budget_order(standing), -standing.value, standing.rejector))


def budget_order(standing: Standing) -> tuple[bool, Fraction]:
    """Sort key: linf before l2, small before large."""
    first = standing.strongest.first
    return first.norm != "linf", Fraction(first.eps)


def main_budget(standings: Sequence[Standing]) -> str:
    """Return the budget with most rejectors, then most attacks; of equals linf first, then the largest."""
    groups: dict[str, list[Standing]] = {}
    for standing in standings:
        groups.setdefault(standing.budget, []).append(standing)

    def rank(budget: str) -> tuple[float, ...]:
        group = groups[budget]
        is_l2, radius = budget_order(group[0])
        return -len(group), -max(standing.attacks for standing in group), is_l2, -float(radius)

    return min(groups, key=rank)
