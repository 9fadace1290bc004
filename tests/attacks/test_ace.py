import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.metrics.measures import auc
from rrbench.protocols import Batch, Budget, Calibration, Norm, Outputs, Rejector, Victim
from rrbench_attacks.ace import Ace
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.energy import Energy
from rrbench_baselines.kd import Kd

DRAWS = HashedDraws(2)
WEIGHTS = torch.tensor([1.0, -2.0, 2.0, -4.0])


def network(images: Tensor) -> Outputs:
    """Two classes; the lead of class 1 is linear in the pixels."""
    flat = images.flatten(1)
    lead = (flat - 0.5) @ WEIGHTS
    return Outputs(flat, torch.stack([torch.zeros_like(lead), lead], 1), flat[:, :0])


def leading(leads: list[float], labels: list[int]) -> Batch:
    """Inputs inside [0, 1] with these leads of class 1."""
    images = 0.5 + torch.tensor(leads)[:, None] * WEIGHTS / WEIGHTS.square().sum()
    return Batch(images.view(-1, 1, 2, 2), torch.tensor(labels), torch.arange(len(leads)))


def moved_by(leads: list[float], labels: list[int], attack: Ace, budget: Budget) -> Tensor:
    batch = leading(leads, labels)
    moved = attack(Victim(network, Confidence()), batch, budget, DRAWS).images
    assert (network(moved).logits.argmax(1) == network(batch.images).logits.argmax(1)).all()
    return (moved - batch.images).flatten(1)


def test_right_answers_lose_lead_and_wrong_ones_gain_it() -> None:
    delta = moved_by([1.0, 1.0, -1.0, -1.0], [1, 0, 0, 1], Ace(), Budget("linf", Fraction(1, 20)))
    along = 0.05 * WEIGHTS.sign()
    torch.testing.assert_close(delta, torch.stack([-along, along, along, -along]), atol=1e-6, rtol=0)


def test_the_radius_is_halved_until_the_prediction_stays() -> None:
    # A radius of 1/10 takes 9 * 0.1 off a lead of 0.5, half of it 0.45: the first that leaves the answer as it is.
    delta = moved_by([0.5, 0.2, 0.95], [1, 1, 1], Ace(), Budget("linf", Fraction(1, 10)))
    sizes = torch.tensor([0.05, 0.0125, 0.1])
    torch.testing.assert_close(delta, -sizes[:, None] * WEIGHTS.sign(), atol=1e-6, rtol=0)


def test_another_share_is_taken_where_it_is_asked_for() -> None:
    delta = moved_by([0.5], [1], Ace(shrink=0.9), Budget("linf", Fraction(1, 10)))
    # 0.9 * 0.9^k < 0.5 first for k = 6.
    torch.testing.assert_close(delta, -0.1 * 0.9**6 * WEIGHTS.sign()[None], atol=1e-6, rtol=0)


def test_in_l2_it_goes_straight_across_the_boundary_s_direction() -> None:
    delta = moved_by([1.0, 1.0], [1, 0], Ace(), Budget("l2", Fraction(1, 10)))
    unit = 0.1 * WEIGHTS / WEIGHTS.norm()
    torch.testing.assert_close(delta, torch.stack([-unit, unit]), atol=1e-6, rtol=0)


def test_an_answer_that_no_radius_leaves_as_it_is_keeps_its_image() -> None:
    delta = moved_by([1e-4], [1], Ace(searches=3), Budget("linf", Fraction(1, 10)))
    assert not delta.any()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("rejector", [Confidence(), Energy(), Kd(g=0.1)], ids=lambda rejector: type(rejector).__name__)
def test_it_lowers_the_auc_of_any_rejector_and_leaves_the_accuracy(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], rejector: Rejector, norm: Norm
) -> None:
    model = build_network(rejector)
    budget = Budget(norm, Fraction(1, 50) if norm == "linf" else Fraction(1, 5))
    with torch.no_grad():
        rejector.fit(model(patterns.images), patterns.labels)
    labels = torch.where(torch.arange(100) % 3 == 0, (patterns.labels + 1) % 4, patterns.labels)
    batch = patterns._replace(labels=labels)
    victim = Victim(model, rejector, Calibration(0.0, 0.0, 1.0))
    moved = Ace()(victim, batch, budget, DRAWS).images
    with torch.no_grad():
        before, after = model(batch.images), model(moved)
    assert torch.equal(before.logits.argmax(1), after.logits.argmax(1))
    right = (after.logits.argmax(1) == labels).numpy()
    areas = [auc(rejector.certainty(outputs).double().numpy(), right) for outputs in (before, after)]
    assert areas[0] is not None
    assert areas[1] is not None
    assert areas[1] < areas[0] - 0.02


@pytest.mark.parametrize("settings", [{"shrink": 0.0}, {"shrink": 1.0}, {"searches": 0}, {"shrink": math.nan}])
def test_settings_without_meaning_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"^(shrink|searches) must be"):
        Ace(**settings)  # type: ignore[arg-type]
