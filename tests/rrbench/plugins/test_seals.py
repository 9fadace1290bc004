"""A sealed tensor can be passed on, but no operation can read it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rrbench.errors import CellError
from rrbench.protocols import Calibration, Outputs, Victim
from rrbench.seals import Hidden, sealed
from rrbench_attacks.pgd import Pgd
from rrbench_baselines.kd import Kd
from rrbench_baselines.rr import RR
from wrong_attacks import Climbing
from wrong_rejectors import Sure

WHY = "X reads features: write needs"

READS: dict[str, Callable[[Tensor], Any]] = {
    "method": lambda tensor: tensor.mean(1),
    "after a slice": lambda tensor: tensor[:, 0] + 1,
    "left operand": lambda tensor: tensor * 2,
    "right operand": lambda tensor: 2 - tensor,
    "with a tensor": lambda tensor: torch.ones(3, 2) @ tensor,
    "minus": lambda tensor: -tensor,
    "comparison": lambda tensor: tensor > 0,
    "cat": lambda tensor: torch.cat([torch.ones(1, 2), tensor]),
    "function": lambda tensor: F.normalize(tensor),
    "linalg": lambda tensor: torch.linalg.vector_norm(tensor, dim=1),
    "shape": lambda tensor: tensor.shape,
    "size": lambda tensor: tensor.size(1),
    "length": lambda tensor: len(tensor),
    "item": lambda tensor: tensor[0, 0].item(),
    "float": lambda tensor: float(tensor),
    "truth": lambda tensor: bool(tensor),
    "list": lambda tensor: tensor.tolist(),
    "numpy": lambda tensor: tensor.numpy(),
    "array": lambda tensor: np.asarray(tensor),
    "loop": lambda tensor: list(tensor),
    "double": lambda tensor: tensor.double(),
    "in place": lambda tensor: torch.zeros(3).add_(tensor),
    "data": lambda tensor: tensor.data,
    "operator": lambda tensor: torch.ops.aten.exp(tensor),
    "gradient": lambda tensor: tensor.requires_grad_(),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading_says_why(read: Callable[[Tensor], Any]) -> None:
    with pytest.raises(CellError, match=f"^{WHY}$"):
        read(sealed(WHY))


def test_handing_on_is_allowed() -> None:
    closed = sealed(WHY)
    outputs = Outputs(closed, torch.ones(4, 3), closed)
    part = outputs.at(torch.tensor([0, 2]))
    features, logits, _ = part
    assert logits.shape == (2, 3)
    assert isinstance(features, Tensor)
    assert outputs._replace(logits=logits).features is closed
    assert closed.detach()[:, 0] is closed
    assert closed.device == torch.device("cpu")
    weight = torch.ones(3, requires_grad=True)
    again = checkpoint(lambda piece: (piece.logits * weight).sum(1), part, use_reentrant=False)
    assert again.tolist() == [3.0, 3.0]


def test_what_is_declared_is_the_very_tensor() -> None:
    parts = Outputs(torch.rand(4, 5), torch.rand(4, 3), torch.rand(4, 1))
    assert all(shown is given for shown, given in zip(Kd().shown(parts), parts, strict=True))
    features, logits, head = RR().shown(parts)
    assert features is not parts.features
    assert logits is parts.logits
    assert head is parts.head


def test_what_is_declared_and_missing_is_named() -> None:
    outputs = Outputs(torch.rand(4, 0), torch.rand(4, 3), torch.rand(4, 0))
    with pytest.raises(CellError, match=r"^Kd needs features, and this network gives none$"):
        Kd().shown(outputs).features.sum()
    with pytest.raises(CellError, match=r"^RR needs head, and this network gives none$"):
        RR().certainty(RR().shown(outputs))


def test_a_blind_attack_sees_the_network_alone_and_an_adaptive_one_everything() -> None:
    calibration = Calibration(0.5, 0.5, 0.1)
    victim = Victim(lambda images: Outputs(images, images, images), Sure(), calibration)
    assert victim.seen_by(Climbing()) is victim
    blind = victim.seen_by(Pgd(1))
    assert blind.network is victim.network
    why = "^Pgd reads the rejector: write is_adaptive = True$"
    outputs = victim.network(torch.rand(2, 3))
    for look in (
        lambda: blind.certainty(outputs, torch.arange(2)),
        lambda: blind.log_certainty(outputs, torch.arange(2)),
        lambda: blind.rejector.fitted,
        lambda: bool(blind.calibration),
        lambda: tuple(blind.calibration or ()),
        lambda: blind._replace(network=victim.network).rejector.is_probability,
    ):
        with pytest.raises(CellError, match=why):
            look()
    with pytest.raises(CellError, match=r"^no$"):
        list(Hidden("no"))
    with pytest.raises(CellError, match=r"^no$"):
        Hidden("no")[0]


def test_sealing_changes_no_bit_of_a_score() -> None:
    outputs = Outputs(torch.rand(40, 5), torch.randn(40, 3), torch.randn(40, 1))
    labels = torch.zeros(40, dtype=torch.long)
    victim = Victim(lambda images: outputs, RR())
    assert torch.equal(victim.certainty(outputs, labels), RR().certainty(outputs))
    loss = F.cross_entropy(outputs.logits, labels)
    assert torch.equal(victim.training_loss(outputs, labels, loss), RR().training_loss(outputs, labels, loss))
