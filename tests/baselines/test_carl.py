import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.draws import HashedDraws
from rrbench.errors import CellError
from rrbench.planning.cells import training_key
from rrbench.protocols import Outputs, Victim
from rrbench_baselines.carl import Carl, CarlTraining, abstain_loss
from rrbench_baselines.confidence import Confidence
from small_network import Small, batch_of, gradient_of

DRAWS = HashedDraws(7)
STEADY = CarlTraining(attack_mode="eval")  # the network under test stands still


class Flat(nn.Module):
    """A linear network: its margin's gradient is the difference of two rows, whatever the image."""

    def __init__(self) -> None:
        super().__init__()
        rows = HashedDraws(3).normal(torch.arange(4), (16,), 0)
        self.rows, self.abstain = nn.Parameter(rows[:3]), nn.Parameter(rows[3:])

    def forward(self, images: Tensor) -> Outputs:
        flat = images.flatten(1)
        return Outputs(flat, flat @ self.rows.T, flat @ self.abstain.T)


def outputs_of(logits: Sequence[Sequence[float]], abstain: Sequence[float]) -> Outputs:
    return Outputs(torch.zeros(len(abstain), 0), torch.tensor(logits), torch.tensor(abstain)[:, None])


def test_the_abstain_loss_has_the_value_worked_out_by_hand() -> None:
    logits = [[math.log(0.5), math.log(0.2)]] * 2  # with the abstain class q = (0.5, 0.2, 0.3)
    loss = abstain_loss(outputs_of(logits, [math.log(0.3)] * 2), torch.tensor([0, 1]))
    torch.testing.assert_close(loss, -torch.tensor([0.8, 0.5]).log())


def test_a_saturated_abstain_loss_stays_finite_and_keeps_its_slope() -> None:
    outputs = outputs_of([[200.0, 0.0]], [-200.0])
    head = outputs.head.clone().requires_grad_()
    loss = abstain_loss(outputs._replace(head=head), torch.tensor([1]))
    loss.sum().backward()
    assert loss.item() == pytest.approx(200)
    assert head.grad is not None
    assert head.grad.isfinite().all()


def test_certainty_is_the_log_odds_of_not_abstaining() -> None:
    outputs = outputs_of([[math.log(0.5), math.log(0.2)]], [math.log(0.3)])
    assert Carl().certainty(outputs).item() == pytest.approx(math.log(0.7 / 0.3), rel=1e-6)


def test_certainty_falls_with_the_abstain_logit_unless_the_sign_is_turned() -> None:
    outputs = outputs_of([[1.0, 2.0]] * 3, [-1.0, 0.0, 1.0])
    assert (Carl().certainty(outputs).diff() < 0).all()
    assert torch.equal(Carl(sign="+q_abs").certainty(outputs), -Carl().certainty(outputs))


def test_the_abstain_logit_alone_does_not_depend_on_the_other_logits() -> None:
    outputs = outputs_of([[1.0, 2.0], [5.0, 9.0], [9.0, 9.0]], [2.0, 1.0, 3.0])
    assert Carl(sign="+logit").certainty(outputs).tolist() == [2, 1, 3]
    assert Carl(sign="+q_abs").certainty(outputs).argsort().tolist() == [1, 2, 0]


def test_saturated_abstain_probabilities_do_not_tie_and_equal_ones_do() -> None:
    outputs = outputs_of([[1.0, 2.0]] * 6, [-200.0, -199.0, 199.0, 200.0, 200.0, 200.0])
    certainty = Carl().certainty(outputs)
    assert certainty.isfinite().all()
    assert len(certainty.unique()) == 4


@pytest.mark.parametrize("sign", ["-q_abs", "+q_abs", "+logit"])
def test_all_signs_share_one_checkpoint(sign: Literal["-q_abs", "+q_abs", "+logit"]) -> None:
    assert training_key(Carl(sign=sign), "carl") == "carl"


def test_the_slope_of_a_linear_network_is_the_difference_of_two_rows() -> None:
    network, batch = Flat(), batch_of(5)
    logits, rows = network(batch.images).logits.detach().numpy().copy(), network.rows.detach().numpy()
    labels = batch.labels.numpy()
    logits[np.arange(5), labels] = -np.inf
    expected = np.abs(rows[labels] - rows[logits.argmax(1)]).sum(1).mean()
    assert CarlTraining().slope(network, batch).item() == pytest.approx(expected, rel=1e-5)
    assert CarlTraining(penalty_reduction="mean").slope(network, batch).item() == pytest.approx(expected / 5, rel=1e-5)


def test_the_slope_gives_gradient_to_the_weights_and_leaves_the_batch_alone() -> None:
    network, batch = Flat(), batch_of(1)
    CarlTraining().slope(network, batch).backward()
    logits = network(batch.images).logits[0]
    other = 1 + int(logits[1:].argmax())
    sign = (network.rows[0] - network.rows[other]).sign()
    assert network.rows.grad is not None
    torch.testing.assert_close(network.rows.grad[0], sign)
    torch.testing.assert_close(network.rows.grad[other], -sign)
    assert network.abstain.grad is None
    assert not batch.images.requires_grad


def test_the_loss_is_the_sum_of_its_three_terms() -> None:
    network, batch = Small().eval(), batch_of(6)
    framework = CarlTraining(attack_mode="eval", weight=0.7, penalty=0.3)
    outputs = network(framework.move(network, batch, DRAWS))
    labels = batch.labels.numpy()
    logits, abstain = outputs.logits.detach().double().numpy(), outputs.head.detach().double().numpy()
    cross_entropy = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), labels]
    q = np.exp(np.concatenate([logits, abstain], 1))
    q /= q.sum(1, keepdims=True)
    adversarial = -np.log(q[np.arange(6), labels] + q[:, 3])
    slope = framework.slope(network, batch).item()
    loss = framework(Victim(network, Carl()), batch, DRAWS)
    assert loss.item() == pytest.approx(cross_entropy.mean() + 0.7 * adversarial.mean() + 0.3 * slope, rel=1e-5)


def test_the_authors_lesson_is_the_cross_entropy_of_all_classes_and_abstaining_on_clean_inputs() -> None:
    network, batch = Small().eval(), batch_of(6)
    framework = CarlTraining(attack_mode="eval", lesson="clean", weight=0.0, penalty=0.0)
    outputs = network(batch.images)
    logits = np.concatenate([outputs.logits.detach().double().numpy(), outputs.head.detach().double().numpy()], 1)
    expected = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), batch.labels.numpy()]
    assert framework(Victim(network, Carl()), batch, DRAWS).item() == pytest.approx(expected.mean(), rel=1e-5)


def test_the_authors_attack_climbs_the_lead_of_another_class_and_does_not_look_at_the_head() -> None:
    network, batch = Small().eval(), batch_of(8)
    framework = CarlTraining(attack_mode="eval", climbs="margin")
    start, moved = framework.uniform_start(batch, DRAWS), framework.move(network, batch, DRAWS)
    labels = batch.labels.numpy()

    def lead(images: Tensor) -> np.ndarray:
        logits = network(images).logits.detach().numpy().copy()
        true = logits[np.arange(8), labels]
        logits[np.arange(8), labels] = -np.inf
        return np.asarray(logits.max(1) - true)

    assert (lead(moved) > lead(start)).all()
    nn.init.constant_(network.head.weight, 3.0)
    assert torch.equal(framework.move(network, batch, DRAWS), moved)


@pytest.mark.parametrize("lesson", ["moved", "clean"])
def test_every_part_of_the_network_receives_gradient(lesson: Literal["moved", "clean"]) -> None:
    network = Small().train()
    CarlTraining(lesson=lesson)(Victim(network, Carl()), batch_of(8), DRAWS).backward()
    for parameter in network.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    assert gradient_of(network.head).any()
    assert gradient_of(network.backbone).any()


def test_the_attack_stays_in_the_box_and_in_range_and_raises_the_abstain_loss() -> None:
    network, batch = Small().eval(), batch_of(8)
    start, moved = STEADY.uniform_start(batch, DRAWS), STEADY.move(network, batch, DRAWS)
    assert (moved - batch.images).abs().max().item() <= float(STEADY.eps) + 1e-6
    assert moved.min().item() >= 0
    assert moved.max().item() <= 1
    before, after = (abstain_loss(network(images), batch.labels) for images in (start, moved))
    assert (after > before).all()


def test_the_attack_looks_at_the_head() -> None:
    network, batch = Small().eval(), batch_of(8)
    before = STEADY.move(network, batch, DRAWS)
    nn.init.constant_(network.head.weight, 3.0)
    assert not torch.equal(STEADY.move(network, batch, DRAWS), before)


def test_the_attack_starts_uniformly_in_the_box() -> None:
    batch = batch_of(8)
    delta = (2 * DRAWS.uniform(batch.ids, (1, 4, 4), 0) - 1) * (8 / 255)
    torch.testing.assert_close(STEADY.uniform_start(batch, DRAWS), (batch.images + delta).clamp(0, 1))


def test_an_attack_in_train_mode_moves_the_running_statistics_and_one_in_eval_mode_leaves_them() -> None:
    network, batch = Small().train(), batch_of(8)
    before = network.running_mean()
    STEADY.move(network, batch, DRAWS)
    assert torch.equal(network.running_mean(), before)
    CarlTraining().move(network, batch, DRAWS)
    assert not torch.equal(network.running_mean(), before)


def test_every_module_gets_its_own_mode_back_and_the_global_random_state_stays() -> None:
    network = Small().train()
    network.head.eval()
    modes, state = [module.training for module in network.modules()], torch.random.get_rng_state()
    STEADY(Victim(network, Carl()), batch_of(8), DRAWS)
    assert [module.training for module in network.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_batch_has_the_mean_loss_and_the_certainties_of_its_inputs_alone() -> None:
    network, batch = Small().eval(), batch_of(5)
    victim, ones = Victim(network, Carl()), [batch.at(slice(index, index + 1)) for index in range(5)]
    alone = torch.stack([STEADY(victim, one, DRAWS) for one in ones])
    torch.testing.assert_close(STEADY(victim, batch, DRAWS), alone.mean())
    assert alone.unique().numel() == 5
    certainties = torch.cat([Carl().certainty(network(one.images)) for one in ones])
    torch.testing.assert_close(Carl().certainty(network(batch.images)), certainties)


def test_a_network_without_a_head_is_refused_in_one_line() -> None:
    def headless(images: Tensor) -> Outputs:
        return Outputs(images.flatten(1), images.flatten(1)[:, :3], images.new_zeros(len(images), 0))

    with pytest.raises(CellError, match="head"):
        CarlTraining()(Victim(headless, Confidence()), batch_of(4), DRAWS)


def test_a_training_image_costs_the_steps_the_slope_and_two_passes() -> None:
    assert CarlTraining().gradients_per_image() == 13
    assert CarlTraining(lesson="clean").gradients_per_image() == 14
