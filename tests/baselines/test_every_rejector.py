"""The contract of a rejector, for every one that is installed: an outsider's plugin is taken up by itself."""

from collections.abc import Callable
from copy import copy
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional as F

from on_device import on_device
from rrbench.config import load_preset
from rrbench.draws import HashedDraws
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Calibration, Outputs, Rejector, Victim
from rrbench.registry import build, choose, expand, table
from rrbench_attacks.adaptive import Adaptive

pytestmark = pytest.mark.usefixtures("one_thread")

WIDTH, CLASSES = 16, 4  # of the network in conftest.py


def make(name: str) -> Rejector:
    """Build a rejector as `rrbench run` would, with the settings for small data."""
    text = expand("rejector", name).partition("@")[0]
    return build(Rejector, choose("rejector", text, load_preset("quick"), "digits"))


EVERY = pytest.mark.parametrize("name", list(table("rejector")))


class Case(NamedTuple):
    """A fitted rejector, its network, and what that says of the patterns."""

    rejector: Rejector
    network: nn.Module
    batch: Batch
    outputs: Outputs

    @property
    def certainty(self) -> Tensor:
        return self.rejector.oracle_certainty(self.outputs, self.batch.labels)


@pytest.fixture
def case(name: str, build_network: Callable[[Rejector], nn.Module], patterns: Batch) -> Case:
    rejector = make(name)
    network = build_network(rejector)
    with torch.no_grad():
        outputs = network(patterns.images)
    rejector.fit(outputs, patterns.labels)
    return Case(rejector, network, patterns, outputs)


# Scores.


@EVERY
def test_every_image_has_one_finite_score(case: Case) -> None:
    before = [part.clone() for part in case.outputs]
    certainty = case.certainty
    assert certainty.shape == case.batch.labels.shape
    assert certainty.is_floating_point()
    assert certainty.isfinite().all()
    assert certainty.unique().numel() > 50  # not one score for all
    assert all(torch.equal(part, whole) for part, whole in zip(case.outputs, before, strict=True))


@EVERY
def test_the_rest_of_the_batch_and_its_order_change_nothing(case: Case) -> None:
    whole, labels = case.certainty, case.batch.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    shuffled = case.rejector.oracle_certainty(case.outputs.at(order), labels[order])
    torch.testing.assert_close(shuffled, whole[order], rtol=1e-6, atol=1e-9)
    for row in (0, 57):
        one = slice(row, row + 1)
        alone = case.rejector.oracle_certainty(case.outputs.at(one), labels[one])
        torch.testing.assert_close(alone, whole[one], rtol=1e-6, atol=1e-9)


@EVERY
def test_certainty_has_a_gradient_or_an_adaptive_attack_says_that_it_has_none(case: Case) -> None:
    batch = case.batch.at(slice(0, 20))
    batch = batch._replace(images=0.1 + 0.8 * batch.images)  # no image that the rejector was fitted on
    images = batch.images.clone().requires_grad_()
    certainty = case.rejector.oracle_certainty(case.network(images), batch.labels)
    if not certainty.requires_grad:
        victim = Victim(case.network, case.rejector, Calibration(0.0, 0.0, 1.0))
        with pytest.raises(CellError, match="no gradient"):
            Adaptive("ce+rcon", steps=1)(victim, batch, Budget("linf", Fraction(1, 20)), HashedDraws(0))
        return
    (gradient,) = torch.autograd.grad(certainty.sum(), images)
    assert gradient.isfinite().all()
    assert gradient.flatten(1).any(1).all()
    # It is the derivative: a small step along it raises most certainties.
    with torch.no_grad():
        step = 1e-3 * gradient / gradient.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
        higher = case.rejector.oracle_certainty(case.network(batch.images + step), batch.labels)
    assert (higher > certainty).float().mean() >= 0.9


def extreme(case: Case) -> Outputs:
    """Outputs that no sane network gives, in every combination."""
    sizes = torch.tensor([0.0, 1e-30, 30.0, -30.0, 1e4, -1e4, 1e6])
    rows = torch.cartesian_prod(sizes, sizes, sizes)
    wave = torch.tensor([1.0, -1.0, 0.5, 0.0])
    parts = [
        column[:, None] * wave.repeat(part.shape[1])[: part.shape[1]]
        for column, part in zip(rows.T, case.outputs, strict=True)
    ]
    return Outputs(*parts)


@EVERY
def test_extreme_outputs_give_neither_nan_nor_infinity_and_finite_slopes(case: Case) -> None:
    outputs = Outputs(*(part.requires_grad_() for part in extreme(case)))
    for label in (0, 1):
        labels = torch.full((len(outputs.logits),), label)
        certainty = case.rejector.oracle_certainty(outputs, labels)
        assert certainty.isfinite().all()
        if certainty.requires_grad:
            for slope in torch.autograd.grad(certainty.sum(), outputs, allow_unused=True):
                assert slope is None or slope.isfinite().all()


@pytest.mark.parametrize("name", [name for name in table("rejector") if make(name).is_probability])
def test_what_is_called_a_probability_lies_between_0_and_1(case: Case) -> None:
    ids = torch.arange(2000)
    noise = Outputs(
        *(10 * HashedDraws(index).normal(ids, (part.shape[1],), 0) for index, part in enumerate(case.outputs))
    )
    for outputs in (case.outputs, noise, extreme(case)):
        certainty = case.rejector.oracle_certainty(outputs, torch.arange(len(outputs.logits)) % CLASSES)
        assert certainty.min() >= 0
        assert certainty.max() <= 1


@EVERY
def test_what_was_fitted_and_the_settings_are_all_there_is(case: Case, name: str, tmp_path: Path) -> None:
    assert bool(case.rejector.fitted) == ("fit" in case.rejector.needs)
    again = make(name)
    assert again == case.rejector
    if case.rejector.fitted:
        save_file(case.rejector.fitted, tmp_path / "fitted.safetensors")
        again.fitted = load_file(tmp_path / "fitted.safetensors")
    assert torch.equal(again.oracle_certainty(case.outputs, case.batch.labels), case.certainty)


@EVERY
def test_only_an_oracle_uses_the_label(case: Case) -> None:
    other = case.rejector.oracle_certainty(case.outputs, (case.batch.labels + 1) % CLASSES)
    assert torch.equal(other, case.certainty) != case.rejector.is_oracle


# Training.


@EVERY
@pytest.mark.parametrize("share", ["mixed", "all right", "all wrong"])
def test_the_loss_and_its_gradients_are_finite(case: Case, share: str) -> None:
    case.network.train()
    outputs = case.network(case.batch.images[:20])
    predicted = outputs.logits.argmax(1)
    shift = {"mixed": torch.arange(20) % 2, "all right": torch.tensor(0), "all wrong": torch.tensor(1)}[share]
    labels = (predicted + shift) % CLASSES
    loss = case.rejector.training_loss(outputs, labels, F.cross_entropy(outputs.logits, labels))
    assert loss.shape == ()
    assert loss.isfinite()
    loss.backward()
    slopes = [parameter.grad for parameter in case.network.parameters() if parameter.grad is not None]
    assert any(slope.any() for slope in slopes)
    assert all(slope.isfinite().all() for slope in slopes)


@EVERY
def test_the_head_is_there_where_it_is_needed_and_sees_the_features(case: Case) -> None:
    head = case.rejector.build_head(WIDTH, CLASSES)
    assert (head is not None) == ("head" in case.rejector.needs)
    assert case.outputs.features.shape[1] == WIDTH
    if head is None:
        assert case.outputs.head.shape == (case.batch.size, 0)
        return
    features = case.outputs.features.clone().requires_grad_()
    columns = head(features)
    assert columns.shape == case.outputs.head.shape
    (slope,) = torch.autograd.grad(columns.square().sum(), features)
    assert slope.any()
    assert head.eval()(features[:1]).shape == (1, columns.shape[1])


def learnt(rejector: Rejector, outputs: Outputs, labels: Tensor) -> Outputs:
    """Let the head, a free number for each input here, go down the rejector's own loss."""
    columns = outputs.head
    for _ in range(100):
        columns = columns.detach().requires_grad_()
        loss = rejector.training_loss(outputs._replace(head=columns), labels, 0 * columns.sum())
        (slope,) = torch.autograd.grad(loss, columns)
        columns = columns - 5 * slope
    return outputs._replace(head=columns.detach())


# ATRO's score is a head that only its own framework trains: test_default_run.py looks at it on a trained network.
@pytest.mark.parametrize("name", [name for name in table("rejector") if name != "atro"])
def test_a_typical_right_input_is_kept_before_an_odd_wrong_one(case: Case) -> None:
    centres = torch.stack([case.outputs.features[case.batch.labels == label].mean(0) for label in range(CLASSES)])
    labels = torch.arange(2 * CLASSES) % CLASSES
    # Near its class's mean and sure of it; then far from all means, and half sure of another class.
    features = torch.cat([centres, 5 + 3 * centres.flip(0)])
    sure, unsure = 6 * F.one_hot(labels[:CLASSES]), 1.5 * F.one_hot((labels[:CLASSES] + 1) % CLASSES)
    head = torch.zeros(2 * CLASSES, case.outputs.head.shape[1])
    outputs = learnt(case.rejector, Outputs(features, torch.cat([sure, unsure]).float(), head), labels)
    certainty = case.rejector.oracle_certainty(outputs, labels)
    assert certainty[:CLASSES].min() > certainty[CLASSES:].max()


# Self-description.


@EVERY
def test_it_says_what_it_is(name: str) -> None:
    rejector = make(name)
    kind = type(rejector)
    assert kind.scores, "say in `scores` what it takes for certainty"
    assert kind.paper or not kind.__module__.startswith("rrbench_"), "say in `paper` whose idea it is"
    assert rejector.needs <= {"features", "head", "fit"}
    assert set(rejector.frameworks) <= set(table("framework"))
    assert rejector.training_key() == make(name).training_key()
    assert " " not in rejector.training_key()
    assert bool(rejector.training_key()) >= ("head" in rejector.needs)  # a head is trained, so it has a checkpoint
    assert "fitted" not in repr(rejector)


def test_the_installed_plugin_is_among_them() -> None:
    assert {"confidence", "rr", "ebd", "outside-gap"} <= set(table("rejector"))


@pytest.mark.gpu
@EVERY
def test_a_gpu_gives_the_scores_of_the_cpu(case: Case) -> None:
    device = torch.device("cuda")
    moved = copy(case.rejector)
    moved.fitted = {key: tensor.to(device) for key, tensor in case.rejector.fitted.items()}
    scores = moved.oracle_certainty(on_device(case.outputs, device), case.batch.labels.to(device))
    torch.testing.assert_close(scores.cpu(), case.certainty, rtol=1e-4, atol=1e-9)
