"""Each rejector at its weakest: for every budget the attack that harms it most. `summary` puts it into words.

Rejectors are ranked only by attacks that all ranked ones met: who met fewer attacks would look better than it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

from rrbench.metrics.intervals import Interval, share_interval
from rrbench.rows.notes import ORACLE, notes_of
from rrbench.rows.repeats import Names, gather, names, victim_marks
from rrbench.rows.row import COLUMNS, ResultRow, stated
from rrbench.rows.sight import looks
from rrbench.rows.tables import budget_text

METRICS = ("deploy_joint", "deploy_robust", "acc_tpr95")  # weakness is measured by the first that the rows have


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
        return notes_of(*self.rows)

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
    shared: tuple[str, ...] = ()  # the attacks that decide its rank; empty: it has none
    untried: tuple[str, ...] = ()  # attacks that others met at this budget, and it did not
    harder: Measured | None = None  # an attack that not all met, and that harms it more

    @property
    def is_ranked(self) -> bool:
        """Whether it met every attack that decides ranks."""
        return bool(self.shared)

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


@dataclass(frozen=True)
class _Attacked:
    """One victim at one budget, under every attack that it met there."""

    mark: str
    clean: Measured | None
    measured: list[Measured]  # under each attack

    @property
    def attacks(self) -> frozenset[str]:
        return frozenset(found.first.attack for found in self.measured)

    @property
    def is_oracle(self) -> bool:
        return ORACLE in self.measured[0].notes


def find_standings(rows: Sequence[ResultRow]) -> list[Standing]:
    """Return every victim at every budget, the best first; `rows` are of one setting."""
    metric = next((name for name in METRICS if any(getattr(row, name) is not None for row in rows if row.eps)), None)
    if metric is None:
        return []
    standings = []
    for victims in _by_budget(rows, metric):
        shared = _shared_attacks([victim for victim in victims if not victim.is_oracle])
        tried = frozenset(attack for victim in victims for attack in victim.attacks)
        standings += [_standing(victim, metric, shared, tried) for victim in victims]
    return sorted(
        standings,
        key=lambda standing: (*budget_order(standing), not standing.is_ranked, -standing.value, standing.rejector),
    )


def _by_budget(rows: Sequence[ResultRow], metric: str) -> list[list[_Attacked]]:
    """Return the victims of each budget; attacks without the metric are left out."""
    marks = victim_marks(rows)
    clean: dict[tuple[Names, str], Measured] = {}
    budgets: dict[tuple[str, str], dict[tuple[Names, str], list[Measured]]] = {}
    for found in map(Measured, gather(rows)):
        row = found.first
        victim = names(row), marks[row]
        if row.attack == "clean":
            clean.setdefault(victim, found)
        if row.eps and found.values(metric):
            budgets.setdefault((row.norm, row.eps), {}).setdefault(victim, []).append(found)
    return [
        [_Attacked(victim[1], clean.get(victim), measured) for victim, measured in victims.items()]
        for victims in budgets.values()
    ]


def _standing(victim: _Attacked, metric: str, shared: frozenset[str], tried: frozenset[str]) -> Standing:
    """Return a victim under the strongest of the attacks that count; if it is not ranked, all count."""
    is_ranked = bool(shared) and shared <= victim.attacks and not victim.is_oracle
    ordered = sorted(victim.measured, key=lambda found: (found.mean(metric), found.first.attack))
    counting = [found for found in ordered if found.first.attack in shared] if is_ranked else ordered
    strongest = counting[0]
    return Standing(
        metric=metric,
        strongest=strongest,
        single=next((found for found in counting if "members" not in stated(found.first)), strongest),
        clean=victim.clean,
        attacks=len(victim.attacks),
        mark=victim.mark,
        shared=tuple(sorted(shared)) if is_ranked else (),
        untried=tuple(sorted(tried - victim.attacks)),
        harder=ordered[0] if ordered[0] is not strongest else None,
    )


def _shared_attacks(victims: Sequence[_Attacked]) -> frozenset[str]:
    """Return the attacks that decide ranks: all that those have in common who met the decisive one; empty if none is.

    The decisive attack is the worst case, else one that looks at the rejector, else the dearest, among those tried on
    at least half as many rejectors as the most tried one is.
    """
    met: dict[str, list[Measured]] = {}
    for victim in victims:
        for found in victim.measured:
            met.setdefault(found.first.attack, []).append(found)
    most = max(map(len, met.values()), default=0)
    if not met or (len(victims) > 1 and most < 2):
        return frozenset()

    def strength(attack: str) -> tuple[bool, bool, float, int]:
        row = met[attack][0].first
        return is_worst_case(row), bool(looks(row)), row.gradients or 0.0, len(met[attack])

    decisive = max((attack for attack, found in met.items() if 2 * len(found) >= most), key=strength)
    return frozenset.intersection(*(victim.attacks for victim in victims if decisive in victim.attacks))


def is_worst_case(row: ResultRow) -> bool:
    """Tell whether a row's attack is an ensemble of attacks on this victim: per input the worst of them."""
    settings = stated(row)
    return "members" in settings and "moved_on" not in settings


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
