"""Training: the schedule and the update by hand, the choice of epoch, and resuming to the last bit."""

import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rrbench import train
from rrbench.cells import Training
from rrbench.checkpoints import Checkpoint, load_weights, read_checkpoint, unpack_bits, write_checkpoint
from rrbench.config import load_preset
from rrbench.datasets.digits import Digits
from rrbench.errors import CellError, UseError
from rrbench.frameworks.pgd_at import PgdAt
from rrbench.frameworks.standard import Standard
from rrbench.protocols import Batch, Draws, Framework, Rejector, Victim
from rrbench.registry import build, table
from rrbench.resume import State, Writer, resume
from rrbench.runner import Runner
from rrbench.steps import ALONE


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


@dataclass(frozen=True)
class Recorded(Standard):
    """Standard training that notes which examples it is given."""

    seen: ClassVar[list[Tensor]] = []

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        self.seen.append(batch.ids)
        return super().__call__(victim, batch, draws)


@dataclass(frozen=True)
class Fused(PgdAt):
    """PGD-AT that dies at a chosen step."""

    fuse: ClassVar[int] = -1

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        type(self).fuse -= 1
        if self.fuse == 0:
            raise KeyboardInterrupt
        return super().__call__(victim, batch, draws)


@dataclass(frozen=True)
class Diverging(Framework):
    """Goes well for one epoch; then the loss is NaN."""

    steps: ClassVar[int] = 0

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        type(self).steps += 1
        loss = F.cross_entropy(victim.network(batch.images).logits, batch.labels)
        return loss if self.steps <= 2 else loss * float("nan")

    def gradients_per_image(self) -> int:
        return 1


@pytest.fixture(autouse=True)
def frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, plugin in {"recorded": Recorded, "fused": Fused, "diverging": Diverging}.items():
        monkeypatch.setitem(table("framework").classes, name, plugin)
    monkeypatch.setattr(Recorded, "seen", [])
    monkeypatch.setattr(Fused, "fuse", -1)
    monkeypatch.setattr(Diverging, "steps", 0)


def planned(bench: Any, framework: str, rejector: str = "confidence", **recipe: object) -> tuple[Runner, Training]:
    job = bench.prepare(rejector, "clean", frameworks=framework, recipe={"batch": 539} | recipe)
    job.runner.store.prepare()
    return job.runner, job.plan.cells[0].training


def trained(
    bench: Any, framework: str, rejector: str = "confidence", **recipe: object
) -> tuple[Checkpoint, Checkpoint]:
    """Return the chosen and the last checkpoint of a training."""
    runner, training = planned(bench, framework, rejector, **recipe)
    return runner.checkpoint(training), read_checkpoint(runner.store.checkpoint_files(training.key).last)


def without_times(facts: Mapping[str, Any]) -> dict[str, Any]:
    log = [{key: value for key, value in record.items() if key != "seconds"} for record in facts["log"]]
    return {**facts, "log": log}


def same(first: Checkpoint, second: Checkpoint) -> bool:
    return (
        first.tensors.keys() == second.tensors.keys()
        and all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)
        and without_times(first.facts) == without_times(second.facts)
    )


def test_two_steps_are_the_hand_written_update_of_momentum_and_decay(empty: Any) -> None:
    runner, training = planned(empty, "recorded", epochs=1)
    runner.checkpoint(training)
    after = read_checkpoint(runner.store.checkpoint_files(training.key).last).tensors
    data = Digits().load("train")
    place = {int(example): position for position, example in enumerate(data.ids)}
    assert [len(ids) for ids in Recorded.seen] == [539, 538], "the last partial batch is kept"
    assert sorted(torch.cat(Recorded.seen).tolist()) == sorted(place)

    network = train.build_network(training, Digits.info, build(Rejector, training.rejector)).train()
    velocity = {name: torch.zeros_like(weight) for name, weight in network.named_parameters()}
    for ids, rate in zip(Recorded.seen, (0.1, 0.001), strict=True):
        batch = data.at(torch.tensor([place[int(example)] for example in ids]))
        network.zero_grad()
        F.cross_entropy(network(batch.images).logits, batch.labels).backward()
        with torch.no_grad():
            for name, weight in network.named_parameters():
                assert weight.grad is not None
                velocity[name] = 0.9 * velocity[name] + weight.grad + 5e-4 * weight
                weight.sub_(rate * velocity[name])
    for name, weight in network.state_dict().items():
        torch.testing.assert_close(after[name], weight, rtol=1e-5, atol=1e-6, msg=name)


def test_every_epoch_has_its_own_order_and_goes_through_all_examples(empty: Any) -> None:
    trained(empty, "recorded", epochs=2)
    first, second = torch.cat(Recorded.seen[:2]), torch.cat(Recorded.seen[2:])
    assert sorted(first.tolist()) == sorted(second.tolist()) == sorted(Digits().load("train").ids.tolist())
    assert not torch.equal(first, second)


def test_a_training_stopped_anywhere_and_run_again_ends_with_the_same_bits(
    empty: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = trained(empty, "fused(steps=1)", "rr", epochs=3)
    empty.out = tmp_path / "disturbed"
    for stop, finished in ((2, 0), (4, 1), (3, 2)):  # an epoch has two steps
        monkeypatch.setattr(Fused, "fuse", stop)
        runner, training = planned(empty, "fused(steps=1)", "rr", epochs=3)
        files = runner.store.checkpoint_files(training.key)
        with pytest.raises(KeyboardInterrupt):
            runner.checkpoint(training)
        assert (read_checkpoint(files.resume).facts["epoch"] if files.resume.is_file() else 0) == finished
        assert not files.chosen.exists()
    monkeypatch.setattr(Fused, "fuse", -1)
    again = trained(empty, "fused(steps=1)", "rr", epochs=3)
    assert any(line.startswith("resuming") for line in empty.report.lines)
    assert empty.report.totals == [1]  # what was done before would tell a wrong speed
    assert empty.report.done == pytest.approx([1])
    assert same(undisturbed[0], again[0])
    assert same(undisturbed[1], again[1])
    assert not list((empty.out / "checkpoints").glob("*resume*"))


def test_a_training_stopped_after_its_last_epoch_only_writes_its_checkpoints(
    empty: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = trained(empty, "recorded", epochs=2)
    empty.out = tmp_path / "disturbed"
    with monkeypatch.context() as context:
        context.setattr(train, "_finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trained(empty, "recorded", epochs=2)
    steps = len(Recorded.seen)
    again = trained(empty, "recorded", epochs=2)
    assert len(Recorded.seen) == steps
    assert same(undisturbed[0], again[0])
    assert same(undisturbed[1], again[1])


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_damaged_or_foreign_resume_file_is_one_line(empty: Any) -> None:
    runner, training = planned(empty, "standard", epochs=1)
    files = runner.store.checkpoint_files(training.key)
    write_checkpoint(files.resume, {}, {"key": "another", "epoch": 1})
    with pytest.raises(UseError, match="belongs to another training; delete it"):
        runner.checkpoint(training)
    files.resume.write_bytes(b"half a file")
    with pytest.raises(UseError, match="truncated or damaged"):
        runner.checkpoint(training)


def scripted(monkeypatch: pytest.MonkeyPatch, *robust: float) -> list[dict[str, Tensor]]:
    """Let the epochs have these robust accuracies; return the list that will hold their weights."""
    weights: list[dict[str, Tensor]] = []

    def accuracies(training: Training, state: State, *rest: object, is_attacked: bool) -> dict[str, float]:
        weights.append({name: tensor.clone() for name, tensor in state.network.state_dict().items()})
        return {"clean_accuracy": 50.0, "robust_accuracy": robust[len(weights) - 1]}

    monkeypatch.setattr(train, "accuracies", accuracies)
    return weights


def holds(checkpoint: Checkpoint, weights: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(checkpoint.tensors[name], tensor) for name, tensor in weights.items())


def test_an_epoch_is_written_as_it_ended_while_the_next_one_trains(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, written, steps = scripted(monkeypatch, 10.0, 20.0), list[Checkpoint](), list[int]()

    def late(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        end = time.monotonic() + 10
        while len(Recorded.seen) < 4 and time.monotonic() < end:  # of two epochs of two steps
            time.sleep(0.01)
        steps.append(len(Recorded.seen))
        write_checkpoint(path, tensors, facts)
        written.append(read_checkpoint(path))

    monkeypatch.setattr("rrbench.resume.write_checkpoint", late)
    trained(empty, "recorded", epochs=2)
    assert steps == [4, 4]
    assert [(each.facts["epoch"], len(each.facts["log"])) for each in written] == [(1, 1), (2, 2)]
    for each, ended in zip(written, weights, strict=True):
        assert holds(each, {f"network.{name}": tensor for name, tensor in ended.items()})


def test_who_stops_after_an_epoch_finds_it_written(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner, training = planned(empty, "standard", epochs=3)
    files = runner.store.checkpoint_files(training.key)

    def slow(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        time.sleep(0.2)
        write_checkpoint(path, tensors, facts)

    monkeypatch.setattr("rrbench.resume.write_checkpoint", slow)
    going = train.epochs(
        training,
        lambda split: runner.data(training.dataset, split),
        files,
        device=runner.device,
        precision="fp32",
        report=runner.report,
    )
    assert isinstance(going, Generator)
    assert next(going).record["epoch"] == 1
    going.close()
    assert read_checkpoint(files.resume).facts["epoch"] == 1


def test_the_first_evaluation_is_made_alone_since_it_compiles(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    alone: list[bool] = []
    accuracies = train.accuracies

    def noted(*given: Any, **options: Any) -> dict[str, float]:
        alone.append(ALONE.locked())
        return accuracies(*given, **options)

    monkeypatch.setattr(train, "accuracies", noted)
    trained(empty, "standard", epochs=3)
    assert alone == [True, False, False]


def test_a_write_that_failed_costs_nothing_if_the_next_one_works(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    def full_at_first(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        written.append(facts["epoch"])
        if facts["epoch"] == 1:
            raise UseError("cannot write it: No space left on device")
        write_checkpoint(path, tensors, facts)

    monkeypatch.setattr("rrbench.resume.write_checkpoint", full_at_first)
    assert trained(empty, "standard", epochs=3)[1].facts["epoch"] == 3
    assert written == [1, 2, 3]


def test_momentum_comes_back_in_the_layout_of_its_weight(empty: Any, tmp_path: Path) -> None:
    _, training = planned(empty, "standard", epochs=1)
    states = []
    for _ in range(2):
        network: nn.Module = nn.Conv2d(3, 8, 3)
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        states.append(State(network, train.make_optimizer(network, training.recipe)))
    first, second = states
    first.network(torch.rand(2, 3, 8, 8)).sum().backward()
    first.optimizer.step()
    with Writer(tmp_path / "resume.safetensors", training) as writer:
        writer.save(first)
    resume(second, tmp_path / "resume.safetensors", training)
    (one, other) = (state.optimizer.state[next(state.network.parameters())]["momentum_buffer"] for state in states)
    assert torch.equal(one, other)
    assert other.stride() == next(second.network.parameters()).stride()
    assert not other.is_contiguous()


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


def test_the_log_says_what_the_chosen_epoch_reaches(bench: Any) -> None:
    job = bench.prepare("confidence", "clean")
    training = job.plan.cells[0].training
    checkpoint = job.runner.checkpoint(training)
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


def test_a_loss_that_is_nan_names_the_epoch(empty: Any) -> None:
    with pytest.raises(CellError, match="diverged in epoch 2: the loss is nan"):
        trained(empty, "diverging", epochs=3)


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
