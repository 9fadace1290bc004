"""In which way a row is less than a published cell wants: fewer inputs, or a weaker attack. Imports no torch."""

import math
from dataclasses import dataclass
from fractions import Fraction

from rrbench.numbers import ordinal

REDUCED = "reduced"
# Settings of attacks: with less of one an attack is weaker.
EFFORT = ("steps", "restarts", "searches", "queries", "targets")
LEGEND = (
    "reduced: no row has all inputs and the whole attack; ours is on fewer inputs or by a weaker attack, as its note "
    "says. The tolerance is the same. Fewer inputs widen the interval, which rows do not have for distances; a weaker "
    "attack may leave more right answers, which no interval shows. The best is chosen among cells reduced in the same "
    "way."
)


@dataclass(frozen=True)
class Less:
    """A setting of an attack that is lower than wanted."""

    name: str
    found: Fraction
    wanted: Fraction | None  # None: all that there are

    def __str__(self) -> str:
        """Say how much of it there is."""
        return f"{self.found} of {'all' if self.wanted is None else self.wanted} {self.name}"

    @property
    def share(self) -> Fraction:
        """How much of it there is; how many all are is not known, but one more is better."""
        return self.found / (self.found + 1 if self.wanted is None else self.wanted)


@dataclass(frozen=True)
class Reduction:
    """What rows lack; rows that lack the same may be averaged."""

    n: int
    size: int  # how many inputs are wanted; 0: no row tells how many a data set of your own has
    every: int | None  # measured is every so many-th input; None: it is not known which
    less: tuple[Less, ...]

    @property
    def rank(self) -> tuple[object, ...]:
        """Sort key, the least reduced first: fewer inputs are only less exact, a weaker attack is another one."""
        strength = math.prod((each.share for each in self.less), start=Fraction(1))
        return bool(self.less), -strength, -self.n, self.every or 0

    @property
    def lacks(self) -> str:
        """What there is less of; empty if nothing is."""
        inputs = f"{self.n:,} of {self.size:,} test inputs" if self.size else f"{self.n:,} test inputs"
        inputs += f" (every {ordinal(self.every)})" if self.every else ""
        parts = [inputs] if self.every or self.n < self.size else []
        return ", ".join([*parts, *map(str, self.less)])

    @property
    def text(self) -> str:
        """The footnote of the cell."""
        return f"{REDUCED}: {self.lacks}"
