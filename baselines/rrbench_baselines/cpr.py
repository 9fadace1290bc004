"""CPR: rejects inputs whose prediction a small push changes (Chen et al., 2023, arXiv 2305.01139)."""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from rrbench.ascent import ascend, cross_entropy, margin
from rrbench.protocols import Network, Outputs, Rejector
from rrbench.ranges import above, at_least


@dataclass
class Cpr(Rejector):
    """Certainty is the predicted class's lead after a small PGD against it: below 0 if the prediction changes.

    The published rule is its own threshold, 0. Differs from the paper: a lead instead of yes or no gives attacks
    a gradient and inputs an order. Gradients pass through the pushed image; the push consists of signs and has none.
    """

    own_threshold = 0.0
    paper = "Chen et al. 2023, arXiv 2305.01139"
    scores = "the predicted class's lead in logits after a small PGD against it; accepts from 0 on"

    eps: Fraction = Fraction(11, 2000)  # the authors', for CIFAR-10 at 8/255; linf
    step: Fraction = Fraction(1, 1000)
    steps: int = 10

    def __post_init__(self) -> None:
        above(0, eps=self.eps, step=self.step)
        at_least(1, steps=self.steps)

    def look(self, network: Network, images: Tensor, outputs: Outputs) -> Tensor:
        """Push each image away from its own prediction, starting at the image, and return the lead that remains."""
        predicted = outputs.logits.argmax(1)

        def objective(moved: Outputs) -> Tensor:
            return cross_entropy(moved, predicted)

        eps, step = float(self.eps), float(self.step)
        moved = ascend(network, images, images, objective, norm="linf", radius=eps, step=step, steps=self.steps)
        return margin(network(carried(images, moved)).logits, predicted)[:, None]

    def gradients_per_look(self) -> int:
        """Count the push and the pass over the pushed image."""
        return self.steps + 1

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the lead."""
        return outputs.head[:, -1].double()


def carried(images: Tensor, moved: Tensor) -> Tensor:
    """Return moved images as a function of the original images, with a constant push, for gradients."""
    return torch.where(images == moved, images, images + (moved - images).detach())
