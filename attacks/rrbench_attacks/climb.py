"""What attacks that climb from random starts share: settings, their checks, and the climb itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rrbench.ascent import Keep, Score, Select, Until, doubt_of, search
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Victim


@dataclass(frozen=True, kw_only=True)
class Climb(Attack):
    """Gradient ascent from random starts; the subclass chooses the objectives."""

    cost = "steps x restarts gradients an image"

    steps: int
    restarts: int = 1
    step: Fraction | None = None  # None: a quarter of the radius
    keep: Keep = "best"
    select: Select = "evade"

    def __post_init__(self) -> None:
        check_effort(self.steps, self.restarts, self.step)

    def climb(
        self,
        victim: Victim,
        batch: Batch,
        budget: Budget,
        draws: Draws,
        objectives: Sequence[Score],
        certainty: Score | None = None,
        until: Until = "end",
        narrow: int | None = None,
    ) -> Moved:
        """Climb each objective from each start, and keep one answer per input; `certainty` defaults to the victim's."""
        return search(
            victim.network,
            batch,
            budget,
            draws,
            objectives,
            certainty or victim.certainty,
            steps=self.steps,
            restarts=self.restarts,
            step=step_size(self.step, budget),
            keep=self.keep,
            select=self.select,
            # A blind attack prefers confident images, which do not lie on the border.
            doubt=doubt_of(victim.network) if self.is_adaptive else 0.0,
            until=until,
            narrow=narrow,
        )

    def gradients_per_image(self, classes: int) -> int:
        """Return steps x restarts."""
        return self.steps * self.restarts


def check_effort(steps: int, restarts: int, step: Fraction | None) -> None:
    """Refuse settings that return clean images or go downhill: every network would look robust."""
    if steps < 0 or restarts < 1 or (step is not None and step <= 0):
        raise ValueError("steps must be at least 0, restarts at least 1, and step above 0")


def step_size(step: Fraction | None, budget: Budget) -> float:
    """Return the step as a float; by default a quarter of the radius, like 2/255 for 8/255."""
    return float(step) if step is not None else budget.eps / 4
