import math
from fractions import Fraction

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.frameworks.trades import Trades, divergence
from rrbench.protocols import Victim
from rrbench_baselines.confidence import Confidence
from rrbench_baselines.rr import RR
from small_network import OnlyTheShare, Small, batch_of, gradient_of

DRAWS = HashedDraws(7)


def softmax(logits: Tensor) -> npt.NDArray[np.float64]:
    powers = np.exp(logits.detach().double().numpy())
    shares: npt.NDArray[np.float64] = powers / powers.sum(1, keepdims=True)
    return shares


def test_the_divergence_has_the_value_worked_out_by_hand() -> None:
    clean, moved = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.8, 0.2]]).log()
    expected = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    assert divergence(clean, moved).item() == pytest.approx(expected, rel=1e-6)
    assert divergence(clean, clean).item() == 0


def test_the_divergence_gives_gradient_through_both_arguments() -> None:
    p, q = np.array([0.5, 0.3, 0.2]), np.array([0.7, 0.2, 0.1])
    clean = torch.tensor(np.log(p)[None], requires_grad=True)
    moved = torch.tensor(np.log(q)[None], requires_grad=True)
    divergence(clean, moved).sum().backward()
    assert clean.grad is not None
    assert moved.grad is not None
    np.testing.assert_allclose(moved.grad[0].numpy(), q - p, atol=1e-12)
    np.testing.assert_allclose(clean.grad[0].numpy(), p * (np.log(p / q) - (p * np.log(p / q)).sum()), atol=1e-12)


def test_saturated_answers_keep_the_divergence_finite() -> None:
    clean, moved = torch.tensor([[200.0, -200.0]]), torch.tensor([[-200.0, 200.0]])
    assert divergence(clean, moved).item() == pytest.approx(400)


def test_the_loss_is_clean_cross_entropy_plus_beta_times_the_divergence() -> None:
    network, batch, framework = Small().eval(), batch_of(6), Trades(beta=2.5)
    network.classifier.weight.data *= 10  # enough for the two directions of KL to differ
    moved = framework.move(network, batch, DRAWS)
    p, q = softmax(network(batch.images).logits), softmax(network(moved).logits)
    expected = -np.log(p[np.arange(6), batch.labels.numpy()]).mean() + 2.5 * (p * np.log(p / q)).sum(1).mean()
    loss = framework(Victim(network, Confidence()), batch, DRAWS)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_the_weights_receive_the_gradient_of_the_clean_and_of_the_moved_answer() -> None:
    network, batch = Small().eval(), batch_of(6)
    moved = Trades().move(network, batch, DRAWS)
    assert not moved.requires_grad
    Trades()(Victim(network, Confidence()), batch, DRAWS).backward()
    received = gradient_of(network.backbone)
    network.zero_grad()
    p, q = (network(images).logits.softmax(1) for images in (batch.images, moved))
    (6 * (p * (p / q).log()).sum(1).mean() - p[torch.arange(6), batch.labels].log().mean()).backward()
    torch.testing.assert_close(received, gradient_of(network.backbone), atol=1e-5, rtol=1e-4)


def test_the_attack_stays_in_the_box_and_in_range_and_gets_farther_from_the_clean_answer() -> None:
    network, batch, framework = Small().eval(), batch_of(8), Trades()
    start, moved = (Trades(steps=steps).move(network, batch, DRAWS) for steps in (0, 10))
    for images in (start, moved):
        assert (images - batch.images).abs().max().item() <= float(framework.eps) + 1e-6
        assert images.min().item() >= 0
        assert images.max().item() <= 1
    assert 0 < (start - batch.images).abs().max().item() < 0.006
    clean = network(batch.images).logits
    assert (divergence(clean, network(moved).logits) > divergence(clean, network(start).logits)).all()


def test_a_box_smaller_than_the_noise_still_holds_the_start() -> None:
    batch, eps = batch_of(8), Fraction(1, 10000)
    start = Trades(eps=eps, steps=0).move(Small().eval(), batch, DRAWS)
    assert (start - batch.images).abs().max().item() <= float(eps) + 1e-7


def test_the_attack_does_not_look_at_the_head() -> None:
    network, batch = Small(), batch_of(8)
    before = Trades().move(network, batch, DRAWS)
    nn.init.constant_(network.head.weight, 100.0)
    assert torch.equal(Trades().move(network, batch, DRAWS), before)


def test_an_attack_in_eval_mode_leaves_the_running_statistics_and_one_in_train_mode_moves_them() -> None:
    network, batch = Small().train(), batch_of(8)
    before = network.running_mean()
    Trades().move(network, batch, DRAWS)
    assert torch.equal(network.running_mean(), before)
    Trades(attack_mode="train").move(network, batch, DRAWS)
    assert not torch.equal(network.running_mean(), before)


def test_the_running_statistics_see_the_moved_images_and_then_the_clean_ones() -> None:
    network, batch = Small().train(), batch_of(8)
    moved = Trades().move(network, batch, DRAWS)
    means = [network.backbone(images.flatten(1)).mean(0).detach() for images in (moved, batch.images)]
    Trades()(Victim(network, Confidence()), batch, DRAWS)
    torch.testing.assert_close(network.running_mean(), 0.09 * means[0] + 0.1 * means[1])


def test_every_module_gets_its_own_mode_back() -> None:
    network = Small().train()
    network.head.eval()
    modes = [module.training for module in network.modules()]
    Trades()(Victim(network, Confidence()), batch_of(8), DRAWS)
    assert [module.training for module in network.modules()] == modes


def test_rr_judges_the_moved_images_and_reaches_the_backbone_through_the_head_alone_where_answers_are_right() -> None:
    network, batch = Small().eval(), batch_of(6)
    moved = Trades().move(network, batch, DRAWS)
    batch = batch._replace(labels=network(moved).logits.argmax(1))
    moved = Trades().move(network, batch, DRAWS)
    loss = Trades()(Victim(network, OnlyTheShare()), batch, DRAWS)
    share = loss.item() - Trades()(Victim(network, Confidence()), batch, DRAWS).item()
    outputs = network(moved)
    target = softmax(outputs.logits).max(1)
    rectified = target / (1 + np.exp(-outputs.head[:, 0].detach().double().numpy()))
    expected = -(target * np.log(rectified) + (1 - target) * np.log(1 - rectified)).mean()
    assert share == pytest.approx(expected, abs=1e-5)
    loss.backward()
    assert not gradient_of(network.classifier).any()
    assert gradient_of(network.head).any()
    assert gradient_of(network.backbone).any()


def test_rr_holds_the_target_fixed_where_answers_are_wrong() -> None:
    network, batch = Small().eval(), batch_of(6)
    moved = Trades().move(network, batch, DRAWS)
    wrong = network(moved).logits.argmin(1)
    batch = batch._replace(labels=wrong)
    Trades()(Victim(network, OnlyTheShare()), batch, DRAWS).backward()
    # With the target fixed, only the predicted class's probability passes gradient to the logits.
    outputs = network(Trades().move(network, batch, DRAWS))
    logits = outputs.logits.detach().double().requires_grad_()
    confidence = logits.softmax(1).amax(1)
    rectified = confidence * outputs.head[:, 0].detach().double().sigmoid()
    target = logits.detach().softmax(1).gather(1, wrong[:, None]).squeeze(1)
    (-(target * rectified.log() + (1 - target) * (1 - rectified).log()).mean()).backward()
    assert logits.grad is not None
    expected = logits.grad.T @ outputs.features.detach().double()
    torch.testing.assert_close(gradient_of(network.classifier).double(), expected, atol=1e-6, rtol=1e-4)


def test_the_step_draws_by_id_and_leaves_the_global_random_state() -> None:
    network, batch = Small().eval(), batch_of(8)
    state = torch.random.get_rng_state()
    moved = Trades().move(network, batch, DRAWS)
    Trades()(Victim(network, RR()), batch, DRAWS)
    assert torch.equal(torch.random.get_rng_state(), state)
    order = torch.tensor([3, 0, 7])
    torch.testing.assert_close(Trades().move(network, batch.at(order), DRAWS), moved[order])


def test_a_batch_has_the_mean_loss_of_its_inputs_alone() -> None:
    victim, batch = Victim(Small().eval(), RR()), batch_of(5)
    alone = torch.stack([Trades()(victim, batch.at(slice(index, index + 1)), DRAWS) for index in range(5)])
    torch.testing.assert_close(Trades()(victim, batch, DRAWS), alone.mean())
    assert alone.unique().numel() == 5


def test_a_training_image_costs_the_steps_and_two_passes() -> None:
    assert Trades().gradients_per_image() == 12
    assert Trades(steps=7).gradients_per_image() == 9
