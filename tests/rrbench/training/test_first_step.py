"""The first step of a training is watched: what is surely wrong is refused, what may be wrong gets a line."""

import re
from typing import Any

import pytest

from rrbench.errors import CellError
from rrbench.plugins.registry import table
from rrbench.training.captured_steps import Step
from rrbench.training.first_step import FirstStep
from short_trainings import same, trained
from wrong_frameworks import Mistaken, ThreeColumns, WrongLoss, kept


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table("framework").classes, "mistaken", Mistaken)
    monkeypatch.setitem(table("rejector").classes, "wrong-loss", WrongLoss)
    monkeypatch.setitem(table("rejector").classes, "three-columns", ThreeColumns)


def said(bench: Any) -> list[str]:
    return [line for line in bench.report.lines if not line.startswith("trained ")]


@pytest.mark.parametrize(
    ("how", "line"),
    [
        (
            "own step",
            "Mistaken changes the network's weight 'backbone.0.weight': return only the loss, and rrbench takes",
        ),
        (
            "own step on other weights",
            "Mistaken changes the network's weight 'backbone.0.weight': return only the loss",
        ),
        ("backward", "Mistaken calls backward on its loss: return only the loss, and rrbench takes the step"),
        (
            "no_grad",
            "Mistaken returns a loss without a gradient: compute it from the network's outputs, without detach",
        ),
        ("detached", "Mistaken returns a loss without a gradient: compute it from the network's outputs"),
        ("each", "Mistaken returns a loss of shape (539,): return one number, as loss.mean() is"),
        ("nan", "Mistaken returns a loss of nan in the first step"),
        ("tuple", "Mistaken returns a tuple instead of a loss: return one number as a tensor"),
        ("nothing", "Mistaken returns a NoneType instead of a loss: return one number as a tensor"),
        ("number", "Mistaken returns a float instead of a loss: return one number as a tensor"),
        ("whole", "Mistaken returns a loss of torch.int64: return a real number, as a float"),
        ("images alone", "no gradient of Mistaken's loss reaches the network: compute it from victim.network(images)"),
    ],
)
def test_a_framework_s_mistake_is_one_line_that_names_it(empty: Any, how: str, line: str) -> None:
    with pytest.raises(CellError, match=re.escape(line)):
        trained(empty, f"mistaken(how={how})", "rr", epochs=1)


@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("detached", "training_loss of WrongLoss returns a loss without a gradient"),
        ("each", "training_loss of WrongLoss returns a loss of shape (539,): return one number, as loss.mean() is"),
        ("nan", "training_loss of WrongLoss returns a loss of nan in the first step"),
        ("tuple", "training_loss of WrongLoss returns a tuple instead of a loss: return one number as a tensor"),
    ],
)
def test_a_mistake_in_a_rejector_s_loss_names_the_rejector(empty: Any, how: str, line: str) -> None:
    with pytest.raises(CellError, match=re.escape(line)):
        trained(empty, "standard", f"wrong-loss(how={how})", epochs=1)


def test_weights_that_are_moved_and_put_back_up_to_rounding_are_no_step(empty: Any) -> None:
    trained(empty, "mistaken(how=there and back)", "rr", epochs=3, batch=64)
    assert said(empty) == []


def test_a_copy_of_the_network_does_not_take_the_watcher_along(empty: Any) -> None:
    kept.clear()
    trained(empty, "mistaken(how=teacher)", "rr", epochs=3, batch=64)
    assert said(empty) == []
    hooks = [hook for teacher in kept for hook in vars(teacher)["_forward_hooks"].values()]
    assert len(kept) > len(hooks) == 1  # that of the first step, a function, which deepcopy shares
    (watcher,) = (cell.cell_contents for cell in hooks[0].__closure__ if isinstance(cell.cell_contents, FirstStep))
    assert (watcher._weights, watcher._lessons) == ({}, [])


@pytest.mark.parametrize("how", ["first images", "first answers"])
def test_images_that_are_not_learnt_from_are_counted(empty: Any, how: str) -> None:
    trained(empty, f"mistaken(how={how})", "rr", epochs=1)
    name = f"mistaken(how={how})+rr"
    assert said(empty)[0] == f"{name}: Mistaken learns from 10 of the 539 images of its first batch"


@pytest.mark.parametrize("how", ["forgetful", "deaf"])
def test_a_framework_that_leaves_the_rejector_s_loss_out_is_named(empty: Any, how: str) -> None:
    trained(empty, f"mistaken(how={how})", "rr", epochs=3, batch=64)
    line = "Mistaken leaves out the loss of RR: return victim.training_loss(outputs, labels, loss)"
    assert said(empty)[0] == f"mistaken(how={how})+rr: {line}"


def test_a_head_that_no_loss_trains_is_named(empty: Any) -> None:
    trained(empty, "standard", "wrong-loss(how=headless)", epochs=1)
    line = "no gradient reaches the weight 'head.0.weight' and 5 more: training leaves it as it is"
    assert said(empty) == [f"standard+wrong-loss(how=headless): {line}"]


@pytest.mark.parametrize(
    ("taught", "read", "batch", "missed"),
    [
        ((0,), (1,), 64, "column 1"),
        ((1,), (0, 2), 64, "columns 0, 2"),
        ((0, 1), (0, 1), 64, ""),
        ((0, 1, 2), (1,), 64, ""),
        ((0,), (), 64, ""),
        ((0,), (1,), 49, ""),  # fewer than five inputs a class: chance may leave a column out
    ],
)
def test_columns_of_a_head_that_the_certainty_reads_and_no_loss_reaches_are_named(
    empty: Any, monkeypatch: pytest.MonkeyPatch, taught: tuple[int, ...], read: tuple[int, ...], batch: int, missed: str
) -> None:
    monkeypatch.setattr(ThreeColumns, "taught", taught)
    monkeypatch.setattr(ThreeColumns, "read", read)
    trained(empty, "standard", "three-columns", epochs=3, batch=batch)
    line = f"the certainty reads {missed} of the head, which no loss reaches in the first step"
    assert said(empty) == [f"standard+three-columns: {line}"] * bool(missed)


@pytest.mark.parametrize("how", ["forgetful", "zero times"])
def test_a_rejector_that_leaves_the_framework_s_loss_out_is_named(empty: Any, how: str) -> None:
    trained(empty, "standard", f"wrong-loss(how={how})", epochs=1)
    line = "training_loss of WrongLoss leaves out classifier_loss: add it, or name in frameworks those whose loss it "
    assert said(empty)[0] == f"standard+wrong-loss(how={how}): {line}replaces"


def test_a_network_that_knows_no_more_than_chance_is_named(empty: Any) -> None:
    log = trained(empty, "mistaken(how=other labels)", epochs=3, batch=64)[0].facts["log"]
    share = f"{log[-1]['clean_accuracy']:.1f}"
    line = f"mistaken(how=other labels) answers {share} % of clean inputs right, no more than chance: "
    assert said(empty) == [line + "does its loss use the labels as they are?"]


def test_a_loss_that_refuses_nan_does_not_hide_that_the_training_diverged(empty: Any) -> None:
    with pytest.raises(CellError, match=r"training standard\+rr diverged in epoch 1: the network answers NaN"):
        trained(empty, "standard", "rr", epochs=1, batch=128, learning_rate=1e30)


@pytest.mark.parametrize(
    ("framework", "rejector"),
    [
        ("standard", "snet"),
        ("pgd-at(steps=1)", "ebd"),
        ("trades(steps=1)", "rr"),
        ("ccat(steps=1)", "rr"),
        ("ccat(steps=1,batches=halves)", "rr"),
        ("carl(steps=1)", "carl"),
        ("atro(steps=1)", "atro"),
    ],
)
def test_a_right_training_is_not_disturbed_and_nothing_is_said(
    empty: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, framework: str, rejector: str
) -> None:
    watched = trained(empty, framework, rejector, epochs=2)
    assert said(empty) == []
    prepare = Step.__post_init__

    def unwatched(step: Step) -> None:
        prepare(step)
        step._first = None

    monkeypatch.setattr(Step, "__post_init__", unwatched)
    empty.out = tmp_path / "unwatched"
    again = trained(empty, framework, rejector, epochs=2)
    assert same(watched[0], again[0])
    assert same(watched[1], again[1])
