"""`rrbench bench --parts cw`: both implementations against the nearest border by hand, and what is said of them."""

import csv
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from line_network import WEIGHTS, Line, with_leads
from rrbench.bench import cw
from rrbench.bench.attacks import Arena, usual_precision
from rrbench.bench.measurement import Measurement
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.plugins.config import load_preset
from rrbench.protocols import Batch, Budget, Outputs, Rejector

LEADS = [-2.0, -1.5, -1.0, -0.5, 0.5, 1.0, 1.5, 2.0]  # of class 1
NEAREST = sum(map(abs, LEADS)) / len(LEADS) / float(WEIGHTS.norm())  # on average: the margin / the norm of the weights
FOOLBOX = frozenset({"foolbox"})
ENDS = ["success", "l2", "distance"]
NAMES = ["rrbench", "foolbox"]


@dataclass
class Never(Rejector):
    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1)


@pytest.fixture
def arena() -> Arena:
    test = Batch(with_leads(LEADS), torch.tensor([int(lead > 0) for lead in LEADS]), torch.arange(len(LEADS)))
    measured = MeasuredNetwork(Line().eval(), lambda split: test, torch.device("cpu"), "fp32")
    budget = Budget("linf", Fraction(1, 10))
    return Arena(measured, Never(), budget, Fraction(1, 100), load_preset("official"), None, 1.0)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cw, "STEPS", 4)
    monkeypatch.setattr(cw, "SEARCHES", 2)


def measured(arena: Arena, peers: frozenset[str] = FOOLBOX, count: int = 100) -> tuple[list[Measurement], list[str]]:
    found = list(cw.cw(arena, peers, count))
    lines = [each for each in found if isinstance(each, Measurement)]
    return lines, [each for each in found if isinstance(each, str)]


def test_both_find_the_nearest_border_of_a_linear_network_and_agree(arena: Arena) -> None:
    lines, (said,) = measured(arena)
    assert [(each.what, each.implementation, each.precision) for each in lines] == [
        ("cw-l2 of 8", "rrbench", "fp32"),
        ("cw-l2 of 8", "foolbox", "fp32"),
    ]
    for each in lines:
        assert (each.success, each.robust_accuracy, each.gradients_per_second) == (1.0, None, None)
        assert each.l2_distance is not None
        assert NEAREST * (1 - 1e-5) < each.l2_distance < 1.02 * NEAREST
        assert each.seconds is not None
        assert each.images_per_second == pytest.approx(8 / each.seconds)
    ours, theirs = (each.l2_distance or 0.0 for each in lines)
    assert said == (
        "rrbench and foolbox agree: 8 and 8 of 8 images end wrong, 0 in one of them only (allowed: 1%); mean l2 "
        f"distance where both do: {ours:.4f} and {theirs:.4f}, {ours / theirs - 1:+.2%} (allowed: 2%)"
    )


def test_a_broken_search_of_ours_is_told(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrbench_attacks.cw.STALLED", 0.5)  # images leave while they still come nearer
    lines, (said,) = measured(arena)
    assert said.startswith("rrbench and foolbox disagree: 8 and 8 of 8 images end wrong, 0 in one of them only")
    assert (lines[0].l2_distance or 0.0) > 1.02 * (lines[1].l2_distance or 0.0)


def test_a_search_of_ours_that_finds_nothing_is_told(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrbench_attacks.cw.Adam.descend", lambda adam, gradient: None)
    lines, (said,) = measured(arena)
    assert [(each.success, each.l2_distance is None) for each in lines] == [(0.0, True), (1.0, False)]
    assert said == (
        "rrbench and foolbox cannot be compared: 0 and 8 of 8 images end wrong, and none was moved there by both"
    )


def test_a_broken_foolbox_is_told(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    class Coarse:
        """Starts beyond the border, and hardly comes back."""

        def __init__(self, **settings: Any) -> None:
            settings["initial_const"] = 1e6
            self.attack = L2CarliniWagnerAttack(**settings)

        def __call__(self, *given: Any, **settings: Any) -> Any:
            return self.attack(*given, **settings)

    from foolbox.attacks.carlini_wagner import L2CarliniWagnerAttack

    monkeypatch.setattr("foolbox.attacks.carlini_wagner.L2CarliniWagnerAttack", Coarse)
    lines, (said,) = measured(arena)
    assert said.startswith("rrbench and foolbox disagree: 8 and 8 of 8 images end wrong, 0 in one of them only")
    assert (lines[1].l2_distance or 0.0) > 1.02 * (lines[0].l2_distance or 0.0)


def answer(is_wrong: list[int], distances: list[float]) -> cw.Answer:
    return cw.Answer(torch.tensor(is_wrong, dtype=torch.bool), torch.tensor(distances, dtype=torch.float64))


@pytest.mark.parametrize(
    ("flips", "factor", "word"),
    [(0, 1.0, "agree"), (1, 1.0, "agree"), (2, 1.0, "disagree"), (0, 1.019, "agree"), (0, 0.981, "agree"),
     (0, 1.021, "disagree"), (0, 0.979, "disagree")],
)  # fmt: skip
def test_agreement_ends_at_the_shares_that_it_states(flips: int, factor: float, word: str) -> None:
    other = answer([1] * 100, [1.0] * 100)
    ours = answer([0] * flips + [1] * (100 - flips), [factor] * 100)
    assert cw.compare_answers(ours, other, "foolbox").startswith(f"rrbench and foolbox {word}: ")


def test_equally_many_successes_on_other_images_are_no_agreement() -> None:
    ours, other = answer([0, 1, 1, 1], [0.0, 1.0, 1.0, 1.0]), answer([1, 1, 1, 0], [1.0, 1.0, 1.0, 0.0])
    said = cw.compare_answers(ours, other, "foolbox")
    assert said.startswith("rrbench and foolbox disagree: 3 and 3 of 4 images end wrong, 2 in one of them only")


def test_black_which_foolbox_answers_if_it_finds_nothing_is_no_success(
    arena: Arena, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cw, "FASTEST", 1e-6)  # nobody gets anywhere
    lines, (said,) = measured(arena, count=3)
    assert (Line()(torch.zeros(1, 1, 2, 2)).logits.argmax(1) != arena.measured.test().labels[:3]).all()
    assert [(each.what, each.success) for each in lines] == [("cw-l2 of 3", 0.0)] * 2
    assert said.startswith("rrbench and foolbox cannot be compared: 0 and 0 of 3 images end wrong")


class Noted(Line):
    """Notes whether PyTorch may use tf32 in the forward passes of gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.noted = list[bool]()

    def __deepcopy__(self, memo: object) -> "Noted":
        return self

    def forward(self, images: Tensor) -> Outputs:
        if images.requires_grad:
            self.noted.append(torch.backends.cudnn.allow_tf32)
        return super().forward(images)


def test_in_short_precision_the_search_in_float32_stands_beside_it_and_foolbox_in_tf32_is_not_compared(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cw, "usual_precision", lambda device: "tf32")
    network = Noted()
    arena = replace(arena, measured=replace(arena.measured, network=network, precision="bf16"))
    lines, said = measured(arena)
    assert [(each.implementation, each.precision) for each in lines] == [
        ("rrbench", "bf16"),
        ("rrbench in fp32, back in tf32", "fp32"),
        ("foolbox", "tf32"),
        ("foolbox in fp32", "fp32"),
    ]
    assert [switch for switch, _ in groupby(network.noted)] == [True, False, True, False]
    assert [each.split(" agree")[0] for each in said] == [
        "rrbench and rrbench in fp32, back in tf32",
        "rrbench and foolbox in fp32",
    ]
    assert all(each.l2_distance == pytest.approx(NEAREST, rel=0.02) for each in lines)


def test_a_step_is_equally_long_for_digits_and_for_cifar() -> None:
    digits, cifar = torch.zeros(2, 1, 8, 8), torch.zeros(2, 3, 32, 32)
    assert cw.learning_rate(digits) == pytest.approx(0.1)
    assert cw.learning_rate(cifar) * 3072**0.5 == pytest.approx(cw.learning_rate(digits) * 64**0.5)
    assert cw.learning_rate(torch.zeros(2, 1, 2, 2)) == 0.1  # not faster than where foolbox and ours agree


def test_on_a_cpu_nobody_is_in_tf32() -> None:
    assert usual_precision(torch.device("cpu")) == "fp32"


def test_the_command_compares_on_200_images_or_as_many_as_are_asked_for(
    command: Callable[..., Any], short: None, tmp_path: Path
) -> None:
    calls = [["--limit", "201", "--peers", ""], ["--count", "4", "--csv", str(tmp_path / "cw.csv")]]
    alone, beside = (command("bench", "--parts", "cw", "--out", str(tmp_path), *options) for options in calls)
    assert (alone.code, beside.code) == (0, 0)
    header, _, line, said = alone.out.splitlines()
    assert header.split() == ["what", "implementation", "batch", "precision", "ratio", "s", "images/s", *ENDS]
    assert line.startswith("cw-l2 of 200  rrbench")
    assert said == "cw: no foolbox to compare with; it is not installed, or --peers leaves it out"
    assert beside.out.splitlines()[-1].startswith("rrbench and foolbox ")
    read = list(csv.DictReader((tmp_path / "cw.csv").open()))
    assert [(row["what"], row["implementation"]) for row in read] == [("cw-l2 of 4", name) for name in NAMES]
    assert [float(row["ratio"]) for row in read] == pytest.approx(
        [1.0, float(read[1]["seconds"]) / float(read[0]["seconds"])], rel=0.05
    )


@pytest.mark.parametrize(("device", "expected"), [("cpu", 64), ("cuda", 1000)])
def test_on_a_cpu_the_others_get_the_batch_that_rrbench_takes(device: str, expected: int) -> None:
    test = Batch(torch.zeros(1, 3, 32, 32), torch.tensor([0]), torch.tensor([0]))
    measured = MeasuredNetwork(Line().eval(), lambda split: test, torch.device(device), "fp32")
    budget = Budget("linf", Fraction(1, 10))
    arena = Arena(measured, Never(), budget, Fraction(1, 100), load_preset("official"), None, 1.0)
    assert arena.large == expected
