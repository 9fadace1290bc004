"""Rejectors of one line each, for tests of attacks."""

from dataclasses import dataclass

import torch
from torch import Tensor

from rrbench.protocols import Outputs, Rejector


@dataclass
class Confidence(Rejector):
    is_probability = True

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.double().softmax(1).amax(1)


@dataclass
class Rectified(Confidence):
    def certainty(self, outputs: Outputs) -> Tensor:
        return super().certainty(outputs) * outputs.head[:, 0].double().sigmoid()


@dataclass
class Energy(Rejector):
    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.logsumexp(1)


@dataclass
class Constant(Rejector):
    def certainty(self, outputs: Outputs) -> Tensor:
        return torch.ones(len(outputs.logits))
