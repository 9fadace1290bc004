"""`rrbench eval`: somebody's own networks and images, from their files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import rrbench
from own_network import Linear, inputs
from rrbench.rows.row import read_rows

pytestmark = pytest.mark.usefixtures("own_folder", "one_thread")
CODE = """
import torch
from torch import nn
from parts import half

class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16))

    def forward(self, images):
        score = (images.flatten(1) - half()) @ self.weight
        return torch.stack([score, -score], 1)

def build():
    return Linear()

def wrong():
    return "a text"

def fails():
    raise ValueError("no such file as mine")

def exits():
    raise SystemExit(3)

def needs(width):
    return Linear()
"""
SWAPPED = """
import my_model

class Swapped(my_model.Linear):
    def forward(self, images):
        return super().forward(images), images.flatten(1)
"""
CONFIG = '[run]\nall_attacks = ["pgd20", "selective-pgd(steps=5)", "worst-case"]\n'


@pytest.fixture(autouse=True)
def files(own_folder: Path) -> None:
    """A network in a file that imports another, two files of weights, bytes as images."""
    Path("my_model.py").write_text(CODE)
    Path("parts.py").write_text("def half():\n    return 0.5\n")
    save_file(Linear().state_dict(), "plain.safetensors")
    torch.save({"state_dict": {f"module.{k}": v for k, v in Linear(1).state_dict().items()}}, "other.pt")
    images, labels = inputs(60)
    np.savez("images.npz", images=(images * 255).round().byte().numpy(), labels=labels.numpy().astype(np.uint8))


def test_two_models_three_rejectors_and_three_attacks_go_to_a_report_that_verify_confirms(
    command: Callable[..., Any],
) -> None:
    Path("few.toml").write_text(CONFIG)
    said = command(
        *("eval", "my_model.py:build", "--weights", "plain.safetensors", "--weights", "other.pt"),
        *("--data", "images.npz", "--rejectors", "confidence,margin,doctor", "--config", "few.toml"),
        *("--attacks", "pgd20,selective-pgd(steps=5),worst-case", "--budgets", "linf:1/50", "--out", "mine"),
    )
    assert said.code == 0, said.err
    assert "24 rows in mine/rows.csv" in said.out
    images, labels = inputs(60)
    images = (images * 255).round() / 255
    rows = read_rows(Path("mine"))
    for name, network in {"plain": Linear(), "other": Linear(1)}.items():
        left = 100 * (network.margins(images, labels) > 2 * 0.02 * network.weight.abs().sum()).double().mean().item()
        found = [row.acc_all for row in rows if row.trained_as == name and row.attack == "pgd20"]
        assert found == [pytest.approx(left)] * 3
    assert {(row.dataset, row.network, row.framework) for row in rows} == {("npz(images.npz)", "Linear", "")}
    said = command("verify", "mine", "--rerun")
    assert said.code == 0, said.out
    assert "24 cells: 24 confirmed" in said.out
    assert "all confirmed" in said.out
    assert command("report", "mine", "--out", "mine.html").code == 0
    page = Path("mine.html").read_text()
    assert page.count("data:image/") > 3, "plots and attacked images"
    # From Python the same files are the same cells.
    again = rrbench.run(
        "confidence",
        "pgd20",
        network="file(my_model.py,weights=plain.safetensors,name=plain)",
        dataset="npz(images.npz)",
        budgets="linf:1/50",
        out="mine",
        config="few.toml",
        precision="fp32",
        device="cpu",
    )
    assert (
        list(again.seconds)
        == [row.seconds for row in rows if (row.trained_as, row.rejector) == ("plain", "confidence")][:2]
    )
    assert len(read_rows(Path("mine"))) == 24


def measured(command: Callable[..., Any]) -> None:
    arguments = ("--weights", "plain.safetensors", "--data", "images.npz", "--attacks", "clean")
    assert command("eval", "my_model.py:build", *arguments).code == 0


def test_verify_says_when_a_file_has_gone_or_is_another_one(command: Callable[..., Any]) -> None:
    measured(command)
    assert command("verify", "runs").code == 0
    Path("parts.py").write_text("def half():\n    return 0.45\n")
    Path("my_model.py").write_text(CODE + "\n")  # written anew, so that it is read anew
    said = command("verify", "runs")
    assert said.code == 1
    assert "plain is not the network any more that was measured" in said.out
    Path("my_model.py").unlink()
    assert "its network is not here: cannot read my_model.py" in command("verify", "runs").out
    Path("images.npz").unlink()
    assert "data set npz is not here" in command("verify", "runs").out


def test_a_hidden_value_that_has_changed_in_the_file_is_measured_anew(command: Callable[..., Any]) -> None:
    found = []
    for sign in (1, -1):
        code = CODE.replace("super().__init__()", f"super().__init__()\n        self._sign = {sign}")
        Path("my_model.py").write_text(code.replace("score = (", "score = self._sign * ("))
        measured(command)
        found.append([row.acc_all or 0 for row in read_rows(Path("runs"))])
    (first,), (again, second) = found
    assert again == first == pytest.approx(100 - second)
    assert command("verify", "runs").code == 1


def test_other_inputs_in_the_file_are_measured_anew(command: Callable[..., Any]) -> None:
    measured(command)
    images, labels = inputs(40, seed=1)
    np.savez("images.npz", images=images.numpy(), labels=labels.numpy())
    measured(command)
    assert sorted(row.n or 0 for row in read_rows(Path("runs"))) == [40, 60]
    said = command("verify", "runs")
    assert said.code == 1
    assert "it was measured on other data than is here" in said.out


def test_training_inputs_of_a_file_fit_rejectors_and_fix_no_threshold_of_a_trained_network(
    command: Callable[..., Any],
) -> None:
    images, labels = inputs(60)
    train, train_labels = inputs(100, seed=1)
    own, more = (images.numpy(), labels.numpy()), (train.numpy(), train_labels.numpy())
    np.savez("images.npz", x_test=own[0], y_test=own[1], x_train=more[0], y_train=more[1])
    arguments = ("--data", "images.npz", "--rejectors", "rel-u,confidence", "--attacks", "clean")
    assert command("eval", "my_model.py:build", "--weights", "plain.safetensors", *arguments).code == 0
    confidence, relative = read_rows(Path("runs"))
    assert (confidence.status, relative.status) == ("ok", "ok")
    # It has seen the training inputs, so the measured inputs fix each other's thresholds, as without training inputs.
    expected = rrbench.evaluate(Linear(), "confidence", "clean", (images, labels), out="other")
    assert confidence.deploy_threshold == expected.deploy_threshold[0]
    assert confidence.deploy_coverage == expected.deploy_coverage[0]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("my_model.py:bild",), "my_model.py has no function 'bild'; it has Linear, build, wrong, fails, exits, needs"),
        (("my_model.py",), "'my_model.py' names no function of a file; write FILE.py:FUNCTION"),
        (("yours.py:build",), "cannot read yours.py: No such file"),
        (("my_model.py:wrong",), "my_model.py:wrong gives a str instead of a torch.nn.Module"),
        (("my_model.py:fails",), "my_model.py:fails fails: ValueError: no such file as mine"),
        (("my_model.py:exits",), "my_model.py tried to end the process"),
        (("my_model.py:needs",), "missing 1 required positional argument: 'width'"),
        (("my_model.py:build", "--weights", "gone.safetensors"), "cannot read gone.safetensors: No such file"),
        (("my_model.py:build", "--weights", "wide.safetensors"), "'weight' is (17,), not (16,)"),
        (("my_model.py:build", "--weights", "less.safetensors"), "it lacks tensor 'weight'"),
        (("my_model.py:build", "my_model.py:build", "--weights", "other.pt"), "2 models and 1 files of weights"),
        (("my_model.py:build", "--names", "a,b"), "1 models need as many different names, not a, b"),
        (("my_model.py:build", "--data", "gone.npz"), "cannot read gone.npz: No such file"),
        (("my_model.py:build", "--data", "./gone"), "there is no data set ./gone"),
        (("my_model.py:build", "--data", "large.npz"), "images must lie in [0, 1] but span [0, 255]"),
        (("my_model.py:build", "--data", "flat.npz"), "flat.npz (images): images must be floats of shape (N, C, H, W)"),
        (("my_model.py:build", "--data", "many.npz"), "npz(many.npz) has 6 classes, and the network"),
        (("my_model.py:build", "--data", "below.npz"), "labels must lie in 0..1 but span -1..1"),
        (("my_model.py:build", "--data", "alone.npz"), "alone.npz (images): there is no labels beside it"),
        (("my_model.py:build", "--data", "none.npz"), "has no images to measure on, x_test or images or x: it has z"),
        (("my_model.py:build", "--data", "wider.npz"), "the network fails on images of shape (2, 1, 5, 5)"),
        (("my_model.py:build", "--data", "text.npz"), "cannot read text.npz: it is no .npz file"),
        (("my_model.py:build", "--rejectors", "confidence@trades"), "@ names a training"),
        (("swapped.py:Swapped",), "the network seems to return (logits, features)"),
    ],
)  # fmt: skip
def test_wrong_use_is_one_clear_line(arguments: tuple[str, ...], line: str, command: Callable[..., Any]) -> None:
    Path("swapped.py").write_text(SWAPPED)
    save_file({"weight": torch.zeros(17)}, "wide.safetensors")
    save_file({"zeros": torch.zeros(16)}, "less.safetensors")
    images, labels = (part.numpy() for part in inputs(20))
    images[0, 0, 0, 0] = 0
    images[1, 0, 0, 0] = 1
    labels[0], labels[1] = 0, 1
    np.savez("large.npz", images=images * 255, labels=labels)
    np.savez("flat.npz", images=images.reshape(20, -1), labels=labels)
    np.savez("many.npz", images=images, labels=5 * labels)
    np.savez("below.npz", images=images, labels=np.where(labels == 0, -1, labels))
    np.savez("alone.npz", images=images)
    np.savez("none.npz", z=images)
    np.savez("wider.npz", images=np.zeros((20, 5, 5)), labels=labels)
    Path("text.npz").write_text("no archive")
    more = () if "--data" in arguments else ("--data", "images.npz")
    said = command("eval", *arguments, *more, "--attacks", "clean")
    assert said.code == 2, said.out
    assert line in said.err
    assert len(said.err.splitlines()) == 1
    assert not Path("runs").exists()
