"""Runs the README's own lines unchanged."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from rrbench.plugins.catalogue import plugins

README = Path(__file__).resolve().parent.parent / "README.md"


@pytest.mark.usefixtures("own_folder")
def test_the_five_lines_measure_a_model_of_one_s_own(
    fenced: Callable[[Path], list[tuple[str, str]]], capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = [text for language, text in fenced(README) if language == "python"]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    images = torch.rand(50, 3, 2, 2)
    with torch.no_grad():
        labels = model(images).argmax(1)
    exec(block, {"model": model, "images": images, "labels": labels})
    printed = capsys.readouterr().out
    assert "acc_tpr95_low" in printed
    accuracy = float(printed.splitlines()[1].split()[1])
    assert 0 <= accuracy < 100, "an attack within 8/255 of a random linear model changes some answers"


@pytest.mark.parametrize(
    "command", ["run", "eval", "train", "table", "figure", "report", "board", "list", "data", "bench", "verify", "new"]
)
def test_every_command_is_shown(command: str) -> None:
    assert re.search(rf"^    rrbench {command}\b", README.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("kind", ["rejector", "attack", "framework"])
def test_what_is_in_it_names_every_plugin_that_comes_with_rrbench(kind: str) -> None:
    text = README.read_text(encoding="utf-8").split("## What is in it")[1].split("\n## ")[0].lower()
    own = {name for name, card in plugins(kind).items() if card.package.startswith("rrbench")}
    assert len(own) > 3
    assert {name for name in own - {"clean"} if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)} == set()
