import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from rrbench.compute.draws import HashedDraws
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Calibration, Moved, Norm, Outputs, Rejector, Victim
from rrbench_attacks.over_reject import OverReject
from small_rejectors import Confidence, Constant

NORMS: list[Norm] = ["linf", "l2"]
SURE = 1.5  # the lead in logits below which answers are refused


@dataclass
class Signed(Rejector):
    """The logit of class 1: certain of it, doubtful of class 0, and no probability."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits[:, 1]


def network(images: Tensor) -> Outputs:
    """Two classes; the lead of class 1 is linear in 64 pixels."""
    flat = images.flatten(1)
    lead = (flat - 0.5) @ WEIGHTS
    return Outputs(flat, torch.stack([torch.zeros_like(lead), lead], 1), flat[:, :0])


WEIGHTS = torch.randn(64, generator=torch.Generator().manual_seed(0))


def inputs(leads: list[float], labels: list[int]) -> Batch:
    """Inputs near the middle of [0, 1] with these leads of class 1."""
    images = 0.4 + 0.2 * torch.rand(len(leads), 64, generator=torch.Generator().manual_seed(1))
    step = torch.tensor(leads) - (images - 0.5) @ WEIGHTS
    images = images + step[:, None] * WEIGHTS / WEIGHTS.square().sum()
    return Batch(images.view(-1, 1, 8, 8), torch.tensor(labels), torch.arange(len(leads)))


def run(
    attack: OverReject, batch: Batch, norm: Norm, rejector: Rejector | None = None, threshold: float | None = None
) -> Moved:
    threshold = 1 / (1 + math.exp(-SURE)) if threshold is None else threshold
    victim = Victim(network, rejector or Confidence(), Calibration(threshold, math.nan, math.nan))
    return attack(victim, batch, Budget(norm, None), HashedDraws(0))


def distances(moved: Moved, batch: Batch, norm: Norm) -> Tensor:
    delta = (moved.images - batch.images).flatten(1)
    sizes: Tensor = torch.linalg.vector_norm(delta, ord=math.inf if norm == "linf" else 2, dim=1)
    return sizes


def size(norm: Norm) -> float:
    """How much a push of length 1 can change the lead."""
    return float(torch.linalg.vector_norm(WEIGHTS, ord=1 if norm == "linf" else 2))


@pytest.mark.parametrize("norm", NORMS)
def test_it_finds_the_nearest_point_where_confidence_falls_below_the_threshold(norm: Norm) -> None:
    leads = [1.6, 2.0, 3.0, 4.0, -1.8, -2.5, -5.0]
    batch = inputs(leads, [1, 1, 1, 1, 0, 0, 0])
    moved = run(OverReject(steps=20), batch, norm)
    ratio = distances(moved, batch, norm) / ((torch.tensor(leads).abs() - SURE) / size(norm))
    assert moved.reached is not None
    assert moved.reached.all()
    assert ratio.min() > 1 - 1e-3
    assert ratio.max() < 1.05
    outputs = network(moved.images)
    assert torch.equal(outputs.logits.argmax(1), batch.labels)
    assert (Confidence().certainty(outputs) < 1 / (1 + math.exp(-SURE))).all()


@pytest.mark.parametrize("norm", NORMS)
def test_a_certainty_that_is_no_probability_is_descended_as_it_is(norm: Norm) -> None:
    batch = inputs([2.0, 4.0], [1, 1])
    moved = run(OverReject(steps=20), batch, norm, Signed(), threshold=1.0)
    ratio = distances(moved, batch, norm) / (torch.tensor([1.0, 3.0]) / size(norm))
    assert ratio.min() > 1 - 1e-3
    assert ratio.max() < 1.05


@pytest.mark.parametrize("norm", NORMS)
def test_what_is_refused_or_wrong_already_stays_where_it_is(norm: Norm) -> None:
    batch = inputs([1.0, -0.5, 3.0, 0.3], [1, 0, 0, 0])  # two refused, one wrong, one wrong and refused
    moved = run(OverReject(), batch, norm)
    assert moved.reached is not None
    assert moved.reached.tolist() == [True, True, False, False]
    assert torch.equal(moved.images, batch.images)


@pytest.mark.parametrize("norm", NORMS)
def test_a_wrong_answer_that_is_refused_does_not_count(norm: Norm) -> None:
    batch = inputs([2.0], [1])
    # Class 1 is refused at a lead below -1 only, and there it is no longer predicted.
    moved = run(OverReject(steps=20), batch, norm, Signed(), threshold=-1.0)
    assert moved.reached is not None
    assert not moved.reached.any()
    assert torch.equal(moved.images, batch.images)


@pytest.mark.parametrize("norm", NORMS)
def test_an_answer_pushed_over_the_edge_climbs_back(norm: Norm) -> None:
    batch = inputs([2.0], [1])
    # Refused and still right only at leads from 0 to 0.05.
    moved = run(OverReject(steps=20), batch, norm, Signed(), threshold=0.05)
    assert moved.reached is not None
    assert moved.reached.all()
    lead = network(moved.images).logits[:, 1]
    assert 0 < float(lead) < 0.05


@pytest.mark.parametrize("norm", NORMS)
def test_a_threshold_below_every_certainty_cannot_be_crossed(norm: Norm) -> None:
    batch = inputs([2.0, -3.0], [1, 0])
    moved = run(OverReject(steps=5), batch, norm, threshold=0.5)
    assert moved.reached is not None
    assert not moved.reached.any()
    assert torch.equal(moved.images, batch.images)


@pytest.mark.parametrize("norm", NORMS)
def test_the_batch_does_not_change_what_an_image_gets(norm: Norm) -> None:
    batch = inputs([1.6, 0.2, 3.0, -4.0, 2.0, 5.0], [1, 1, 1, 0, 0, 1])
    attack = OverReject(steps=10, searches=6, restarts=2)
    whole = run(attack, batch, norm)
    parts = [run(attack, batch.at(piece), norm) for piece in (slice(0, 1), slice(1, 4), slice(4, 6))]
    torch.testing.assert_close(torch.cat([part.images for part in parts]), whole.images, rtol=0, atol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_more_searches_never_find_a_farther_point(norm: Norm) -> None:
    batch = inputs([1.6, 3.0, -4.0], [1, 1, 0])
    few, more = (run(OverReject(steps=20, searches=searches), batch, norm) for searches in (4, 8))
    assert (distances(more, batch, norm) <= distances(few, batch, norm) + 1e-7).all()


@pytest.mark.parametrize("norm", NORMS)
def test_images_stay_in_range(norm: Norm) -> None:
    batch = inputs([3.0] * 4, [1] * 4)
    edge = batch._replace(images=(batch.images * 2 - 0.5).clamp(0, 1))
    moved = run(OverReject(steps=10, restarts=2), edge, norm)
    assert moved.images.min() >= 0
    assert moved.images.max() <= 1


def test_what_cannot_be_attacked_says_why() -> None:
    batch = inputs([3.0], [1])
    with pytest.raises(CellError, match=r"deployed threshold"):
        run(OverReject(), batch, "linf", threshold=math.nan)
    with pytest.raises(CellError, match=r"no gradient"):
        run(OverReject(), batch, "linf", Constant())
    with pytest.raises(CellError, match=r"NaN or infinite"):
        run(OverReject(), batch._replace(images=batch.images * math.nan), "linf")
    with pytest.raises(ValueError, match=r"at least 1"):
        OverReject(steps=0)
