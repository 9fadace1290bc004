import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.ascent import best_other
from rrbench.compute.draws import HashedDraws
from rrbench.compute.eval_mode import Mode
from rrbench.compute.instrumented import Instrumented
from rrbench.frameworks.ccat import Ccat
from rrbench.protocols import Batch, Outputs, Victim
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.rr import RR
from small_network import OnlyTheShare, Small, batch_of, gradient_of

DRAWS = HashedDraws(7)
RELEASED = Ccat(attack_mode="eval")  # the network under test stands still
ORIGINAL = Ccat(
    eps=Fraction(3, 100),
    step=Fraction(1, 200),
    steps=12,
    rho=10.0,
    start="mixed",
    backtrack="objective",
    batches="halves",
    attack_mode="eval",
)


@dataclass(frozen=True)
class FixedDraws:
    """The same number everywhere: below a half it means a start at the clean image."""

    number: float = 0.0

    def uniform(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return torch.full((len(ids), *shape), self.number)

    def normal(self, ids: Tensor, shape: tuple[int, ...], restart: int) -> Tensor:
        return DRAWS.normal(ids, shape, restart)


def scalar_network(wrong_logit: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Outputs]:
    """Class 1's logit is a function of the image, class 0's is 0."""

    def network(images: Tensor) -> Outputs:
        value = wrong_logit(images.flatten(1))
        return Outputs(
            images.flatten(1), torch.stack([torch.zeros_like(value), value], 1), images.new_zeros(len(value), 0)
        )

    return network


def test_the_label_is_one_hot_where_nothing_moved_and_uniform_at_eps() -> None:
    batch, eps = batch_of(3), float(Ccat().eps)
    moved = batch.images.clone()
    moved[1, 0, 2, 2] += eps
    moved[2, 0, 2, 2] -= eps / 4
    label = Ccat().fading_label(moved, batch, 3)
    assert label[0].tolist() == [1, 0, 0]
    torch.testing.assert_close(label[1], torch.full((3,), 1 / 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(label[2], torch.tensor([1 / 12, 1 / 12, 10 / 12]), atol=1e-5, rtol=0)


def test_a_larger_rho_fades_the_label_faster() -> None:
    batch = batch_of(1)
    moved = batch.images.clone()
    moved[0, 0, 2, 2] += float(Ccat().eps) / 4
    weight = 0.75**10
    label = Ccat(rho=10.0).fading_label(moved, batch, 3)
    torch.testing.assert_close(label[0, 0].item(), weight + (1 - weight) / 3, atol=1e-5, rtol=0)


def test_with_a_larger_scale_the_label_is_not_uniform_at_eps() -> None:
    batch = batch_of(2)
    moved = batch.images.clone()
    moved[0, 0, 2, 2] += float(Ccat().eps)
    moved[1, 0, 2, 2] += 3 * float(Ccat().eps)  # beyond what an attack may do
    label = Ccat(scale=2.0).fading_label(moved, batch, 3)
    torch.testing.assert_close(label[0], torch.tensor([4 / 6, 1 / 6, 1 / 6]), atol=1e-5, rtol=0)
    torch.testing.assert_close(label[1], torch.full((3,), 1 / 3), atol=1e-5, rtol=0)


def test_a_distance_rounded_above_eps_gives_no_nan() -> None:
    batch, framework = batch_of(2), Ccat()
    moved = batch.images + float(framework.eps) * (1 + 1e-3)
    outputs = Outputs(torch.zeros(2, 0), torch.tensor([[3.0, 0.0, -1.0], [0.0, 1.0, 0.0]]), torch.zeros(2, 0))
    loss = framework.fading_loss(outputs, moved, batch)
    uniform = -math.log(3) - outputs.logits.log_softmax(1).mean(1)
    torch.testing.assert_close(loss, uniform)


def test_the_whole_batch_is_used_twice() -> None:
    network, batch, framework = Small().eval(), batch_of(6), RELEASED
    moved = framework.move(network, batch, DRAWS)
    clean, outputs = network(batch.images).logits.log_softmax(1), network(moved).logits.log_softmax(1)
    expected = 0.0
    for index, label in enumerate(batch.labels.tolist()):
        distance = (moved[index] - batch.images[index]).abs().max().item()
        weight = max(0.0, 1 - distance / float(framework.eps))
        target = np.full(3, (1 - weight) / 3)
        target[label] += weight
        expected -= clean[index, label].item() / 6
        expected += sum(t * (math.log(t) - outputs[index, k].item()) for k, t in enumerate(target) if t > 0) / 6
    loss = framework(Victim(network, Confidence()), batch, DRAWS)
    assert loss.item() == pytest.approx(expected, rel=1e-4)


def test_halves_leave_the_first_half_clean_and_count_every_image_once() -> None:
    network, batch = Small().eval(), batch_of(6)
    rest = batch.at(slice(3, None))
    moved = ORIGINAL.move(network, rest, DRAWS)
    clean = F.cross_entropy(network(batch.images[:3]).logits, batch.labels[:3])
    faded = ORIGINAL.fading_loss(network(moved), moved, rest).mean()
    loss = ORIGINAL(Victim(network, Confidence()), batch, DRAWS)
    assert loss.item() == pytest.approx(0.5 * clean.item() + 0.5 * faded.item(), rel=1e-5)


def test_halves_give_the_rejector_the_moved_half() -> None:
    network, batch = Small().eval(), batch_of(6)
    rest = batch.at(slice(3, None))
    moved = ORIGINAL.move(network, rest, DRAWS)
    share = RR().training_loss(network(moved), rest.labels, torch.zeros(()))
    losses = [ORIGINAL(Victim(network, rejector), batch, DRAWS).item() for rejector in (RR(), Confidence())]
    assert losses[0] - losses[1] == pytest.approx(share.item(), abs=1e-5)


def test_half_of_the_starts_are_the_clean_image_and_the_others_have_a_uniform_norm() -> None:
    batch, eps = batch_of(2000), float(Ccat().eps)
    delta = Ccat().begin(batch._replace(images=torch.full((2000, 1, 4, 4), 0.5)), DRAWS) - 0.5
    distance = delta.flatten(1).abs().amax(1)
    assert (distance == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    share = distance[distance > 0] / eps
    assert share.max().item() <= 1 + 1e-5
    for quantile in (0.25, 0.5, 0.75):
        assert share.quantile(quantile).item() == pytest.approx(quantile, abs=0.05)


def test_mixed_starts_are_zero_of_uniform_norm_or_gaussian() -> None:
    images = torch.full((1, 1, 4, 4), 0.5)
    batch, eps = Batch(images, torch.tensor([0]), torch.tensor([4])), 0.03
    normal = DRAWS.normal(batch.ids, (1, 4, 4), 0)
    starts = [ORIGINAL.begin(batch, FixedDraws(number)) - 0.5 for number in (0.0, 0.5, 0.9)]
    assert not starts[0].any()
    torch.testing.assert_close(starts[1], normal / normal.abs().max() * 0.5 * eps, atol=1e-6, rtol=0)
    torch.testing.assert_close(starts[2], (normal * eps / (2 * math.log(16))).clamp(-eps, eps), atol=1e-6, rtol=0)


def test_the_objective_is_the_log_probability_of_the_likeliest_wrong_class() -> None:
    logits = torch.tensor([[0.7, 0.2, 0.1], [0.7, 0.2, 0.1]]).log()
    outputs = Outputs(torch.zeros(2, 0), logits, torch.zeros(2, 0))
    torch.testing.assert_close(best_other(outputs, torch.tensor([0, 2])).exp(), torch.tensor([0.2, 0.7]))


def test_momentum_makes_the_first_steps_short() -> None:
    images = torch.full((1, 1, 4, 4), 0.5)
    batch = Batch(images, torch.tensor([0]), torch.tensor([0]))
    network = scalar_network(lambda flat: flat.sum(1))
    step = 1 / 255
    for steps, total in ((1, 0.1), (2, 0.1 + 0.19), (3, 0.1 + 0.19 + 0.271)):
        moved = Ccat(steps=steps).move(network, batch, FixedDraws())
        torch.testing.assert_close(moved - images, torch.full_like(images, step * total), atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    # Past the summit every step lowers the objective. Under "ce" the first step has nothing to compare with.
    ("backtrack", "taken"),
    [("objective", 0), ("ce", 1)],
)
@pytest.mark.parametrize(
    # In eval mode the slope at a candidate serves the next step: after the start every pass is at a candidate.
    ("attack_mode", "every"),
    [("train", 2), ("eval", 1)],
)
def test_a_step_that_lowers_the_rating_is_not_taken_and_the_next_is_shorter(
    backtrack: Literal["ce", "objective"], taken: int, attack_mode: Mode, every: int
) -> None:
    images = torch.full((1, 1, 4, 4), 0.5, dtype=torch.float64)
    batch = Batch(images, torch.tensor([0]), torch.tensor([0]))
    summit = images[0, 0, 0, 0] + taken * 0.1 / 255 + 1e-9
    passes: list[float] = []

    def wrong_logit(flat: Tensor) -> Tensor:
        passes.append(flat[0, 0].item() - 0.5 - taken * 0.1 / 255)
        return -1000 * (flat - summit).abs().sum(1)

    framework = Ccat(steps=6, backtrack=backtrack, attack_mode=attack_mode)
    moved = framework.move(scalar_network(wrong_logit), batch, FixedDraws())
    torch.testing.assert_close(moved, images + taken * 0.1 / 255, atol=1e-12, rtol=0)
    momentum = [1 - 0.9**count for count in range(1, 7)]
    expected = [momentum[count] / 255 / 1.5 ** (count - taken) for count in range(taken, 6)]
    tried = passes[1::every]
    assert len(tried) == 6
    np.testing.assert_allclose(tried[taken:], expected, rtol=1e-5)


@pytest.mark.parametrize(("backtrack", "divisor"), [("ce", 1.5), ("objective", 1.0)])
def test_a_step_that_changes_nothing_is_taken_and_makes_the_next_shorter_under_ce_alone(
    backtrack: Literal["ce", "objective"], divisor: float
) -> None:
    images = torch.full((1, 1, 4, 4), 0.5, dtype=torch.float64)
    batch = Batch(images, torch.tensor([0]), torch.tensor([0]))
    network = scalar_network(lambda flat: flat.sum(1) - flat.sum(1).detach())  # a slope, yet always 0
    moved = Ccat(backtrack=backtrack, steps=3).move(network, batch, FixedDraws())
    expected = (0.1 + 0.19 + 0.271 / divisor) / 255
    torch.testing.assert_close(moved - images, torch.full_like(images, expected), atol=1e-8, rtol=0)


@pytest.mark.parametrize("backtrack", ["ce", "objective"])
def test_what_is_accepted_never_rates_lower_so_that_the_last_image_is_the_best(
    backtrack: Literal["ce", "objective"],
) -> None:
    network, batch = Small().eval(), batch_of(8)
    with torch.no_grad():
        network.backbone.weight *= 40  # rugged enough to overshoot
    ratings = []
    for steps in (1, 2, 3, 5, 8, 12):
        framework = Ccat(backtrack=backtrack, steps=steps, step=Fraction(1, 25), attack_mode="eval")
        outputs = network(framework.move(network, batch, DRAWS))
        cross_entropy = F.cross_entropy(outputs.logits, batch.labels, reduction="none")
        ratings.append(cross_entropy if backtrack == "ce" else best_other(outputs, batch.labels))
    rises = torch.stack(ratings).diff(dim=0)
    assert rises.min().item() >= -1e-5
    assert (rises == 0).any()  # some steps were refused
    assert (rises > 0).any()


@pytest.mark.parametrize("framework", [RELEASED, ORIGINAL])
def test_the_attack_stays_in_the_box_and_in_range_and_raises_its_objective(framework: Ccat) -> None:
    network, batch = Small().eval(), batch_of(8)
    start, moved = framework.begin(batch, DRAWS), framework.move(network, batch, DRAWS)
    assert (moved - batch.images).abs().max().item() <= float(framework.eps) + 1e-6
    assert moved.min().item() >= 0
    assert moved.max().item() <= 1
    before, after = (best_other(network(images), batch.labels) for images in (start, moved))
    assert (after > before).all()


@pytest.mark.parametrize("framework", [Ccat(), ORIGINAL])
def test_the_attack_does_not_look_at_the_head(framework: Ccat) -> None:
    before = framework.move(Small(), batch_of(8), DRAWS)
    network = Small()
    nn.init.constant_(network.head.weight, 100.0)
    assert torch.equal(framework.move(network, batch_of(8), DRAWS), before)


def test_the_fast_twin_answers_every_pass_of_the_attack() -> None:
    twin, batch = Small().eval(), batch_of(8)
    asked: list[int] = []
    twin.register_forward_hook(lambda _, images, __: asked.append(len(images[0])))
    model = Instrumented(Small().eval(), "fp32", twin=twin)
    moved = RELEASED.move(model, batch, DRAWS)
    assert asked == [8] * (1 + RELEASED.steps)
    assert torch.equal(moved, RELEASED.move(Small().eval(), batch, DRAWS))


@pytest.mark.parametrize("backtrack", ["ce", "objective"])
def test_one_pass_a_step_moves_every_image_as_two_do(backtrack: Literal["ce", "objective"]) -> None:
    network = scalar_network(lambda flat: (40 * flat).sin().sum(1))  # without modules: both modes answer alike
    batch = batch_of(64)
    batch = batch._replace(labels=torch.zeros_like(batch.labels))
    for steps in (1, 2, 9):
        twice = Ccat(backtrack=backtrack, steps=steps, step=Fraction(1, 25), eps=Fraction(1, 5))
        moved = twice.move(network, batch, DRAWS)
        assert torch.equal(replace(twice, attack_mode="eval").move(network, batch, DRAWS), moved)
    shorter = replace(twice, steps=8).move(network, batch, DRAWS)
    is_taken = (moved != shorter).flatten(1).any(1)
    assert is_taken.any()  # in one batch some images go on
    assert not is_taken.all()  # and some stay


def test_an_attack_in_train_mode_moves_the_running_statistics_and_one_in_eval_mode_leaves_them() -> None:
    network, batch = Small().train(), batch_of(8)
    before = network.running_mean()
    Ccat(attack_mode="eval").move(network, batch, DRAWS)
    assert torch.equal(network.running_mean(), before)
    Ccat().move(network, batch, DRAWS)
    assert not torch.equal(network.running_mean(), before)


def test_the_running_statistics_see_the_clean_images_and_then_the_moved_ones() -> None:
    network, batch, framework = Small().train(), batch_of(8), Ccat(steps=0)
    means = [
        network.backbone(images.flatten(1)).mean(0).detach() for images in (batch.images, framework.begin(batch, DRAWS))
    ]
    framework(Victim(network, Confidence()), batch, DRAWS).backward()
    torch.testing.assert_close(network.running_mean(), 0.09 * means[0] + 0.1 * means[1])


@pytest.mark.parametrize("framework", [Ccat(), ORIGINAL])
def test_every_module_gets_its_own_mode_back(framework: Ccat) -> None:
    network = Small().train()
    network.head.eval()
    modes = [module.training for module in network.modules()]
    framework(Victim(network, RR()), batch_of(8), DRAWS)
    assert [module.training for module in network.modules()] == modes


def test_both_terms_give_gradient_to_the_weights_and_the_label_gives_none_to_the_images() -> None:
    network, batch = Small().eval(), batch_of(6)
    moved = RELEASED.move(network, batch, DRAWS)
    assert not moved.requires_grad
    assert not RELEASED.fading_label(moved, batch, 3).requires_grad
    RELEASED(Victim(network, Confidence()), batch, DRAWS).backward()
    with_both = gradient_of(network.classifier)
    network.zero_grad()
    F.cross_entropy(network(batch.images).logits, batch.labels).backward()
    clean_alone = gradient_of(network.classifier)
    network.zero_grad()
    RELEASED.fading_loss(network(moved), moved, batch).mean().backward()
    torch.testing.assert_close(with_both, clean_alone + gradient_of(network.classifier))
    assert gradient_of(network.classifier).any()


def test_rr_aims_at_the_network_s_own_probability_and_reaches_the_backbone_through_the_head() -> None:
    network, batch = Small().eval(), batch_of(6)
    network.classifier.bias.data[0] = 5.0  # every answer is class 0, moved or not
    batch = batch._replace(labels=torch.zeros(6, dtype=torch.long))
    loss = RELEASED(Victim(network, OnlyTheShare()), batch, DRAWS)
    share = loss.item() - RELEASED(Victim(network, Confidence()), batch, DRAWS).item()
    outputs = network(RELEASED.move(network, batch, DRAWS))
    target = outputs.logits.detach().double().softmax(1)[:, 0]
    rectified = target * outputs.head[:, 0].detach().double().sigmoid()
    expected = -(target * rectified.log() + (1 - target) * (1 - rectified).log()).mean()
    assert share == pytest.approx(expected.item(), abs=1e-5)
    loss.backward()
    assert not gradient_of(network.classifier).any()
    assert gradient_of(network.head).any()
    assert gradient_of(network.backbone).any()


@pytest.mark.parametrize("framework", [RELEASED, ORIGINAL])
def test_the_step_draws_by_id_and_leaves_the_global_random_state(framework: Ccat) -> None:
    network, batch = Small().eval(), batch_of(8)
    state = torch.random.get_rng_state()
    moved = framework.move(network, batch, DRAWS)
    framework(Victim(network, RR()), batch, DRAWS)
    assert torch.equal(torch.random.get_rng_state(), state)
    order = torch.tensor([3, 0, 7])
    torch.testing.assert_close(framework.move(network, batch.at(order), DRAWS), moved[order])


def test_a_whole_batch_has_the_mean_loss_of_its_inputs_alone() -> None:
    victim, batch = Victim(Small().eval(), RR()), batch_of(5)
    alone = torch.stack([RELEASED(victim, batch.at(slice(index, index + 1)), DRAWS) for index in range(5)])
    torch.testing.assert_close(RELEASED(victim, batch, DRAWS), alone.mean())
    assert alone.unique().numel() == 5


def test_halves_of_one_input_have_a_loss() -> None:
    assert ORIGINAL(Victim(Small().eval(), RR()), batch_of(1), DRAWS).isfinite(), "its first half is empty"


@pytest.mark.parametrize("steps", [0, 1, 4, 20])
@pytest.mark.parametrize("attack_mode", ["train", "eval"])
@pytest.mark.parametrize("batches", ["whole", "halves"])
def test_an_image_costs_its_slopes_and_half_as_much_for_each_pass_without_one(
    batches: Literal["whole", "halves"], attack_mode: Literal["train", "eval"], steps: int
) -> None:
    framework = Ccat(steps=steps, attack_mode=attack_mode, batches=batches)
    model, count = Instrumented(Small(), "fp32"), 6
    loss = framework(Victim(model, RR()), batch_of(count), DRAWS)
    assert loss.isfinite()
    learnt = 2 * count if batches == "whole" else count  # images of the weight update's passes
    plain = model.forwards - model.gradients - learnt
    cost = (model.gradients + plain / 2 + learnt) / count
    assert cost <= framework.gradients_per_image() < cost + 1
