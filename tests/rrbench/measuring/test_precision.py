"""An attack of minimal distortion runs in float32, unless it checks its answers in float32 itself."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import nn

import rrbench
from rrbench.compute.instrumented import Instrumented
from rrbench.protocols import Attack, Batch, Budget, Draws, Moved, Victim

SEEN: list[str] = []


@dataclass(frozen=True)
class Noting(Attack):
    """Notes the precision in which it sees the network, and moves nothing."""

    def __call__(self, victim: Victim, batch: Batch, budget: Budget, draws: Draws) -> Moved:
        network = cast(Instrumented, victim.network)
        SEEN.append(network.precision)
        is_wrong = network.judge(batch.images).logits.argmax(1) != batch.labels
        return Moved(batch.images, batch.images, None if self.needs_budget else is_wrong)

    def gradients_per_image(self, classes: int) -> int:
        return 0


@dataclass(frozen=True)
class Nearest(Noting):
    needs_budget = False
    norms = frozenset({"linf"})


@dataclass(frozen=True)
class Certified(Nearest):
    certifies = True


@pytest.mark.parametrize(("attack", "expected"), [(Noting(), "bf16"), (Nearest(), "fp32"), (Certified(), "bf16")])
def test_only_an_unchecked_answer_at_the_border_needs_float32(attack: Attack, expected: str, tmp_path: Path) -> None:
    SEEN.clear()
    torch.manual_seed(0)
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(16, 3)), torch.rand(40, 1, 4, 4)
    budget = "linf:1/10" if attack.needs_budget else None
    data = (images, torch.arange(40) % 3)
    rrbench.evaluate(model, "confidence", attack, data, budget=budget, precision="bf16", out=tmp_path)
    assert set(SEEN) == {expected}
