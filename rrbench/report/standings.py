"""Each rejector at its weakest: for every budget the attack that harms it most. `summary` puts it into words.

Rejectors are ranked only by attacks that all ranked ones met: who met fewer attacks would look better than it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import fmean

from rrbench.metrics.intervals import Interval, share_interval
from rrbench.rows.repeats import gather, names, victim_marks
from rrbench.rows.row import COLUMNS, ResultRow, stated
from rrbench.rows.sight import looks
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
    for budget in dict.fromkeys(key[1:] for key in groups):
        own = [group for key, group in groups.items() if key[1:] == budget]
        shared = _shared_attacks([group for group in own if ORACLE not in group[0].notes])
        everything = {found.first.attack for group in own for found in group}
        for group in own:
            names_met = {found.first.attack for found in group}
            is_ranked = shared <= names_met and ORACLE not in group[0].notes
            ordered = sorted(group, key=lambda found: (found.mean(metric), found.first.attack))
            counting = [found for found in ordered if not is_ranked or not shared or found.first.attack in shared]
            standings.append(
                Standing(
                    metric,
                    counting[0],
                    next((found for found in counting if "members" not in stated(found.first)), counting[0]),
                    clean.get(victim(counting[0])),
                    len(names_met),
                    marks[counting[0].first],
                    tuple(sorted(shared)) if is_ranked else (),
                    tuple(sorted(everything - names_met)),
                    ordered[0] if ordered[0] is not counting[0] else None,
                )
            )
    return sorted(
        standings,
        key=lambda standing: (*budget_order(standing), not standing.is_ranked, -standing.value, standing.rejector),
    )


def _shared_attacks(groups: Sequence[Sequence[Measured]]) -> frozenset[str]:
    """Return the attacks that decide ranks: all that those have in common who met the decisive one; empty if none is.

    The decisive attack is the worst case, else one that looks at the rejector, else the dearest, among those tried on
    at least half as many rejectors as the most tried one is.
    """
    met: dict[str, list[Measured]] = {}
    for group in groups:
        for found in group:
            met.setdefault(found.first.attack, []).append(found)
    most = max(map(len, met.values()), default=0)
    if len(groups) > 1 and most < 2:
        return frozenset()
    usual = [attack for attack, found in met.items() if 2 * len(found) >= most]

    def strength(attack: str) -> tuple[bool, bool, float, int]:
        row = met[attack][0].first
        return is_worst_case(row), bool(looks(row)), row.gradients or 0.0, len(met[attack])

    decisive = max(usual, key=strength, default="")
    names_met = [{found.first.attack for found in group} for group in groups]
    return (
        frozenset.intersection(*(frozenset(each) for each in names_met if decisive in each))
        if decisive
        else frozenset()
    )


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
