"""TRADES: cross-entropy on clean images, and equal answers around them (Zhang et al., 2019, arXiv 1901.08573)."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from rrbench.ascent import project
from rrbench.compute.eval_mode import Mode, mode
from rrbench.frameworks.inner import InnerPgd
from rrbench.protocols import Batch, Draws, Network, Outputs, Victim
from rrbench.ranges import at_least


@dataclass(frozen=True)
class Trades(InnerPgd):
    """Train on the clean image and on the nearby image whose answer differs most from it."""

    paper = "Zhang et al. 2019, arXiv 1901.08573"
    minimises = "cross-entropy on clean inputs + beta KL(p(clean) || p(moved))"

    attack_mode: Mode = "eval"
    beta: float = 6.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, beta=self.beta)

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        """Attack, then return both terms, with the rejector's loss on the moved images."""
        moved = self.move(victim.network, batch, draws)
        # Moved images first, as in the released code: the order changes batch norm's running statistics.
        outputs = victim.network(moved)
        clean = victim.network(batch.images)
        loss = F.cross_entropy(clean.logits, batch.labels)
        loss = loss + self.beta * divergence(clean.logits, outputs.logits).mean()
        return victim.training_loss(outputs, batch.labels, loss)

    def move(self, network: Network, batch: Batch, draws: Draws) -> Tensor:
        """Climb the divergence from the clean answer, which stays fixed."""
        with mode(network, self.attack_mode), torch.no_grad():
            fixed = network(batch.images).logits

        def from_clean(outputs: Outputs, labels: Tensor) -> Tensor:
            return divergence(fixed, outputs.logits)

        # Noise, because the divergence has no gradient at the clean image itself.
        noise = draws.normal(batch.ids, tuple(batch.images.shape[1:]), 0).to(batch.images.dtype)
        start = project(batch.images + 0.001 * noise, batch.images, "linf", float(self.eps))
        return self.climb(network, batch, start, from_clean)

    def gradients_per_image(self) -> int:
        """Return the attack's steps plus the weight update, which passes through both images."""
        return self.steps + 2


def divergence(clean: Tensor, moved: Tensor) -> Tensor:
    """Return KL(softmax(clean) || softmax(moved)), one value per input."""
    return F.kl_div(moved.log_softmax(1), clean.log_softmax(1), reduction="none", log_target=True).sum(1)
