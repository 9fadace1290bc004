"""Averaged weights: the mean by hand, the content of a checkpoint, and an unchanged plain recipe."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rrbench.datasets.digits import Digits
from rrbench.errors import UseError
from rrbench.files.checkpoints import read_checkpoint
from rrbench.measuring.pack import file_name
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import build
from rrbench.protocols import Rejector
from rrbench.training import train
from rrbench.training.average import Average
from rrbench.zoo import EMBEDDED, entries, kept, nearest, write_index
from short_trainings import Fused, Recorded, planned, same, trained

pytestmark = pytest.mark.usefixtures("frameworks")


def test_the_mean_of_many_steps_has_a_closed_form() -> None:
    """Of a weight that grows by 1 a step from 0: it lags by keep / (1 - keep), less what is left of the start."""
    layer, keep = nn.Linear(1, 1, bias=False).double(), 0.9
    layer.weight.data.fill_(0.0)
    average = Average(layer, keep)
    for step in range(1, 51):
        layer.weight.data.fill_(float(step))
        average.follow()
    lag = keep / (1 - keep)
    with average.worn():
        assert layer.weight.item() == pytest.approx(50 - lag * (1 - keep**50), rel=1e-12)
    assert layer.weight.item() == 50.0


def test_statistics_are_averaged_and_counters_are_not() -> None:
    norm = nn.BatchNorm1d(1, momentum=1.0)  # its mean is that of the last batch alone
    average = Average(norm, 0.75)
    norm(torch.tensor([[8.0], [12.0]]))
    average.follow()
    with average.worn():
        assert norm.running_mean is not None
        assert norm.running_mean.item() == pytest.approx(0.25 * 10)
        assert norm.num_batches_tracked is not None
        assert int(norm.num_batches_tracked) == 1
    assert norm.running_mean.item() == 10.0


def test_weights_come_back_also_after_an_error() -> None:
    layer = nn.Linear(3, 2)
    average = Average(layer, 0.5)
    layer.weight.data.add_(1.0)
    before, place = layer.weight.detach().clone(), layer.weight.data_ptr()

    def interrupted() -> None:
        with average.worn():
            assert not torch.equal(layer.weight, before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert torch.equal(layer.weight, before)
    assert layer.weight.data_ptr() == place, "a captured step writes to this place"


def test_a_checkpoint_holds_the_mean_of_the_hand_written_updates(empty: Any) -> None:
    materials, training = planned(empty, "recorded", epochs=2, average=0.5)
    materials.checkpoint(training)
    after = read_checkpoint(materials.store.checkpoint_files(training.key).last).tensors
    data = Digits().load("train")
    place = {int(example): position for position, example in enumerate(data.ids)}
    network = train.build_network(training, Digits.info, build(Rejector, training.rejector)).train()
    velocity = {name: torch.zeros_like(weight) for name, weight in network.named_parameters()}
    mean = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    assert len(Recorded.seen) == 4
    for index, ids in enumerate(Recorded.seen):
        batch = data.at(torch.tensor([place[int(example)] for example in ids]))
        network.zero_grad()
        F.cross_entropy(network(batch.images).logits, batch.labels).backward()
        rate = train.learning_rate(training.recipe, index // 2, index % 2, 2)
        with torch.no_grad():
            for name, weight in network.named_parameters():
                assert weight.grad is not None
                velocity[name] = 0.9 * velocity[name] + weight.grad + 5e-4 * weight
                weight.sub_(rate * velocity[name])
        for name, tensor in network.state_dict().items():
            mean[name] = 0.5 * mean[name] + 0.5 * tensor if tensor.is_floating_point() else tensor.clone()
    for name, tensor in mean.items():
        torch.testing.assert_close(after[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


def test_a_training_stopped_anywhere_goes_on_with_its_mean_to_the_same_bits(
    empty: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    undisturbed = trained(empty, "fused(steps=1)", epochs=2, average=0.9)
    empty.out = tmp_path / "disturbed"
    monkeypatch.setattr(Fused, "fuse", 4)  # in the second epoch of two steps
    with pytest.raises(KeyboardInterrupt):
        trained(empty, "fused(steps=1)", epochs=2, average=0.9)
    monkeypatch.setattr(Fused, "fuse", -1)
    again = trained(empty, "fused(steps=1)", epochs=2, average=0.9)
    assert any(line.startswith("resuming") for line in empty.report.lines)
    assert same(undisturbed[0], again[0])
    assert same(undisturbed[1], again[1])


def test_a_recipe_without_it_has_the_key_that_it_had() -> None:
    training = make_plan(Request(["confidence"], ["clean"]), load_preset("quick")).cells[0].training
    assert training.key in {entry.key for entry in entries(EMBEDDED)}
    recipe = train.describe_training(training)["recipe"]
    assert isinstance(recipe, dict)
    assert "average" not in recipe
    averaged = replace(training, recipe=replace(training.recipe, average=0.999))
    assert averaged.key != training.key
    found = train.describe_training(averaged)["recipe"]
    assert isinstance(found, dict)
    assert found == {**recipe, "average": 0.999}
    assert file_name(averaged) == file_name(training).replace("-seed0", "-average0.999-seed0")


def test_a_zoo_prefers_plain_weights_where_nobody_asks_for_averaged_ones(empty: Any, tmp_path: Any) -> None:
    _, training = planned(empty, "pgd-at")
    names = (str(training.dataset), str(training.network), training.seed)
    entry = next(entry for entry in entries(EMBEDDED) if entry.key)
    plain = replace(entry, file="b.safetensors", dataset=names[0], network=names[1], seed=names[2])
    plain = replace(plain, epochs=9, recipe={"epochs": 9})
    averaged = replace(plain, file="a.safetensors", recipe={"epochs": 9, "average": 0.9})
    for each in (plain, averaged):
        (tmp_path / each.file).touch()
    write_index(tmp_path, [averaged, plain])
    for recipe, file in (({"epochs": 1}, "b"), ({"epochs": 9, "average": 0.9}, "a"), ({"epochs": 9}, "b")):
        found = nearest(kept(tmp_path, *names), recipe)
        assert found is not None
        assert found.file == f"{file}.safetensors"


@pytest.mark.parametrize("average", [-0.1, 1.0])
def test_a_share_without_meaning_is_refused(average: float) -> None:
    with pytest.raises(UseError, match=r"average must be at least 0 and below 1, not"):
        load_preset("quick").recipe("digits", {"average": average})


def test_the_command_takes_it(command: Any, tmp_path: Any) -> None:
    answer = command("train", "--average", "1.5", "--out", tmp_path)
    assert answer.code == 2
    assert "average must be at least 0 and below 1, not 1.5" in answer.err
