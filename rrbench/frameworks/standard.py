"""Standard training: cross-entropy on clean inputs."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from rrbench.protocols import Batch, Draws, Framework, Victim


@dataclass(frozen=True)
class Standard(Framework):
    """Training without an attack."""

    chooses_epoch = False
    minimises = "cross-entropy on clean inputs"

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Return cross-entropy with the rejector's loss."""
        outputs = victim.network(batch.images)
        return victim.training_loss(outputs, batch.labels, F.cross_entropy(outputs.logits, batch.labels))

    def gradients_per_image(self) -> int:
        """Return 1 for the weight update."""
        return 1
