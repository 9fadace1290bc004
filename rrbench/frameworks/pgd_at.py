"""PGD-AT: cross-entropy on PGD's images (Madry et al., 2018, arXiv 1706.06083)."""

from dataclasses import dataclass
from fractions import Fraction

from torch import Tensor
from torch.nn import functional as F

from rrbench.ascent import ascend, random_start
from rrbench.modes import Mode, mode
from rrbench.protocols import Batch, Draws, Framework, Outputs, Victim


@dataclass(frozen=True)
class PgdAt(Framework):
    """Train on the last image of a PGD in the linf ball."""

    paper = "Madry et al. 2018, arXiv 1706.06083"
    minimises = "cross-entropy on PGD's images"

    eps: Fraction = Fraction(8, 255)
    step: Fraction = Fraction(2, 255)
    steps: int = 10
    attack_mode: Mode = "train"  # of batch norm while attacking: train as the released code, eval as "Bag of Tricks"

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Attack, then return cross-entropy on the moved images with the rejector's share."""

        def cross_entropy(outputs: Outputs) -> Tensor:
            return F.cross_entropy(outputs.logits, batch.labels, reduction="none")

        radius = float(self.eps)
        with mode(victim.network, self.attack_mode):
            start = random_start(batch, "linf", radius, draws, 0)
            moved = ascend(
                victim.network,
                batch.images,
                start,
                cross_entropy,
                norm="linf",
                radius=radius,
                step=float(self.step),
                steps=self.steps,
            )
        outputs = victim.network(moved)
        return victim.rejector.training_loss(outputs, batch.labels, F.cross_entropy(outputs.logits, batch.labels))

    def gradients_per_image(self) -> int:
        """Return the attack's steps and the weight update."""
        return self.steps + 1
