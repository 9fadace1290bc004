from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.protocols import Batch, Budget, Outputs, Rejector, Victim
from rrbench_attacks.gama import Gama, GamaFw, GamaPgd, corner, drops, guide_weight, guided_margin
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("one_thread")

DRAWS = HashedDraws(5)
EPS = 0.05
BUDGET = Budget("linf", Fraction(1, 20))
BOTH = pytest.mark.parametrize("kind", [GamaPgd, GamaFw])


def attacked(attack: Gama, network: Callable[[Tensor], Outputs], batch: Batch) -> Tensor:
    return attack(Victim(network, Confidence()), batch, BUDGET, DRAWS).images


# The schedules and the objective, by hand.


def test_the_guides_weight_falls_by_two_a_step_and_is_gone_after_a_quarter() -> None:
    found = [guide_weight(50.0, index, 100) for index in range(100)]
    expected = [50.0 - 2 * index for index in range(26)] + [0.0] * 74
    assert found == pytest.approx(expected)


def test_with_half_as_many_steps_the_guides_weight_falls_twice_as_fast() -> None:
    found = [guide_weight(50.0, index, 50) for index in (0, 1, 12, 13, 49)]
    assert found == pytest.approx([50, 46, 2, 0, 0])


def test_the_step_shrinks_after_60_and_85_per_cent_of_the_steps() -> None:
    assert [drops(index, 100) for index in (0, 59, 60, 84, 85, 99)] == [0, 0, 1, 1, 2, 2]
    assert [drops(index, 50) for index in (29, 30, 42, 43)] == [0, 1, 1, 2]
    assert [drops(index, 1) for index in (0,)] == [0]


def test_sign_steps_are_twice_the_radius_then_a_tenth_then_a_hundredth_of_that() -> None:
    images, gradient = torch.zeros(1, 1, 1, 3), torch.tensor([[[[0.2, -3.0, 0.0]]]])
    moves = [GamaPgd().move(images + 0.5, images, gradient, EPS, index) for index in (0, 60, 85)]
    for moved, step in zip(moves, (0.1, 0.01, 0.001), strict=True):
        torch.testing.assert_close(moved, torch.tensor([[[[0.5 + step, 0.5 - step, 0.5]]]]))


def test_frank_wolfe_steps_go_half_then_a_tenth_then_a_fiftieth_of_the_way_to_the_corner() -> None:
    images, gradient = torch.full((1, 1, 1, 2), 0.5), torch.tensor([[[[0.2, -3.0]]]])
    start = images + torch.tensor([0.01, 0.03])
    moves = [GamaFw().move(start, images, gradient, EPS, index) for index in (0, 60, 85)]
    for moved, share in zip(moves, (0.5, 0.1, 0.02), strict=True):
        expected = [0.5 + 0.01 + share * (0.05 - 0.01), 0.5 + 0.03 + share * (-0.05 - 0.03)]
        torch.testing.assert_close(moved.flatten(), torch.tensor(expected))


def test_the_objective_is_the_margin_of_probabilities_plus_the_weighted_distance_from_the_start() -> None:
    probability = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.3, 0.6]], dtype=torch.float64)
    reference = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.3, 0.6]], dtype=torch.float64)
    outputs = Outputs(probability, probability.log(), probability)
    value = guided_margin(outputs, torch.tensor([0, 0]), reference, 2.0)
    assert value.tolist() == pytest.approx([0.2 - 0.7 + 2 * (0.04 + 0.01 + 0.01), 0.6 - 0.1])


def test_the_objectives_gradient_is_that_of_finite_differences() -> None:
    logits = HashedDraws(3).normal(torch.arange(5), (4,), 0).double().requires_grad_()
    reference = torch.full((5, 4), 0.25, dtype=torch.float64)

    def objective(logits: Tensor) -> Tensor:
        return guided_margin(Outputs(logits, logits, logits), torch.arange(5) % 4, reference, 3.0)

    (gradient,) = torch.autograd.grad(objective(logits).sum(), logits)
    for column, ahead in enumerate(1e-5 * torch.eye(4, dtype=torch.float64)):
        difference = (objective(logits + ahead) - objective(logits - ahead)) / 2e-5
        torch.testing.assert_close(gradient[:, column], difference.detach(), atol=1e-8, rtol=0)


def test_a_very_sure_network_still_has_a_gradient() -> None:
    logits = torch.tensor([[30.0, 0.0]], requires_grad=True)
    value = guided_margin(Outputs(logits, logits, logits), torch.tensor([0]), torch.tensor([[1.0, 0.0]]), 0.0)
    (gradient,) = torch.autograd.grad(value.sum(), logits)
    assert gradient[0, 0] < 0 < gradient[0, 1]


# The whole attack.


class Recording(nn.Module):
    """Remembers the images that it is shown."""

    def __init__(self, network: Callable[[Tensor], Outputs]) -> None:
        super().__init__()
        self.network, self.shown = network, list[Tensor]()

    def forward(self, images: Tensor) -> Outputs:
        self.shown.append(images.detach().clone())
        return self.network(images)


@BOTH
def test_it_starts_in_a_corner_that_may_lie_outside_the_range_and_answers_inside(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], kind: type[Gama]
) -> None:
    network = Recording(build_network(Confidence()))
    attack = kind(steps=4, keep="best", select="evade")
    moved = attack(Victim(network, Confidence()), patterns, BUDGET, DRAWS)
    start = corner(patterns, EPS, DRAWS, 0)
    assert torch.equal(network.shown[0], start)  # the reference
    assert torch.equal(network.shown[1], start)
    torch.testing.assert_close((start - patterns.images).abs(), torch.full_like(start, EPS), atol=1e-6, rtol=0)
    assert 0.4 < (start > patterns.images).float().mean() < 0.6
    assert start.min() < 0
    assert start.max() > 1
    for images in (moved.images, moved.boldest, *network.shown[2:]):
        assert images is not None
        assert images.min() >= 0
        assert images.max() <= 1
        assert (images - patterns.images).abs().max() <= EPS + 1e-6


def literal(network: Callable[[Tensor], Outputs], batch: Batch, steps: int, is_pgd: bool) -> Tensor:
    """GAMA as METHODS.md puts it, with batch means and the perturbation as the variable."""
    eps, step, share, weight = EPS, 2 * EPS, 0.5, 50.0
    delta = corner(batch, eps, DRAWS, 0) - batch.images
    reference = network(batch.images + delta).logits.softmax(1).detach()
    for index in range(steps):
        if index in (steps * 60 // 100, steps * 85 // 100):
            step, share = step / 10, share / 5
        images = (batch.images + delta).requires_grad_()
        probability = network(images).logits.softmax(1)
        true = probability[torch.arange(batch.size), batch.labels]
        other = probability.scatter(1, batch.labels[:, None], -1.0).amax(1)
        loss = (other - true).mean() + weight * (reference - probability).pow(2).sum(1).mean()
        weight = max(0.0, weight - 50.0 / (steps / 4))
        sign = torch.autograd.grad(loss, images)[0].sign()
        delta = delta + step * sign if is_pgd else (1 - share) * delta + share * eps * sign
        delta = ((batch.images + delta).clamp(0, 1) - batch.images).clamp(-eps, eps)
    return batch.images + delta


@BOTH
def test_it_agrees_with_a_literal_transcription(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], kind: type[Gama]
) -> None:
    network = build_network(Confidence()).double()
    batch = patterns._replace(images=patterns.images.double())
    moved = attacked(kind(steps=20), network, batch)
    expected = literal(network, batch, 20, kind is GamaPgd)
    assert ((moved - expected).abs().flatten(1).amax(1) > 1e-6).sum() <= 1


@BOTH
def test_against_a_linear_classifier_it_reaches_the_worst_corner(patterns: Batch, kind: type[Gama]) -> None:
    rows = HashedDraws(2).normal(torch.arange(2), (64,), 0)

    def network(images: Tensor) -> Outputs:
        flat = images.flatten(1)
        return Outputs(flat, (flat - 0.5) @ rows.T, flat[:, :0])

    batch = patterns._replace(labels=network(patterns.images).logits.argmax(1))
    worse = (rows[1 - batch.labels] - rows[batch.labels]).view(-1, 1, 8, 8)
    worst = (batch.images + EPS * worse.sign()).clamp(0, 1)
    torch.testing.assert_close(attacked(kind(steps=40), network, batch), worst, atol=1e-6, rtol=0)


@BOTH
def test_more_restarts_never_do_worse(
    patterns: Batch, build_network: Callable[[Rejector], nn.Module], kind: type[Gama]
) -> None:
    network, attack = build_network(Confidence()), kind(steps=10, keep="best", select="evade")

    def scores(attack: Gama) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            probability = network(attacked(attack, network, patterns)).logits.softmax(1)
        return probability.argmax(1) != patterns.labels, probability.amax(1)

    (wrong, sure), (also, surer) = scores(attack), scores(replace(attack, restarts=3))
    assert also[wrong].all()
    assert (surer >= sure - 1e-5)[wrong].all()
    assert 0 < wrong.sum() < len(wrong)


def test_no_steps_are_refused() -> None:
    with pytest.raises(ValueError, match="steps"):
        GamaPgd(steps=0)


def test_the_base_is_no_attack() -> None:
    with pytest.raises(TypeError):
        Gama()  # type: ignore[abstract]


@BOTH
def test_the_best_by_objective_is_so_by_the_margin_whatever_the_guide_weighed(kind: type[Gama]) -> None:
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Flatten(), nn.Linear(12, 16), nn.Tanh(), nn.Linear(16, 3))
    for parameter in layers.parameters():
        parameter.data.mul_(12).requires_grad_(False)

    def network(images: Tensor) -> Outputs:
        logits = layers(images)
        return Outputs(logits, logits, logits[:, :0])

    images = HashedDraws(1).uniform(torch.arange(60), (3, 2, 2), 0).float()
    batch = Batch(images, network(images).logits.argmax(1), torch.arange(60))
    found = {}
    for keep in ("last", "best"):
        moved = attacked(kind(steps=12, restarts=1, keep=keep, select="objective"), network, batch)
        outputs = network(moved)
        found[keep] = guided_margin(outputs, batch.labels, torch.zeros_like(outputs.logits), 0.0)
    assert bool((found["best"] >= found["last"] - 1e-6).all())
