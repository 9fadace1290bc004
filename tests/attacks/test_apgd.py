import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import get_args

import pytest
import torch
from pyautoattack.autopgd_base import APGDAttack
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.ascent import best_other
from rrbench.compute.draws import HashedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.protocols import Attack, Batch, Budget, Calibration, Norm, Outputs, Rejector, Victim
from rrbench_attacks.apgd import apgd_ascend, apgd_start, checkpoints, must_halve
from rrbench_attacks.apgd_reject import RIGHT, ApgdReject, gated
from rrbench_attacks.orthogonal_pgd import SelectivePgd
from rrbench_attacks.rejection_loss import RejectionLoss
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.rr import RR

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = HashedDraws(5)
NORMS = pytest.mark.parametrize("norm", get_args(Norm))
RADII = {"linf": Fraction(1, 20), "l2": Fraction(2, 5)}


# Checkpoints and step sizes, by hand.


def test_step_sizes_are_judged_after_22_per_cent_of_the_steps_and_then_ever_more_often() -> None:
    assert checkpoints(100) == {22: 22, 41: 19, 57: 16, 70: 13, 80: 10, 87: 7, 93: 6, 99: 6}
    assert checkpoints(50) == {11: 11, 21: 10, 30: 9, 38: 8, 45: 7}
    assert checkpoints(10) == {2: 2} | dict.fromkeys(range(3, 11), 1)
    assert checkpoints(1) == {1: 1}
    assert checkpoints(0) == {}


@pytest.mark.parametrize(
    ("rises", "halved", "best", "judged", "expected"),
    [
        (2, True, 5.0, 1.0, True),  # fewer than three of four steps rose
        (3, True, 5.0, 1.0, False),
        (3, False, 5.0, 1.0, False),
        (3, False, 5.0, 5.0, True),  # enough rose, but no image was better than at the last checkpoint
        (3, True, 5.0, 5.0, False),  # where the step was halved: it has another chance
        (2, False, 5.0, 1.0, True),
    ],
)
def test_a_step_is_halved_for_few_rises_or_for_no_better_image(
    rises: float, halved: bool, best: float, judged: float, expected: bool
) -> None:
    values = [torch.tensor([value], dtype=torch.float64) for value in (rises, best, judged)]
    assert must_halve(values[0], 4, torch.tensor([halved]), values[1], values[2]).tolist() == [expected]


def as_features(images: Tensor) -> Outputs:
    flat = images.flatten(1)
    return Outputs(flat, flat, flat[:, :0])


def test_on_a_parabola_it_goes_the_way_that_was_computed_by_hand() -> None:
    images, start = torch.full((1, 1, 1, 1), 0.5), torch.full((1, 1, 1, 1), 0.75)
    shown: list[float] = []
    best = apgd_ascend(
        as_features,
        images,
        start,
        lambda outputs: -(outputs.features[:, 0] - 0.4).square(),
        norm="linf",
        radius=0.25,
        steps=10,
        observe=lambda images, outputs, value: shown.append(images.item()),
    )
    # The step is 1/2 and reaches the box's other side; from the second on, 3/4 of it plus 1/4 of the last movement.
    # Steps are judged from the second on: 0.625 is a fall, so the step halves and starts again from 0.375.
    assert shown[:7] == pytest.approx([0.75, 0.25, 0.5, 0.375, 0.625, 0.5625, 0.421875])
    assert len(shown) == 11
    assert best.item() == min(shown, key=lambda image: abs(image - 0.4))


def test_each_image_has_its_own_step() -> None:
    images = torch.tensor([0.5, 0.3, 0.6]).view(3, 1, 1, 1)
    goals = torch.tensor([0.4, 0.35, 0.9])

    def climb(rows: slice) -> Tensor:
        def objective(outputs: Outputs) -> Tensor:
            return -(outputs.features[:, 0] - goals[rows]).square()

        return apgd_ascend(as_features, images[rows], images[rows], objective, norm="linf", radius=0.25, steps=20)

    apart = torch.cat([climb(slice(index, index + 1)) for index in range(3)])
    assert torch.equal(climb(slice(0, 3)), apart)
    torch.testing.assert_close(apart.flatten(), torch.tensor([0.4, 0.35, 0.85]), atol=0.01, rtol=0)


# Start and end.


@NORMS
def test_it_starts_on_the_surface_of_the_ball(norm: Norm) -> None:
    ids = torch.arange(10)
    batch = Batch(torch.full((10, 1, 8, 8), 0.5), ids, ids)
    delta = (apgd_start(batch, norm, 0.1, DRAWS, 0) - 0.5).flatten(1)
    length = delta.abs().amax(1) if norm == "linf" else delta.norm(dim=1)
    torch.testing.assert_close(length, torch.full((10,), 0.1))
    assert not torch.equal(delta, (apgd_start(batch, norm, 0.1, DRAWS, 1) - 0.5).flatten(1))
    assert delta.mean().abs() < 0.01


@NORMS
def test_against_a_linear_classifier_it_reaches_the_worst_image(norm: Norm) -> None:
    rows = HashedDraws(2).normal(torch.arange(2), (64,), 0)
    ids = torch.arange(20)
    images = 0.5 + 0.1 * (HashedDraws(8).uniform(ids, (1, 8, 8), 0) - 0.5)
    labels = ids % 2
    worse = (rows[1 - labels] - rows[labels]).view_as(images)
    unit = worse.sign() if norm == "linf" else worse / worse.flatten(1).norm(dim=1).view(-1, 1, 1, 1)

    def network(images: Tensor) -> Outputs:
        return Outputs(images.flatten(1), images.flatten(1) @ rows.T, images.flatten(1)[:, :0])

    start = apgd_start(Batch(images, labels, ids), norm, 0.2, DRAWS, 0)
    moved = apgd_ascend(
        network,
        images,
        start,
        lambda outputs: F.cross_entropy(outputs.logits, labels, reduction="none"),
        norm=norm,
        radius=0.2,
        steps=40,
    )
    torch.testing.assert_close(moved, images + 0.2 * unit, atol=1e-4, rtol=0)


# The authors' own implementation, as packaged by others.


@NORMS
def test_on_cross_entropy_it_agrees_with_the_authors_implementation(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], norm: Norm
) -> None:
    network, radius, labels = build_network(Confidence()), float(RADII[norm]), patterns.labels
    start = apgd_start(patterns, norm, radius, DRAWS, 0)
    kind = {"linf": "Linf", "l2": "L2"}[norm]
    theirs = APGDAttack(lambda images: network(images).logits, n_iter=30, norm=kind, eps=radius, seed=0, device="cpu")
    theirs.init_hyperparam(patterns.images)
    with torch.random.fork_rng():
        _, is_right, best_loss, _ = theirs.attack_single_run(patterns.images, labels, x_init=start)
    was_wrong = torch.zeros_like(is_right)

    def observe(images: Tensor, outputs: Outputs, value: Tensor) -> None:
        was_wrong.logical_or_(outputs.logits.argmax(1) != labels)

    def objective(outputs: Outputs) -> Tensor:
        return F.cross_entropy(outputs.logits, labels, reduction="none")

    best = apgd_ascend(network, patterns.images, start, objective, norm=norm, radius=radius, steps=30, observe=observe)
    with torch.no_grad():
        loss = objective(network(best))
    assert 20 < is_right.sum() < 80
    assert abs(int(is_right.sum()) - int((~was_wrong).sum())) <= 1
    # Ways part where theirs takes the first step for a rise whatever it was, and 3/4 of rises for too few.
    assert ((loss - best_loss).abs() < 1e-3).float().mean() > 0.8
    assert abs(float((loss - best_loss).mean())) < 0.005


# Against a rejector.


@dataclass
class Head(Rejector):
    """Certainty is the head's output, which is no probability."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.head[:, 0]


def apart(images: Tensor) -> Outputs:
    """Answers by the first pixel; the second makes the rejector certain."""
    flat = images.flatten(1)
    logits = torch.stack([torch.zeros_like(flat[:, 0]), 10 * flat[:, 0] - 5], 1)
    return Outputs(flat, logits, flat[:, 1:2])


CALIBRATION = Calibration(threshold=0.55, median=0.5, scale=0.1)
TWO = Batch(torch.tensor([[0.45, 0.5], [0.55, 0.5]]).view(2, 1, 1, 2), torch.tensor([0, 1]), torch.arange(2))


def test_it_finds_the_wrong_answer_of_which_the_rejector_is_most_certain() -> None:
    attack = ApgdReject(steps=20)
    moved = attack(Victim(apart, Head(), CALIBRATION), TWO, Budget("linf", Fraction(1, 10)), DRAWS).images
    assert apart(moved).logits.argmax(1).tolist() == [1, 0]
    torch.testing.assert_close(moved[..., 1].flatten(), torch.full((2,), 0.6), atol=1e-6, rtol=0)


@NORMS
@pytest.mark.parametrize("eta", [0.5, 2.0])
def test_its_own_answer_has_the_highest_objective_of_the_wrong_ones_in_the_ball(norm: Norm, eta: float) -> None:
    attack = ApgdReject(steps=40, eta=(eta,), keep="last", select="objective")
    moved = attack(Victim(apart, Head(), CALIBRATION), TWO, Budget(norm, Fraction(1, 10)), DRAWS).images

    def objective(first: Tensor, second: Tensor, label: int) -> Tensor:
        logit = (10 * first - 5) * (1 if label == 0 else -1)  # of the other class, that of the true one being 0
        found = F.logsigmoid(logit) + eta * F.logsigmoid((second - 0.5) / 0.1)
        return torch.where(logit > 0, found, -torch.inf)  # a right answer is none

    ways = torch.linspace(-0.1, 0.1, 401)
    first, second = torch.meshgrid(ways, ways, indexing="ij")
    inside = first.square() + second.square() <= 0.01 if norm == "l2" else torch.ones_like(first, dtype=torch.bool)
    for label, (clean, answer) in enumerate(zip(TWO.images.flatten(1), moved.flatten(1), strict=True)):
        best = objective(clean[0] + first, clean[1] + second, label)[inside].max()
        assert objective(answer[0], answer[1], label) >= best - 1e-4


def test_the_certainty_of_a_right_answer_does_not_count_and_a_wrong_one_is_always_worth_more() -> None:
    logits = torch.tensor([[2.0, 0.0], [0.0, 2.0]])
    head = torch.tensor([[0.7], [0.7]], requires_grad=True)
    score = gated(best_other, 3.0, lambda outputs, labels: outputs.head.squeeze(1).log())
    right, wrong = score(Outputs(logits[:, :0], logits, head), torch.tensor([0, 0]))
    assert right.item() == pytest.approx(-math.log1p(math.exp(2)) - RIGHT)
    assert wrong.item() == pytest.approx(-math.log1p(math.exp(-2)) + 3 * math.log(0.7))
    (slope,) = torch.autograd.grad(right + wrong, head)
    assert slope.flatten().tolist() == pytest.approx([0, 3 / 0.7])


def near_and_far(images: Tensor) -> Outputs:
    """Answers 0, or 1 by the first pixel, or 2 by the second, which is farther; the rejector lets only 2 pass."""
    first, second = images.flatten(1).unbind(1)
    logits = torch.stack([torch.zeros_like(first), 10 * first - 5, 10 * second - 5.4], 1)
    return Outputs(logits[:, :0], logits, (second - first)[:, None])


@pytest.mark.parametrize(("targets", "goal"), [(1, [0.55, 0.35]), (2, [0.35, 0.55]), (7, [0.35, 0.55])])
def test_it_aims_at_the_likeliest_wrong_classes_one_after_another(targets: int, goal: list[float]) -> None:
    ids = torch.arange(8)
    batch = Batch(torch.full((8, 1, 1, 2), 0.45), torch.zeros_like(ids), ids)
    victim, budget = Victim(near_and_far, Head(), CALIBRATION), Budget("linf", Fraction(1, 10))
    attack = ApgdReject(steps=20, eta=(0.001,), targets=targets, keep="last")
    moved = attack(victim, batch, budget, DRAWS).images
    torch.testing.assert_close(moved.flatten(1), torch.tensor(goal).expand(8, 2), atol=1e-6, rtol=0)
    assert attack.gradients_per_image(3) == 20 * min(targets, 2)
    # Whoever goes for the best class at hand takes the near one, which the rejector refuses.
    nearest = near_and_far(replace(attack, targets=0)(victim, batch, budget, DRAWS).images)
    assert 1 in nearest.logits.argmax(1)


class Trembling(nn.Module):
    """Answers 1 from 0.5 on, most certain at that border; in lower precision its lead is off by up to 0.08."""

    def __init__(self, tremble: float) -> None:
        super().__init__()
        self.tremble = tremble

    def forward(self, images: Tensor) -> Outputs:
        place = images.flatten(1).mean(1)
        lead = 10 * (place - 0.5)
        lead = lead + self.tremble * (1e5 * place.detach()).sin()
        return Outputs(
            images.flatten(1)[:, :0], torch.stack([-lead / 2, lead / 2], 1), -10 * (place - 0.5).abs()[:, None]
        )


@pytest.mark.parametrize(
    "attack",
    [ApgdReject(steps=20, eta=(10.0,)), SelectivePgd(steps=40), RejectionLoss(weight=10, steps=40, restarts=2)],
)
def test_what_lower_precision_calls_wrong_at_the_border_float32_calls_wrong_too(attack: Attack) -> None:
    ids = torch.arange(64)
    batch = Batch(0.44 + 0.04 * DRAWS.uniform(ids, (1, 1, 2), 9), torch.zeros_like(ids), ids)
    seen, exact = Instrumented(Trembling(0.08), "bf16"), Trembling(0.0)
    moved = attack(Victim(seen, Head(), CALIBRATION), batch, Budget("linf", Fraction(1, 10)), DRAWS)
    assert moved.boldest is not None
    for images in (moved.images, moved.boldest):
        lead = exact(images).logits[:, 1] * 2
        assert bool((lead > 0).all())
        assert float(lead.median()) < 0.5  # and not far from the border, where the certainty is highest


@pytest.mark.parametrize("more", [{"restarts": 3}, {"eta": (0.1, 1.0)}, {"targets": 3}])
def test_more_starts_and_more_etas_never_do_worse(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], more: dict[str, object]
) -> None:
    victim, weak = Victim(build_network(RR()), RR()), ApgdReject(steps=6, eta=(0.1,))

    def scores(attack: ApgdReject) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            outputs = victim.network(attack(victim, patterns, Budget("linf", Fraction(1, 20)), DRAWS).images)
        return outputs.logits.argmax(1) != patterns.labels, victim.certainty(outputs, patterns.labels)

    (wrong, sure), (also, surer) = scores(weak), scores(replace(weak, **more))  # type: ignore[arg-type]
    assert also[wrong].all()
    assert (surer >= sure - 1e-5)[wrong].all()
    assert 0 < wrong.sum() < len(wrong)


def test_no_eta_is_refused() -> None:
    with pytest.raises(ValueError, match="eta"):
        ApgdReject(eta=())
