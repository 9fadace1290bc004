import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.draws import HashedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.errors import CellError
from rrbench.frameworks.inner import classifier_weights
from rrbench.networks.composed import share
from rrbench.protocols import Outputs, Victim
from rrbench_baselines.atro import Atro, AtroTraining
from rrbench_baselines.confidence import Confidence
from small_network import Small, batch_of, gradient_of

DRAWS = HashedDraws(7)
AUTHORS = AtroTraining(agreement="logits", hinge="squared", ce_weight=0, weight=6, penalty=0.5)


def outputs_of(probabilities: list[list[float]], raw: list[float]) -> Outputs:
    return Outputs(torch.zeros(len(raw), 0), torch.tensor(probabilities).log(), torch.tensor(raw)[:, None])


def by_definition(
    outputs: Outputs, labels: Tensor, cost: float, alpha: float, *, is_authors: bool = False
) -> npt.NDArray[np.float64]:
    """The larger of A and B, each written out class by class; of the authors with logits, at least 0, and squared."""
    losses = []
    for logits, raw, label in zip(outputs.logits.tolist(), outputs.head[:, 0].tolist(), labels.tolist(), strict=True):
        p = logits if is_authors else np.exp(logits) / np.exp(logits).sum()
        r = math.tanh(raw)
        u = [1 if k == label else -1 for k in range(len(p))]
        a = np.mean([1 + alpha / 2 * (r - u[k] * p[k]) for k in range(len(p))])
        b = cost * (1 - r / (1 - 2 * cost))
        losses.append(max(a, b, 0) ** 2 if is_authors else max(a, b))
    return np.array(losses)


def test_the_max_hinge_has_the_values_worked_out_by_hand() -> None:
    outputs = outputs_of([[0.75, 0.25], [0.75, 0.25], [0.75, 0.25]], [0.0, math.atanh(0.5), math.atanh(-0.9)])
    labels = torch.tensor([0, 1, 0])
    # mean of u p: +1/4 for label 0, -1/4 for label 1; A = 1 + (r - mean) / 2, B = 0.3 (1 - 2.5 r).
    expected = torch.tensor([1 - 1 / 8, 1 + (0.5 + 0.25) / 2, 0.3 * (1 + 2.25)])
    torch.testing.assert_close(AtroTraining().max_hinge(outputs, labels), expected)


def test_the_max_hinge_follows_its_definition_for_any_cost_and_alpha() -> None:
    logits = HashedDraws(2).normal(torch.arange(7), (4,), 0)
    outputs = Outputs(torch.zeros(7, 0), logits, 2 * HashedDraws(3).normal(torch.arange(7), (1,), 0))
    labels = torch.arange(7) % 4
    for cost, alpha in ((0.3, 1.0), (0.1, 2.0), (0.45, 0.5)):
        loss = AtroTraining(cost=cost, alpha=alpha).max_hinge(outputs, labels).numpy()
        np.testing.assert_allclose(loss, by_definition(outputs, labels, cost, alpha), rtol=1e-5)


def test_the_authors_max_hinge_has_the_values_worked_out_by_hand() -> None:
    logits = torch.tensor([[4.0, 1.0, -2.0], [4.0, 1.0, -2.0], [9.0, 0.0, -3.0], [4.0, 1.0, -2.0]])
    head = torch.tensor([[0.0], [math.atanh(0.5)], [math.atanh(0.8)], [math.atanh(-0.9)]])
    # mean of u o: (4 - 1 + 2) / 3, (-4 + 1 + 2) / 3, (9 - 0 + 3) / 3, (4 - 1 + 2) / 3.
    accepting = [1 + (0 - 5 / 3) / 2, 1 + (0.5 + 1 / 3) / 2, 1 + (0.8 - 4) / 2, 1 + (-0.9 - 5 / 3) / 2]
    rejecting = [0.3, 0.3 * (1 - 1.25), 0.3 * (1 - 2), 0.3 * (1 + 2.25)]
    larger = [rejecting[0], accepting[1], rejecting[2], rejecting[3]]  # the third is below 0
    assert [max(pair) for pair in zip(accepting, rejecting, strict=True)] == larger
    outputs, labels = Outputs(torch.zeros(4, 0), logits, head), torch.tensor([0, 1, 0, 0])
    found = AtroTraining(agreement="logits").max_hinge(outputs, labels)
    torch.testing.assert_close(found, torch.tensor(larger))
    found = AtroTraining(agreement="logits", hinge="squared").max_hinge(outputs, labels)
    torch.testing.assert_close(found, torch.tensor([0.09, larger[1] ** 2, 0.0, 0.975**2]))


def test_the_authors_max_hinge_can_be_zero_for_logits_that_ignore_the_image() -> None:
    # All logits -5 of 10 classes: mean of u o = (-5 + 9 * 5) / 10 = 4, A = 1 + (r - 4) / 2 < 0; B < 0 from r = 0.4 on.
    outputs = Outputs(torch.zeros(10, 0), torch.full((10, 10), -5.0), torch.full((10, 1), math.atanh(0.5)))
    assert AUTHORS.max_hinge(outputs, torch.arange(10)).tolist() == [0.0] * 10


def test_the_authors_loss_is_the_squared_max_hinge_and_the_penalty_without_cross_entropy() -> None:
    network, batch, framework = Small().eval(), batch_of(6), AUTHORS
    outputs = network(framework.move(network, batch, DRAWS))
    norm = float((network.classifier.weight.detach().double() ** 2).sum())
    # 6 times the mean over 6 inputs: the sum, as the authors take it.
    expected = by_definition(outputs, batch.labels, 0.3, 1.0, is_authors=True).sum() + 0.5 * norm
    assert framework(Victim(network, Atro()), batch, DRAWS).item() == pytest.approx(expected, rel=1e-5)


def test_the_penalty_pulls_the_classifier_s_weights_to_zero_and_nothing_else() -> None:
    network, batch = Small().eval(), batch_of(6)
    AtroTraining(ce_weight=0, weight=0, penalty=0.7)(Victim(network, Atro()), batch, DRAWS).backward()
    torch.testing.assert_close(gradient_of(network.classifier), 1.4 * network.classifier.weight.detach())
    others = [weight for name, weight in network.named_parameters() if name != "classifier.weight"]
    assert not any(weight.grad is not None and weight.grad.any() for weight in others)


def test_the_penalty_finds_the_weights_that_are_trained() -> None:
    network = Small()
    assert classifier_weights(network) is network.classifier.weight
    assert classifier_weights(Instrumented(network, "fp32", twin=share(network))) is network.classifier.weight
    for unnamed in (nn.Linear(2, 2), lambda images: network(images)):
        with pytest.raises(CellError, match="the network has no `classifier`"):
            classifier_weights(unnamed)


def test_the_defaults_are_the_released_loss_bit_for_bit() -> None:
    network, batch, framework = Small().eval(), batch_of(6), AtroTraining()
    outputs = network(framework.move(network, batch, DRAWS))
    accepts = outputs.head[:, 0].tanh()
    agreement = (2 * outputs.logits.softmax(1).gather(1, batch.labels[:, None]).squeeze(1) - 1) / 3
    larger = torch.maximum(1 + 0.5 * (accepts - agreement), 0.3 * (1 - 1 / (1 - 0.6) * accepts))
    expected = F.cross_entropy(outputs.logits, batch.labels) + 0.3 * larger.mean()
    assert torch.equal(framework(Victim(network, Atro()), batch, DRAWS), expected)


@pytest.mark.parametrize("setting", ["weight", "ce_weight", "penalty"])
def test_a_negative_weight_is_refused(setting: str) -> None:
    with pytest.raises(ValueError, match=f"{setting} must be at least 0, not -1"):
        AtroTraining(**{setting: -1.0})  # type: ignore[arg-type]


def test_the_larger_cost_alone_has_a_slope() -> None:
    logits = torch.tensor([[0.75, 0.25], [0.75, 0.25]], dtype=torch.float64).log().requires_grad_()
    head = torch.tensor([[0.3], [-2.0]], dtype=torch.float64, requires_grad=True)
    loss = AtroTraining().max_hinge(Outputs(torch.zeros(2, 0), logits, head), torch.tensor([0, 0]))
    by_logits, by_head = torch.autograd.grad(loss.sum(), (logits, head))
    # Accepting is dearer for the first, rejecting for the second: A falls with p of the true class, B with r.
    assert by_head[:, 0].tolist() == pytest.approx([(1 - math.tanh(0.3) ** 2) / 2, -0.75 * (1 - math.tanh(2) ** 2)])
    assert by_logits[0].tolist() == pytest.approx([-0.75 * 0.25 / 2, 0.75 * 0.25 / 2])
    assert not by_logits[1].any()


@pytest.mark.parametrize("cost", [0.0, 0.5, 0.7, -0.1])
def test_a_cost_outside_zero_to_one_half_is_refused(cost: float) -> None:
    with pytest.raises(ValueError, match="cost"):
        AtroTraining(cost=cost)


def test_certainty_is_the_raw_output_and_does_not_tie_where_tanh_does() -> None:
    outputs = outputs_of([[0.5, 0.5]] * 5, [-21.0, -20.0, 0.0, 20.0, 20.0])
    certainty = Atro().certainty(outputs)
    assert certainty.tolist() == [-21, -20, 0, 20, 20]
    assert outputs.head.tanh().unique().numel() < certainty.unique().numel() == 4


def test_the_loss_is_cross_entropy_plus_the_weighted_max_hinge() -> None:
    network, batch, framework = Small().eval(), batch_of(6), AtroTraining(weight=0.7)
    outputs = network(framework.move(network, batch, DRAWS))
    logits, labels = outputs.logits.detach().double().numpy(), batch.labels.numpy()
    cross_entropy = np.log(np.exp(logits).sum(1)) - logits[np.arange(6), labels]
    expected = cross_entropy.mean() + 0.7 * by_definition(outputs, batch.labels, 0.3, 1.0).mean()
    assert framework(Victim(network, Atro()), batch, DRAWS).item() == pytest.approx(expected, rel=1e-5)


def test_every_part_of_the_network_receives_gradient() -> None:
    network = Small().train()
    AtroTraining()(Victim(network, Atro()), batch_of(8), DRAWS).backward()
    assert gradient_of(network.head).any()
    assert gradient_of(network.classifier).any()
    assert gradient_of(network.backbone).any()


def test_the_attack_stays_in_the_box_and_in_range_and_raises_the_max_hinge() -> None:
    network, batch, framework = Small().eval(), batch_of(8), AtroTraining()
    start, moved = framework.uniform_start(batch, DRAWS), framework.move(network, batch, DRAWS)
    assert (moved - batch.images).abs().max().item() <= float(framework.eps) + 1e-6
    assert moved.min().item() >= 0
    assert moved.max().item() <= 1
    before, after = (framework.max_hinge(network(images), batch.labels) for images in (start, moved))
    assert (after > before).all()


def test_the_attack_leaves_the_running_statistics_unless_told_to_train() -> None:
    network, batch = Small().train(), batch_of(8)
    before = network.running_mean()
    AtroTraining().move(network, batch, DRAWS)
    assert torch.equal(network.running_mean(), before)
    AtroTraining(attack_mode="train").move(network, batch, DRAWS)
    assert not torch.equal(network.running_mean(), before)


def test_every_module_gets_its_own_mode_back_and_the_global_random_state_stays() -> None:
    network = Small().train()
    network.head.eval()
    modes, state = [module.training for module in network.modules()], torch.random.get_rng_state()
    AtroTraining()(Victim(network, Atro()), batch_of(8), DRAWS)
    assert [module.training for module in network.modules()] == modes
    assert torch.equal(torch.random.get_rng_state(), state)


def test_a_batch_has_the_mean_loss_and_the_certainties_of_its_inputs_alone() -> None:
    network, batch = Small().eval(), batch_of(5)
    victim, ones = Victim(network, Atro()), [batch.at(slice(index, index + 1)) for index in range(5)]
    alone = torch.stack([AtroTraining()(victim, one, DRAWS) for one in ones])
    torch.testing.assert_close(AtroTraining()(victim, batch, DRAWS), alone.mean())
    assert alone.unique().numel() == 5
    certainties = torch.cat([Atro().certainty(network(one.images)) for one in ones])
    torch.testing.assert_close(Atro().certainty(network(batch.images)), certainties)


def test_a_network_without_a_head_is_refused_in_one_line() -> None:
    def headless(images: Tensor) -> Outputs:
        return Outputs(images.flatten(1), images.flatten(1)[:, :3], images.new_zeros(len(images), 0))

    with pytest.raises(CellError, match="head"):
        AtroTraining()(Victim(headless, Confidence()), batch_of(4), DRAWS)


def test_a_training_image_costs_the_steps_and_one_pass() -> None:
    assert AtroTraining().gradients_per_image() == 11
