"""The contract of a rejector, for every rejector of rrbench and of the outside package that the tests install."""

from copy import copy

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from on_device import on_device
from rrbench.planning.cells import training_key
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import build, choose, expand, table
from rrbench.protocols import Outputs, Rejector
from rrbench.testing import Check, rejector_checks
from rrbench.testing.problem import INFO
from rrbench.testing.rejectors import RejectorCase, make_case
from tested_plugins import TESTED

pytestmark = pytest.mark.usefixtures("one_thread")

NAMES = TESTED["rejector"]


def make(name: str) -> Rejector:
    """Build a rejector as `rrbench run` would, with the settings for small data."""
    text = expand("rejector", name).partition("@")[0]
    return build(Rejector, choose("rejector", text, load_preset("quick"), "digits"))


EVERY = pytest.mark.parametrize("name", NAMES)
VARYING = pytest.mark.parametrize("name", [name for name in NAMES if not make(name).is_constant])


@pytest.fixture
def case(name: str) -> RejectorCase:
    return make_case(make(name))


@pytest.mark.parametrize(
    "check", [pytest.param(check, id=f"{name}: {check}") for name in NAMES for check in rejector_checks(make(name))]
)
def test_it_keeps_the_contract(check: Check) -> None:
    check()


@VARYING
def test_scores_tie_for_few_inputs_only(case: RejectorCase) -> None:
    assert case.certainty(case.outputs, case.batch.labels).unique().numel() > 50


@EVERY
def test_in_exact_arithmetic_the_batch_changes_next_to_nothing(case: RejectorCase) -> None:
    whole, labels = case.certainty(case.outputs, case.batch.labels), case.batch.labels
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    for rows in (order, torch.tensor([0]), torch.tensor([57])):
        part = case.certainty(case.outputs.at(rows), labels[rows])
        torch.testing.assert_close(part, whole[rows], rtol=1e-6, atol=1e-9)


@VARYING
def test_every_input_s_certainty_has_a_slope(case: RejectorCase) -> None:
    images = (0.1 + 0.8 * case.batch.images[:20]).requires_grad_()  # none that the rejector was fitted on
    certainty = case.certainty(case.network(images), case.batch.labels[:20])
    (gradient,) = torch.autograd.grad(certainty.sum(), images)
    assert gradient.flatten(1).any(1).all()


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
# Who looks again needs images, and these are outputs alone.
LEFT_OUT = {name for name in NAMES if name == "atro" or make(name).is_constant or make(name).has_look()}


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LEFT_OUT])
def test_a_typical_right_input_is_kept_before_an_odd_wrong_one(case: RejectorCase) -> None:
    classes = INFO.classes
    centres = torch.stack([case.outputs.features[case.batch.labels == label].mean(0) for label in range(classes)])
    labels = torch.arange(2 * classes) % classes
    # Near its class's mean and sure of it; then far from all means, and half sure of another class.
    features = torch.cat([centres, 5 + 3 * centres.flip(0)])
    sure, unsure = 6 * F.one_hot(labels[:classes]), 1.5 * F.one_hot((labels[:classes] + 1) % classes)
    head = torch.zeros(2 * classes, case.outputs.head.shape[1])
    outputs = learnt(case.rejector, Outputs(features, torch.cat([sure, unsure]).float(), head), labels)
    certainty = case.rejector.oracle_certainty(outputs, labels)
    assert certainty[:classes].min() > certainty[classes:].max()


@EVERY
def test_it_says_whose_idea_it_is_and_where_it_runs(name: str) -> None:
    rejector = make(name)
    kind = type(rejector)
    assert kind.paper or not kind.__module__.startswith("rrbench_"), "say in `paper` whose idea it is"
    assert set(rejector.frameworks) <= set(table("framework"))
    assert bool(training_key(rejector, name)) == rejector.has_training()
    assert rejector.has_training() >= rejector.has_head()


def test_the_installed_plugin_is_among_them() -> None:
    assert {"confidence", "rr", "ebd", "outside-gap"} <= set(NAMES)


@pytest.mark.gpu
@EVERY
def test_a_gpu_gives_the_scores_of_the_cpu(case: RejectorCase) -> None:
    device = torch.device("cuda")
    moved = copy(case.rejector)
    moved.fitted = {key: tensor.to(device) for key, tensor in case.rejector.fitted.items()}
    outputs = on_device(case.outputs, device)
    scores = moved.oracle_certainty(moved.shown(outputs), case.batch.labels.to(device))
    torch.testing.assert_close(scores.cpu(), case.certainty(case.outputs, case.batch.labels), rtol=1e-4, atol=1e-9)
