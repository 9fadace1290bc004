"""A user's own network, data and rejector, simple enough to follow by hand, for the tests of `rrbench.evaluate`."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from torch import Tensor, nn

import rrbench
from rrbench import Outputs, UseError

SHAPE = (1, 4, 4)
EPS = 0.02


class Linear(nn.Module):
    """Two classes told apart by one weight vector; logits only."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.weight = nn.Parameter(torch.randn(16, generator=generator))

    def forward(self, images: Tensor) -> Tensor:
        score = (images.flatten(1) - 0.5) @ self.weight
        return torch.stack([score, -score], 1)

    def margins(self, images: Tensor, labels: Tensor) -> Tensor:
        """Return how far right each answer is: the true logit minus the other."""
        logits: Tensor = self(images)
        return (logits[:, 0] - logits[:, 1]) * (1 - 2 * labels)


class Featured(Linear):
    """The same with features: the pixels to some power."""

    def __init__(self, power: int = 1) -> None:
        super().__init__()
        self.power = power

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override] # more than its base
        return 10 * images.flatten(1) ** self.power, super().forward(images)


def inputs(count: int = 200, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images well inside [0, 1], so that no attack within EPS is cut off; labels mostly the linear network's."""
    generator = torch.Generator().manual_seed(seed)
    images = 0.5 + 0.3 * (torch.rand(count, *SHAPE, generator=generator) - 0.5)
    flip = torch.rand(count, generator=generator) < 0.1
    return images, (Linear()(images).argmax(1) ^ flip).long()


def first_feature(outputs: Outputs) -> Tensor:
    return outputs.logits[:, 0]


def measure(*arguments: Any, **options: Any) -> pd.Series:
    (_, row), *rest = rrbench.evaluate(*arguments, **options).iterrows()
    assert not rest
    return row


def refusal(call: Callable[[], object]) -> str:
    """Return the line with which a call is refused."""
    with pytest.raises(UseError) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) >= 15
    return str(caught.value)
