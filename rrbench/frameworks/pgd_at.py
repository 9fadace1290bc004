"""PGD-AT: cross-entropy on PGD's images (Madry et al., 2018, arXiv 1706.06083)."""

from dataclasses import dataclass

from torch import Tensor
from torch.nn import functional as F

from rrbench.ascent import cross_entropy
from rrbench.frameworks.inner import InnerPgd
from rrbench.protocols import Batch, Draws, Network, Victim


@dataclass(frozen=True)
class PgdAt(InnerPgd):
    """Train on the last image of PGD in the linf ball.

    Batch norm is in train mode during the attack, as in RR's released code; their text implies eval mode.
    """

    paper = "Madry et al. 2018, arXiv 1706.06083"
    minimises = "cross-entropy on PGD's images"

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Attack, then return cross-entropy on the moved images, with the rejector's loss."""
        outputs = victim.network(self.move(victim.network, batch, draws))
        return victim.training_loss(outputs, batch.labels, F.cross_entropy(outputs.logits, batch.labels))

    def move(self, network: Network, batch: Batch, draws: Draws) -> Tensor:
        """Climb cross-entropy."""
        return self.climb(network, batch, self.uniform_start(batch, draws), cross_entropy)

    def gradients_per_image(self) -> int:
        """Return the attack's steps plus the weight update."""
        return self.steps + 1
