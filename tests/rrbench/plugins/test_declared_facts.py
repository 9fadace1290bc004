"""What a rejector declares is compared with its scores in every run: the surely wrong is refused, the rest noted."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from own_network import Linear, inputs, measure, refusal
from rrbench.metrics.deployment import CleanScores
from rrbench.plugins import signs
from rrbench.plugins.guards import PROBED
from rrbench.protocols import Outputs, Rejector
from rrbench_baselines.confidence import Confidence

pytestmark = pytest.mark.usefixtures("own_folder")


@dataclass
class Declared(Rejector):
    """Gives the logits' gap; its subclasses declare something of it."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return outputs.logits.amax(1) - outputs.logits.amin(1)


class Constant(Declared):
    is_constant = True


class Probability(Declared):
    is_probability = True


@pytest.mark.parametrize(("kind", "fact"), [(Constant, "is_constant"), (Probability, "is_probability")])
def test_scores_that_a_declared_fact_excludes_are_refused(kind: type[Rejector], fact: str) -> None:
    images, labels = inputs()
    images = images.lerp(images.round(), 0.5)  # farther from the border: gaps above 1
    gaps = Linear().margins(images, labels).detach().abs()[:PROBED]
    assert float(gaps.max()) > 1.001
    line = refusal(lambda: measure(Linear(), kind(), "clean", (images, labels)))
    found = f"its certainty goes from {gaps.min():.6g} to {gaps.max():.6g}"
    assert line == f"{fact} of {kind.__name__} is true, and {found}: delete {fact}"


class Rounded(Confidence):
    """Rounds up by a millionth."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return super().certainty(outputs).clamp_min(1) + 1e-6 * outputs.logits.double().sigmoid()[:, 0]


def test_a_probability_may_be_rounded() -> None:
    assert measure(Linear(), Rounded(), "clean", inputs()).status == "ok"


class Upside(Declared):
    """Is surest where it should not be."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return -super().certainty(outputs)


def near_the_border(count: int = 200) -> tuple[Tensor, Tensor]:
    """Inputs whose answer is wrong if it is unsure."""
    images, _ = inputs(count)
    logits = Linear()(images)
    gap = (logits[:, 0] - logits[:, 1]).abs()
    return images, logits.argmax(1) ^ (gap < gap.quantile(0.1)).long()


def test_a_certainty_that_is_upside_down_is_noted() -> None:
    text = "the certainty is upside down: clean, a right answer has more of it than a wrong one 0 times in 100"
    assert measure(Linear(), Upside(), "clean", near_the_border()).note == text
    assert measure(Linear(), Declared(), "clean", near_the_border()).note == ""


def scores(certainty: list[float], correct: list[bool], own: float | None = None) -> CleanScores:
    count = len(certainty)
    none = np.empty(0), np.empty(0, dtype=np.bool_)
    return CleanScores(np.array(certainty), np.array(correct), np.arange(count) % 5, *none, own)


@pytest.mark.parametrize(("wrong", "right", "is_said"), [(1, 99, False), (3, 97, False), (7, 93, True), (49, 51, True)])
def test_an_auc_from_few_wrong_answers_says_nothing(wrong: int, right: int, is_said: bool) -> None:
    generator = np.random.default_rng(0)
    certainty = np.r_[generator.normal(2, 1, wrong), generator.normal(0, 1, right)]
    correct = np.r_[np.zeros(wrong, bool), np.ones(right, bool)]
    area = roc_auc_score(correct, certainty)
    assert area < 0.15
    beyond = 0.5 - area > 3 * math.sqrt((wrong + right + 1) / (12 * wrong * right))
    assert beyond == is_said
    found = signs.doubtful_scores(Declared(), scores(list(certainty), list(correct)), certainty, is_attacked=True)
    said = f"the certainty is upside down: clean, a right answer has more of it than a wrong one {100 * area:.0f}"
    assert [text.startswith(said) for text in found] == [True] * is_said


@pytest.mark.parametrize(("wrong", "is_said"), [(40, True), (60, False)])
def test_a_network_that_is_mostly_wrong_does_not_show_its_rejector_upside_down(wrong: int, is_said: bool) -> None:
    is_wrong = np.arange(100) < wrong  # and these have the higher certainty: an AUC of 0
    certainty = is_wrong.astype(np.float64)
    clean = scores(list(certainty), list(~is_wrong))
    found = signs.doubtful_scores(Declared(), clean, certainty, is_attacked=False)
    assert any("upside down" in text for text in found) == is_said


@pytest.mark.parametrize(
    ("lowest", "right", "own", "is_said"),
    # Of 40 right inputs the threshold may refuse two, of 20 one: it is the third or the second from below.
    [
        (3, 40, None, True),
        (2, 40, None, False),
        (2, 20, None, True),
        (1, 20, None, False),
        (2, 19, None, False),
        (3, 40, 0.5, False),
    ],
)
def test_a_threshold_that_refuses_nothing_because_of_ties_is_noted(
    lowest: int, right: int, own: float | None, is_said: bool
) -> None:
    certainty = np.r_[np.zeros(lowest), np.linspace(0.1, 1, right - lowest), [0.0, 0.0, 0.2]]
    correct = np.r_[np.ones(right, bool), [False] * 3]
    found = signs.doubtful_scores(Declared(), scores(list(certainty), list(correct), own), certainty, is_attacked=True)
    assert (
        found
        == ["the threshold 0 refuses no clean input: more than 5 % of the right ones that fix it share it"] * is_said
    )


def test_a_threshold_below_a_few_measured_inputs_by_chance_is_not_noted() -> None:
    apart = np.linspace(0, 1, 500)  # no ties: the threshold is the 26th from below
    few = np.linspace(0.2, 1, 30)
    clean = CleanScores(few, np.ones(30, bool), np.arange(30) % 5, apart, np.ones(500, bool))
    assert signs.doubtful_scores(Declared(), clean, few, is_attacked=True) == []
    tied = clean._replace(apart_certainty=np.maximum(apart, 0.1))
    (found,) = signs.doubtful_scores(Declared(), tied, few, is_attacked=True)
    assert found.startswith("the threshold 0.1 refuses no clean input")


@pytest.mark.parametrize(
    ("own", "attacked", "text"),
    [
        (0.2, [0.1, 0.3], ""),
        (1.5, [0.1, 2.0], "own_threshold 1.5 rejects every clean input: their certainty ends at 1"),
        (1.0, [0.1, 0.3], ""),
        (-1.0, [0.1, 0.3], "own_threshold -1 rejects no input, clean or attacked: certainty begins at 0"),
        (-1.0, [-2.0, 0.3], ""),
        (-1.0, None, ""),
        (None, [0.1, 0.3], ""),
    ],
)
def test_an_own_threshold_beyond_all_scores_is_noted(
    own: float | None, attacked: list[float] | None, text: str
) -> None:
    clean = scores([0.0, 0.5, 1.0], [True, True, False], own)
    certainty = np.array(attacked or clean.certainty)
    found = signs.doubtful_scores(Declared(), clean, certainty, is_attacked=attacked is not None)
    assert [each for each in found if "upside" not in each] == [text] * bool(text)


class Strict(Confidence):
    own_threshold = 1.5


class Same(Declared):
    """Does not say that it gives one certainty to all."""

    def certainty(self, outputs: Outputs) -> Tensor:
        return 0 * super().certainty(outputs)


def test_a_run_says_it() -> None:
    images, labels = inputs()
    highest = torch.softmax(Linear()(images), 1).amax()
    strict = f"own_threshold 1.5 rejects every clean input: their certainty ends at {highest:.3g}"
    assert measure(Linear(), Strict(), "pgd2", (images, labels), budget="linf:1/50").note == strict
    assert measure(Linear(), Same(), "clean", (images, labels)).note == "all clean inputs have the same certainty"
    assert measure(Linear(), "never-reject", "clean", (images, labels)).note == ""
