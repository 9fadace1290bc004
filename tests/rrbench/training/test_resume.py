"""A stopped training: its state is written while it trains, and it resumes to the same bits."""

import time
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rrbench.errors import UseError
from rrbench.files.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from rrbench.training import train
from rrbench.training.resume import State, Writer, resume
from short_trainings import Fused, Recorded, holds, planned, same, scripted, trained

pytestmark = pytest.mark.usefixtures("frameworks")


ADAM = {"optimizer": "adam", "learning_rate": 0.01, "drop_factor": 0.5}


@pytest.mark.parametrize("recipe", [{}, ADAM], ids=["sgd", "adam"])
def test_a_training_stopped_anywhere_and_run_again_ends_with_the_same_bits(
    recipe: dict[str, object], empty: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = trained(empty, "fused(steps=1)", "rr", epochs=3, **recipe)
    empty.out = tmp_path / "disturbed"
    for stop, finished in ((2, 0), (4, 1), (3, 2)):  # an epoch has two steps
        monkeypatch.setattr(Fused, "fuse", stop)
        materials, training = planned(empty, "fused(steps=1)", "rr", epochs=3, **recipe)
        files = materials.store.checkpoint_files(training.key)
        with pytest.raises(KeyboardInterrupt):
            materials.checkpoint(training)
        assert (read_checkpoint(files.resume).facts["epoch"] if files.resume.is_file() else 0) == finished
        assert not files.chosen.exists()
    monkeypatch.setattr(Fused, "fuse", -1)
    again = trained(empty, "fused(steps=1)", "rr", epochs=3, **recipe)
    assert any(line.startswith("resuming") for line in empty.report.lines)
    assert empty.report.totals == [1]  # what was done before would tell a wrong speed
    assert empty.report.done == pytest.approx([1])
    assert same(undisturbed[0], again[0])
    assert same(undisturbed[1], again[1])
    assert not list((empty.out / "checkpoints").glob("*resume*"))


def test_a_training_stopped_after_its_last_epoch_only_writes_its_checkpoints(
    empty: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {"clean_accuracy": 10.0, "robust_accuracy": 0.0}
    monkeypatch.setattr(train, "accuracies", lambda *given, **more: found)
    undisturbed = trained(empty, "recorded", epochs=2)
    empty.out = tmp_path / "disturbed"
    with monkeypatch.context() as context:
        context.setattr(train, "_finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trained(empty, "recorded", epochs=2)
    steps = len(Recorded.seen)
    empty.report.lines.clear()
    again = trained(empty, "recorded", epochs=2)
    assert len(Recorded.seen) == steps
    assert any("no more than chance" in line for line in empty.report.lines), "a resumed run tells it, too"
    assert same(undisturbed[0], again[0])
    assert same(undisturbed[1], again[1])


def interrupt(*arguments: object) -> None:
    raise KeyboardInterrupt


def test_a_damaged_or_foreign_resume_file_is_one_line(empty: Any) -> None:
    materials, training = planned(empty, "standard", epochs=1)
    files = materials.store.checkpoint_files(training.key)
    write_checkpoint(files.resume, {}, {"key": "another", "epoch": 1})
    with pytest.raises(UseError, match="belongs to another training; delete it"):
        materials.checkpoint(training)
    files.resume.write_bytes(b"half a file")
    with pytest.raises(UseError, match="truncated or damaged"):
        materials.checkpoint(training)


def test_an_epoch_is_written_as_it_ended_while_the_next_one_trains(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    weights, written, steps = scripted(monkeypatch, 10.0, 20.0), list[Checkpoint](), list[int]()

    def late(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        end = time.monotonic() + 10
        while len(Recorded.seen) < 4 and time.monotonic() < end:  # of two epochs of two steps
            time.sleep(0.01)
        steps.append(len(Recorded.seen))
        write_checkpoint(path, tensors, facts)
        written.append(read_checkpoint(path))

    monkeypatch.setattr("rrbench.training.resume.write_checkpoint", late)
    trained(empty, "recorded", epochs=2)
    assert steps == [4, 4]
    assert [(each.facts["epoch"], len(each.facts["log"])) for each in written] == [(1, 1), (2, 2)]
    for each, ended in zip(written, weights, strict=True):
        assert holds(each, {f"network.{name}": tensor for name, tensor in ended.items()})


def test_who_stops_after_an_epoch_finds_it_written(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    materials, training = planned(empty, "standard", epochs=3)
    files = materials.store.checkpoint_files(training.key)

    def slow(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        time.sleep(0.2)
        write_checkpoint(path, tensors, facts)

    monkeypatch.setattr("rrbench.training.resume.write_checkpoint", slow)
    going = train.epochs(
        training,
        lambda split: materials.data(training.dataset, split),
        files,
        device=materials.device,
        precision="fp32",
        report=materials.report,
    )
    assert isinstance(going, Generator)
    assert next(going).record["epoch"] == 1
    going.close()
    assert read_checkpoint(files.resume).facts["epoch"] == 1


def test_a_write_that_failed_costs_nothing_if_the_next_one_works(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[object] = []

    def full_at_first(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
        written.append(facts["epoch"])
        if facts["epoch"] == 1:
            raise UseError("cannot write it: No space left on device")
        write_checkpoint(path, tensors, facts)

    monkeypatch.setattr("rrbench.training.resume.write_checkpoint", full_at_first)
    assert trained(empty, "standard", epochs=3)[1].facts["epoch"] == 3
    assert written == [1, 2, 3]


@pytest.mark.parametrize(
    ("recipe", "moments"), [({}, ["momentum_buffer"]), (ADAM, ["exp_avg", "exp_avg_sq"])], ids=["sgd", "adam"]
)
def test_moments_come_back_in_the_layout_of_their_weight(
    recipe: dict[str, object], moments: list[str], empty: Any, tmp_path: Path
) -> None:
    _, training = planned(empty, "standard", "confidence", epochs=1, **recipe)
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
    (one, other) = (state.optimizer.state[next(state.network.parameters())] for state in states)
    assert one.keys() == other.keys()
    assert all(torch.equal(one[key], other[key]) for key in one)
    for moment in moments:
        assert other[moment].stride() == next(second.network.parameters()).stride()
        assert not other[moment].is_contiguous()


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("mean.weight", None),  # a part is missing
        ("square.weight", torch.zeros(3)),
        ("steps.weight", torch.zeros(1)),
        ("steps.weight", torch.tensor(-1.0)),  # Adam would divide by 0
        ("momentum.weight", torch.zeros(2, 2)),  # of another optimiser
    ],
)
def test_what_is_not_all_that_adam_remembers_is_refused(
    name: str, tensor: Tensor | None, empty: Any, tmp_path: Path
) -> None:
    _, training = planned(empty, "standard", "confidence", epochs=1, **ADAM)
    network, path = nn.Linear(2, 2), tmp_path / "resume.safetensors"
    state = State(network, train.make_optimizer(network, training.recipe))
    network(torch.rand(2, 2)).sum().backward()
    state.optimizer.step()
    with Writer(path, training) as writer:
        writer.save(state)
    resume(state, path, training)
    sound = read_checkpoint(path)
    kept = {each: found for each, found in sound.tensors.items() if each != name}
    write_checkpoint(path, kept if tensor is None else {**kept, name: tensor}, sound.facts)
    with pytest.raises(UseError, match="is damaged: nothing can go on from it"):
        resume(state, path, training)
