"""PRO, perturbation-rectified detection (Chen et al., 2025, arXiv 2503.18784): the lowest confidence nearby."""

from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from rrbench.ascent import ascend
from rrbench.protocols import Network, Outputs, Rejector
from rrbench.ranges import above, at_least
from rrbench_baselines.confidence import check_tau
from rrbench_baselines.cpr import carried


@dataclass
class Pro(Rejector):
    """Certainty is the lowest confidence along a few sign steps that lower it, including the image itself.

    Differs from the paper: step and steps are fixed; the authors choose them on validation data. Gradients pass through
    the pushed images; the pushes consist of signs and have none.
    """

    is_probability = True
    paper = "Chen et al. 2025, arXiv 2503.18784"
    scores = "lowest softmax confidence over a few descent steps"

    step: Fraction = Fraction(3, 1000)  # in pixels, as in the released code
    steps: int = 3
    tau: float = 1.0

    def __post_init__(self) -> None:
        check_tau(self.tau)
        above(0, step=self.step)
        at_least(1, steps=self.steps)

    def look(self, network: Network, images: Tensor, outputs: Outputs) -> Tensor:
        """Return the log-odds of confidence after every step."""
        passed: list[Tensor] = []

        def observe(moved: Tensor, *rest: object) -> None:
            passed.append(moved)

        def objective(moved: Outputs) -> Tensor:
            return -self.log_odds(moved)

        step = float(self.step)
        radius = step * self.steps  # no effect: the steps end there
        last = ascend(
            network, images, images, objective, norm="linf", radius=radius, step=step, steps=self.steps, observe=observe
        )
        return torch.stack([self.log_odds(network(carried(images, moved))) for moved in (*passed[1:], last)], 1)

    def gradients_per_look(self) -> int:
        """Count the steps and a pass over the image after each of them."""
        return 2 * self.steps

    def log_odds(self, outputs: Outputs) -> Tensor:
        """Return log p - log(1 - p) of the largest probability: in float32 confident answers would tie at 1."""
        first, *others = (outputs.logits / self.tau).sort(1, descending=True).values.unbind(1)
        return first - torch.stack(others, 1).logsumexp(1)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the lowest confidence."""
        nearby = outputs.head[:, -self.steps :].double().amin(1)
        own = self.log_odds(outputs._replace(logits=outputs.logits.double()))
        return torch.minimum(own, nearby).sigmoid()
