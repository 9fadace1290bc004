from dataclasses import dataclass
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.protocols import Batch, Budget, Calibration, Outputs, Rejector, Victim
from rrbench_attacks.orthogonal_pgd import SelectivePgd
from rrbench_attacks.square_reject import SquareReject, side
from rrbench_baselines.confidence import Confidence

DRAWS, EPS = HashedDraws(4), 1 / 20
LINF = Budget("linf", Fraction(1, 20))
PLANES = torch.randn(3, 36, generator=torch.Generator().manual_seed(0))


@dataclass
class Rounded(Confidence):
    """Confidence in steps of a tenth: its gradient is there, and always 0."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return (10 * super().certainty(outputs)).round().div(10)


class Linear(nn.Module):
    def forward(self, images: Tensor) -> Outputs:
        flat = images.flatten(1)
        return Outputs(flat, 2 * (flat - 0.5) @ PLANES.T, flat[:, :0])


def inputs() -> Batch:
    ids = torch.arange(40)
    images = 0.2 + 0.6 * HashedDraws(1).uniform(ids, (1, 6, 6), 0)
    return Batch(images, Linear()(images).logits.argmax(1), ids)


def harmed(moved: Tensor, batch: Batch, rejector: Rejector, threshold: float) -> Tensor:
    outputs = Linear()(moved)
    is_wrong: Tensor = outputs.logits.argmax(1) != batch.labels
    return is_wrong & (rejector.certainty(outputs) >= threshold)


def surest(batch: Batch) -> Tensor:
    """Which inputs some corner of the box makes wrong with certainty at least 0.8: every lead is linear there."""
    found = torch.zeros(batch.size, dtype=torch.bool)
    for target in range(3):
        others = [other for other in range(3) if other != target]
        # The smaller of the two leads, raised as far as a corner that looks at one of them, or at both, can.
        for mix in (PLANES[others[0]], PLANES[others[1]], (PLANES[others[0]] + PLANES[others[1]]) / 2):
            corner = batch.images + EPS * (PLANES[target] - mix).sign().view(1, 1, 6, 6)
            outputs = Linear()(corner.clamp(0, 1))
            found |= (
                (outputs.logits.argmax(1) == target)
                & (batch.labels != target)
                & (Confidence().certainty(outputs) >= 0.85)
            )
    return found


def test_it_breaks_a_rounded_certainty_that_no_gradient_leads_to() -> None:
    batch = inputs()
    victim = Victim(Linear(), Rounded(), Calibration(0.8, 0.9, 0.1))
    possible = surest(batch)
    assert 5 <= possible.sum() < 40
    found = harmed(SquareReject(queries=300)(victim, batch, LINF, DRAWS).images, batch, Rounded(), 0.8)
    assert found[possible].double().mean() >= 0.9


def test_it_finds_what_an_attack_on_a_gradient_of_zero_does_not() -> None:
    batch = inputs()
    victim = Victim(Linear(), Rounded(), Calibration(0.8, 0.9, 0.1))
    by_gradient = SelectivePgd(steps=40, step=Fraction(1, 200))(victim, batch, LINF, DRAWS).images
    by_looking = SquareReject(queries=300)(victim, batch, LINF, DRAWS).images
    found, missed = (harmed(moved, batch, Rounded(), 0.8).sum() for moved in (by_looking, by_gradient))
    assert found > missed


def test_every_pixel_ends_on_a_face_of_the_box_as_published() -> None:
    batch = inputs()
    moved = SquareReject(queries=20)(Victim(Linear(), Confidence()), batch, LINF, DRAWS).images
    size = (moved - batch.images).abs()
    torch.testing.assert_close(size, torch.full_like(size, EPS), atol=1e-6, rtol=0)


def test_it_asks_for_no_gradient_and_looks_as_often_as_it_says() -> None:
    counted = Instrumented(Linear(), "fp32")
    batch = inputs()
    SquareReject(queries=7)(Victim(counted, Confidence()), batch, LINF, DRAWS)
    assert counted.gradients == 0
    assert counted.forwards == 7 * batch.size
    assert SquareReject(queries=7).gradients_per_image(10) == 0


def test_more_queries_never_do_worse() -> None:
    batch, rejector = inputs(), Confidence()
    victim = Victim(Linear(), rejector)
    before: Tensor | None = None
    for queries in (5, 40):
        # The same squares in the same order: only the schedule of their sizes must not differ.
        outputs = Linear()(SquareReject(queries=queries, shrink=False)(victim, batch, LINF, DRAWS).images)
        wrong = outputs.logits.argmax(1) != batch.labels
        if before is not None:
            assert wrong[before].all()
            assert wrong.sum() > before.sum()
        before = wrong


def test_squares_shrink_as_published() -> None:
    # Of 10,000 queries the share 0.8 of a 32 x 32 image is halved after 10, 50, 200 and so on.
    sides = [side(0.8, query / 10_000, 32, 32) for query in (0, 11, 51, 201, 9_000)]
    assert sides == [round((0.8 / 2**halvings * 1024) ** 0.5) for halvings in (0, 1, 2, 3, 9)]
    assert side(0.8, 0.99, 4, 4) == 1
    assert side(1.0, 0.0, 6, 4) == 4, "never larger than the image"


@pytest.mark.parametrize("settings", [{"queries": 0}, {"share": 0.0}, {"share": 1.5}])
def test_settings_without_meaning_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^(queries|share) must be"):
        SquareReject(**settings)  # type: ignore[arg-type]
