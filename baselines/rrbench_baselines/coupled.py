"""The coupled rejector: confidence above gamma and R-Con above one half (Pang et al., 2022, arXiv 2105.14785)."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from rrbench.protocols import Outputs
from rrbench.ranges import at_least, below
from rrbench_baselines.confidence import probabilities
from rrbench_baselines.rr import RR


@dataclass
class Coupled(RR):
    """Certainty is the smaller of Con - gamma and R-Con - 1/2; positive means accepted, without a tuned threshold."""

    inherits_training_of = "rr"
    after_training = frozenset({"score", "gamma"})
    is_probability = False
    own_threshold = torch.finfo(torch.float32).tiny  # the rule is strict: exactly 0 is rejected
    scores = "min(confidence - gamma, R-Con - 1/2) on RR's network; accepts above 0"

    score: Literal["rcon"] = "rcon"
    gamma: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, gamma=self.gamma)
        below(1, gamma=self.gamma)

    def certainty(self, outputs: Outputs) -> Tensor:
        """Return the smaller distance by which the two conditions are met."""
        confidence = probabilities(outputs, self.tau).amax(1)
        return torch.minimum(confidence - self.gamma, self.rectified(confidence, outputs) - 0.5)
