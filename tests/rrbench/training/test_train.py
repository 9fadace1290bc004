"""Training: the schedule and the update by hand, the choice of epoch, and what changes a training's result."""

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench.compute.instrumented import Instrumented
from rrbench.compute.turns import TURNS
from rrbench.datasets.digits import Digits
from rrbench.errors import CellError, UseError
from rrbench.files.checkpoints import load_weights, read_checkpoint, unpack_bits
from rrbench.planning.cells import Training
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import build
from rrbench.protocols import Rejector
from rrbench.training import train
from short_trainings import Recorded, holds, planned, same, scripted, trained

pytestmark = pytest.mark.usefixtures("frameworks")


def methods_rate(epoch: int, batch_index: int, batches: int) -> float:
    """The rate of METHODS 1.4, for 110 epochs."""
    t = epoch + Fraction(batch_index + 1, batches)
    return 0.1 if t < 100 else 0.01 if t < 105 else 0.001


def test_the_rate_of_every_step_of_the_paper() -> None:
    recipe, batches = load_preset("paper").recipe("cifar10"), 391
    assert recipe.epochs == 110
    for epoch in (0, 1, 50, *range(97, 110)):
        for index in range(batches):
            assert train.learning_rate(recipe, epoch, index, batches) == pytest.approx(
                methods_rate(epoch, index, batches), rel=1e-12
            )


def test_each_drop_comes_with_the_last_batch_of_the_epoch_before() -> None:
    recipe = load_preset("paper").recipe("cifar10")
    rates = [train.learning_rate(recipe, epoch, index, 391) for epoch in (99, 104) for index in (389, 390)]
    assert rates == pytest.approx([0.1, 0.01, 0.01, 0.001], rel=1e-12)


@pytest.mark.parametrize("batches", [1, 7, 17])
@pytest.mark.parametrize("epochs", [1, 3, 10, 11, 22, 110, 200])
def test_the_schedule_shrinks_and_stretches_with_the_epochs(epochs: int, batches: int) -> None:
    recipe = replace(load_preset("paper").recipe("cifar10"), epochs=epochs)
    for epoch in range(epochs):
        for index in range(batches):
            t = (epoch + Fraction(index + 1, batches)) * 110 / epochs
            expected = 0.1 if t < 100 else 0.01 if t < 105 else 0.001
            assert train.learning_rate(recipe, epoch, index, batches) == pytest.approx(expected, rel=1e-12)


Update = Callable[[int, str, Tensor, Tensor], None]  # (number of the step, name, weight, its gradient)


def by_hand(training: Training, update: Update) -> nn.Module:
    """Train on the recorded batches; `update` changes each weight by its gradient, weight decay included."""
    data = Digits().load("train")
    place = {int(example): position for position, example in enumerate(data.ids)}
    network = train.build_network(training, Digits.info, build(Rejector, training.rejector)).train()
    for step, ids in enumerate(Recorded.seen, 1):
        batch = data.at(torch.tensor([place[int(example)] for example in ids]))
        network.zero_grad()
        F.cross_entropy(network(batch.images).logits, batch.labels).backward()
        with torch.no_grad():
            for name, weight in network.named_parameters():
                assert weight.grad is not None
                update(step, name, weight, weight.grad + 5e-4 * weight)
    return network


def test_two_steps_are_the_hand_written_update_of_momentum_and_decay(empty: Any) -> None:
    materials, training = planned(empty, "recorded", epochs=1)
    materials.checkpoint(training)
    after = read_checkpoint(materials.store.checkpoint_files(training.key).last).tensors
    assert [len(ids) for ids in Recorded.seen] == [539, 538], "the last partial batch is kept"
    assert sorted(torch.cat(Recorded.seen).tolist()) == sorted(Digits().load("train").ids.tolist())
    velocity: dict[str, Tensor] = {}

    def update(step: int, name: str, weight: Tensor, gradient: Tensor) -> None:
        velocity[name] = 0.9 * velocity.get(name, torch.zeros(())) + gradient
        weight.sub_((0.1, 0.001)[step - 1] * velocity[name])

    for name, weight in by_hand(training, update).state_dict().items():
        torch.testing.assert_close(after[name], weight, rtol=1e-5, atol=1e-6, msg=name)


def test_adam_s_steps_are_the_hand_written_update(empty: Any) -> None:
    adam = {"optimizer": "adam", "learning_rate": 0.01, "momentum": 0.8, "drops": ["1/2"], "drop_factor": 0.5}
    materials, training = planned(empty, "recorded", "confidence", epochs=1, **adam)
    materials.checkpoint(training)
    after = read_checkpoint(materials.store.checkpoint_files(training.key).last).tensors
    mean: dict[str, Tensor] = {}
    square: dict[str, Tensor] = {}

    def update(step: int, name: str, weight: Tensor, gradient: Tensor) -> None:
        mean[name] = 0.8 * mean.get(name, torch.zeros(())) + 0.2 * gradient
        square[name] = 0.999 * square.get(name, torch.zeros(())) + 0.001 * gradient**2
        size = (square[name] / (1 - 0.999**step)).sqrt() + 1e-8
        weight.sub_(0.005 * mean[name] / (1 - 0.8**step) / size)  # half the rate: both steps end in 1/2 or later

    network = by_hand(training, update)
    for name, weight in network.named_parameters():
        torch.testing.assert_close(after[name], weight.detach(), rtol=1e-4, atol=1e-5, msg=name)
    # Two steps hardly tell 0.999 from 0.99.
    assert train.make_optimizer(network, training.recipe).param_groups[0]["betas"] == (0.8, 0.999)


def test_the_rate_falls_by_the_factor_of_the_recipe() -> None:
    authors = {"learning_rate": 0.01, "drops": ["25/110", "50/110", "75/110", "100/110"], "drop_factor": 0.5}
    recipe = load_preset("paper").recipe("cifar10", authors)
    rates = [train.learning_rate(recipe, epoch, 0, 2) for epoch in (0, 24, 25, 50, 75, 100, 109)]
    assert rates == [0.01, 0.01, 0.005, 0.0025, 0.00125, 0.000625, 0.000625]


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"optimizer": "lion"}, r"\[recipe\] optimizer cannot be 'lion'; expected one of sgd, adam"),
        ({"drop_factor": 0}, "drop_factor must be above 0, not 0"),
        ({"optimizer": "adam", "momentum": 1}, "Adam's momentum must be at least 0 and below 1, not 1"),
    ],
)
def test_a_recipe_without_meaning_is_refused(changes: dict[str, object], line: str) -> None:
    with pytest.raises(UseError, match=line):
        load_preset("quick").recipe("digits", changes)


def test_every_epoch_has_its_own_order_and_goes_through_all_examples(empty: Any) -> None:
    trained(empty, "recorded", epochs=2)
    first, second = torch.cat(Recorded.seen[:2]), torch.cat(Recorded.seen[2:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(Digits().load("train").ids.tolist())
    assert not torch.equal(first, second)


def test_the_first_evaluation_is_made_alone_since_it_compiles(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[bool] = []
    accuracies = train.accuracies

    def noted(*given: Any, **options: Any) -> dict[str, float]:
        alone.append(TURNS.is_alone())
        return accuracies(*given, **options)

    monkeypatch.setattr(train, "accuracies", noted)
    trained(empty, "standard", epochs=3)
    assert alone == [True, False, False]


def test_the_first_of_equally_good_epochs_is_chosen_and_the_last_is_kept_too(
    empty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = scripted(monkeypatch, 10.0, 30.0, 30.0, 20.0)
    chosen, last = trained(empty, "pgd-at", epochs=4)
    assert (chosen.facts["epoch"], last.facts["epoch"]) == (2, 4)
    assert holds(chosen, weights[1])
    assert holds(last, weights[3])
    assert [record["robust_accuracy"] for record in chosen.facts["log"]] == [10.0, 30.0, 30.0, 20.0]


def test_an_epoch_without_any_robust_accuracy_can_be_chosen(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    scripted(monkeypatch, 0.0, 0.0)
    assert trained(empty, "pgd-at", epochs=2)[0].facts["epoch"] == 1


def test_standard_training_takes_the_last_epoch(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = scripted(monkeypatch, 30.0, 20.0, 0.0)
    chosen, last = trained(empty, "standard", epochs=3)
    assert (chosen.facts["epoch"], last.facts["epoch"]) == (3, 3)
    assert holds(chosen, weights[2])


def test_standard_training_is_attacked_only_at_its_end(empty: Any) -> None:
    log = trained(empty, "standard", epochs=3)[0].facts["log"]
    assert ["robust_accuracy" in record for record in log] == [False, False, True]
    assert all(record["clean_accuracy"] > 0 for record in log)


NEVER = "pgd-at did not become robust: under pgd1 no epoch answers more than {:.1f} % right, no more than chance"
KEEPS = (
    "pgd-at keeps epoch {} of 3, chosen by pgd1: {:.1f} % right under it, 50.0 % clean; the last epoch has {:.1f} % "
    "right under it, 50.0 % clean: what the kept network holds may be chance"
)


@pytest.mark.parametrize(
    ("robust", "lines"),
    [
        ((9.0, 30.0, 15.0), []),  # half of the best is still there
        ((9.0, 30.0, 14.9), [KEEPS.format(2, 30.0, 14.9)]),
        ((9.14, 1.5, 0.89), [NEVER.format(9.1), KEEPS.format(1, 9.1, 0.9)]),
        ((9.14, 5.0, 4.6), [NEVER.format(9.1)]),
        ((0.0, 0.0, 0.0), [NEVER.format(0.0)]),
        ((10.1, 9.0, 8.0), []),
    ],
)
def test_a_training_that_loses_what_chose_its_epoch_is_told(
    robust: tuple[float, ...], lines: list[str], empty: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted(monkeypatch, *robust)
    trained(empty, "pgd-at", epochs=3)
    assert [each for each in empty.report.lines if "keeps" in each or "robust" in each] == lines


def test_the_log_says_what_the_chosen_epoch_reaches(bench: Any) -> None:
    job = bench.prepare("confidence", "clean", recipe={"epochs": 3})
    training = job.plan.cells[0].training
    checkpoint = job.materials.checkpoint(training)
    log, chosen = checkpoint.facts["log"], checkpoint.facts["epoch"]
    best = max(record["robust_accuracy"] for record in log)
    assert [record["epoch"] for record in log] == [1, 2, 3]
    assert chosen == next(record["epoch"] for record in log if record["robust_accuracy"] == best)

    network = train.build_network(training, Digits.info, build(Rejector, training.rejector))
    load_weights(network, checkpoint)
    network.eval()
    judged, test = Digits().load("calibration"), Digits().load("test")
    with torch.no_grad():
        clean = network(judged.images).logits.argmax(1) == judged.labels
        correct = network(test.images).logits.argmax(1) == test.labels
    assert log[chosen - 1]["clean_accuracy"] == pytest.approx(100 * clean.double().mean().item(), abs=1e-3)
    assert checkpoint.facts["clean_accuracy"] == pytest.approx(100 * correct.double().mean().item(), abs=1e-3)
    assert torch.equal(unpack_bits(checkpoint.facts["clean_correct"]), correct)


def test_the_fast_twin_says_what_an_epoch_reaches(bench: Any) -> None:
    class Asked(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network, self.inputs, self.refreshed = network, 0, 0

        def forward(self, images: Tensor) -> object:
            self.inputs += len(images)
            return self.network(images)

        def refresh(self) -> None:
            self.refreshed += 1

    training = bench.prepare("confidence", "clean").plan.cells[0].training
    rejector, judged = build(Rejector, training.rejector), Digits().load("calibration", ())
    network = train.build_network(training, Digits.info, rejector)
    expected = train.accuracies(training, Instrumented(network, "fp32"), rejector, judged)
    slow, twin = Asked(network), Asked(network)
    assert train.accuracies(training, Instrumented(slow, "fp32", twin=twin), rejector, judged) == expected
    # PGD asks the network itself about its last images.
    assert (slow.inputs, twin.refreshed) == (judged.size, 1)


def test_a_loss_that_is_nan_names_the_epoch(empty: Any) -> None:
    with pytest.raises(CellError, match="diverged in epoch 2: the loss is nan"):
        trained(empty, "diverging", epochs=3)


@pytest.mark.parametrize(
    ("how", "left"),
    [
        ("eval", "the network in eval mode"),
        ("a module in eval", "the network's module '.+' in eval mode"),
        ("a weight", "the network's weight '.+' frozen"),
    ],
)
def test_a_framework_that_leaves_the_network_otherwise_is_refused_by_name(empty: Any, how: str, left: str) -> None:
    framework = f"leaving(how={how})"
    with pytest.raises(CellError, match=f"{re.escape(framework)} leaves {left}: put it back"):
        trained(empty, framework, epochs=1)


def test_a_framework_may_change_the_network_inside_a_step(empty: Any) -> None:
    assert trained(empty, "leaving(how=nothing)", epochs=1)[0].facts["epoch"] == 1


def test_what_a_framework_sets_for_the_process_ends_with_its_training(empty: Any) -> None:
    with torch.enable_grad():
        trained(empty, "leaving(how=gradients off)", epochs=1)
        assert torch.is_grad_enabled()
        assert trained(empty, "standard", epochs=1)[0].facts["epoch"] == 1


def test_initial_weights_depend_on_the_seed_alone_and_leave_the_global_state_alone(empty: Any) -> None:
    _, training = planned(empty, "standard", "rr")
    rejector, states = build(Rejector, training.rejector), []
    for world in (1, 2):
        torch.manual_seed(world)
        before = torch.get_rng_state()
        states.append(train.build_network(training, Digits.info, rejector).state_dict())
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(states[0][name], states[1][name]) for name in states[0])
    other = train.build_network(replace(training, seed=1), Digits.info, rejector).state_dict()
    assert not torch.equal(other["classifier.weight"], states[0]["classifier.weight"])


def test_a_training_neither_reads_nor_moves_the_global_random_state(empty: Any, tmp_path: Any) -> None:
    made = []
    for world in (1, 2):
        empty.out = tmp_path / str(world)
        torch.manual_seed(world)
        before = torch.get_rng_state()
        made.append(trained(empty, "pgd-at", epochs=1))
        assert torch.equal(torch.get_rng_state(), before)
    assert same(made[0][0], made[1][0])
    assert same(made[0][1], made[1][1])


def test_the_same_training_writes_the_same_file(empty: Any, tmp_path: Any) -> None:
    made = []
    for place in ("here", "there"):
        empty.out = tmp_path / place
        made.append(trained(empty, "standard", epochs=1)[0].sha256)
    assert made[0] == made[1], "rows name a checkpoint by this hash"


def test_another_seed_is_another_training(empty: Any) -> None:
    keys = {
        empty.prepare("confidence", "clean", seeds=(seed,), recipe=recipe).plan.cells[0].training.key
        for seed in (0, 1)
        for recipe in ({}, {"epochs": 4}, {"batch": 32}, {"weight_decay": 0.0}, {"choose_on": "test"})
    }
    assert len(keys) == 10


def test_epochs_that_are_no_number_of_epochs_are_refused(empty: Any) -> None:
    for epochs in (0, -3):
        with pytest.raises(UseError, match="epoch"):
            planned(empty, "standard", epochs=epochs)
