"""No attack: unchanged inputs."""

from dataclasses import dataclass

from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Victim


@dataclass(frozen=True)
class Clean(Attack):
    """Returns the clean images; every plan contains it."""

    norms = frozenset()
    needs_budget = False
    maximises = "nothing: the inputs as they are"
    cost = "0 gradients an image"

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        """Return the images unchanged."""
        return Moved(batch.images)

    def gradients_per_image(self, classes: int) -> int:
        """Return 0."""
        return 0
