"""A search keeps, for each input, one answer and the boldest wrong image of all that it sees."""

import math
from dataclasses import dataclass
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from rrbench.ascent import DOUBT, Keep, Select, Tracker, best_places, doubt_of
from rrbench.compute.devices import Precision
from rrbench.compute.draws import HashedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.errors import CellError
from rrbench.protocols import Batch, Outputs

pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = (1, 4, 4)


def batch_of(size: int) -> Batch:
    ids = torch.arange(size)
    return Batch(HashedDraws(1).uniform(ids, SHAPE, 0), ids % 2, ids + 50)


def head(outputs: Outputs, labels: Tensor) -> Tensor:
    return outputs.head[:, 0]


@dataclass
class Shown:
    """A tracker of two inputs, both of class 0, shown one-pixel candidates that are named by their value."""

    tracker: Tracker

    def see(
        self, name: float, logits: list[float], certainty: float = 0.0, objective: float = 0.0, is_last: bool = True
    ) -> "Shown":
        """Show the first input this candidate; the second always gets the same dull one."""
        images = torch.tensor([name, 0.5]).view(2, 1, 1, 1)
        outputs = Outputs(
            torch.zeros(2, 0), torch.tensor([logits, [9.0, 0.0, 0.0]]), torch.tensor([[certainty], [0.0]])
        )
        self.tracker.see(images, outputs, torch.tensor([objective, 0.0]), is_last=is_last)
        return self

    @property
    def answer(self) -> float:
        moved = self.tracker.moved()
        assert moved.images[1].item() in (0.5, pytest.approx(0.2))
        return round(moved.images[0].item(), 4)

    @property
    def boldest(self) -> float:
        boldest = self.tracker.moved().boldest
        assert boldest is not None
        assert boldest[1].item() == pytest.approx(0.2)  # never wrong: the clean image
        return round(boldest[0].item(), 4)


def shown(keep: Keep = "best", select: Select = "evade", doubt: float = 0.0) -> Shown:
    batch = Batch(torch.tensor([0.1, 0.2]).view(2, 1, 1, 1), torch.tensor([0, 0]), torch.arange(2))
    return Shown(Tracker(batch, head, keep, select, doubt))


SURE = [4.0, 0.0, 0.0]
CLOSE = [2.0, 1.5, 0.0]
WRONG = [0.0, 3.0, 0.0]
BARELY_WRONG = [1.0, 1.1, 1.0]


def test_evade_prefers_a_wrong_image_to_any_right_one() -> None:
    assert shown().see(0.3, CLOSE, certainty=9).see(0.4, WRONG, certainty=-9).see(0.5, CLOSE, 9).answer == 0.4


def test_in_lower_precision_an_image_at_the_border_does_not_count_as_wrong() -> None:
    seen = shown(doubt=0.2).see(0.3, WRONG, certainty=1).see(0.4, BARELY_WRONG, certainty=2)
    assert (seen.answer, seen.boldest) == (0.3, 0.3)
    seen = (
        shown(doubt=0.2).see(0.3, CLOSE, certainty=9).see(0.4, BARELY_WRONG, certainty=2).see(0.5, CLOSE, certainty=9)
    )
    assert (seen.answer, seen.boldest) == (0.4, 0.1)  # nearest to being wrong; no clearly wrong image: the clean one


@pytest.mark.parametrize(("precision", "expected"), [("fp32", 0.0), ("tf32", DOUBT), ("bf16", DOUBT)])
def test_only_lower_precision_leaves_a_doubt(precision: Precision, expected: float) -> None:
    network = nn.Identity()
    assert doubt_of(Instrumented(network, precision)) == expected
    assert doubt_of(network) == 0.0


def test_evade_prefers_the_most_certain_of_the_wrong_images() -> None:
    seen = shown().see(0.3, WRONG, certainty=1).see(0.4, BARELY_WRONG, certainty=2).see(0.5, WRONG, certainty=1.5)
    assert seen.answer == 0.4


def test_evade_prefers_the_nearest_to_being_wrong_of_the_right_images() -> None:
    seen = shown().see(0.3, SURE, certainty=5).see(0.4, CLOSE, certainty=-5).see(0.5, SURE, certainty=7)
    assert seen.answer == 0.4


def test_a_tie_of_logits_counts_as_the_first_class() -> None:
    assert shown().see(0.3, [1.0, 1.0, 0.0], certainty=9).see(0.4, WRONG, certainty=-9).answer == 0.4


def test_ce_select_looks_at_cross_entropy_alone() -> None:
    seen = shown(select="ce").see(0.3, [0.0, 0.1, 0.0], certainty=9, objective=9).see(0.4, [0.0, 0.0, 3.0], -9, -9)
    assert seen.see(0.5, SURE, certainty=99, objective=99).answer == 0.4


def test_objective_select_looks_at_the_objective_alone() -> None:
    seen = shown(select="objective").see(0.3, WRONG, certainty=9, objective=1).see(0.4, SURE, certainty=-9, objective=2)
    assert seen.see(0.5, WRONG, certainty=9, objective=-3).answer == 0.4


@pytest.mark.parametrize("select", get_args(Select))
def test_of_equal_candidates_the_later_is_kept(select: Select) -> None:
    assert shown(select=select).see(0.3, WRONG, 1, 1).see(0.4, WRONG, 1, 1).answer == 0.4


@pytest.mark.parametrize("select", get_args(Select))
def test_the_first_candidate_beats_none(select: Select) -> None:
    assert shown(select=select).see(0.3, [80.0, 0.0, 0.0], -1e30, -1e30).answer == 0.3


def test_keep_last_chooses_between_last_images_only() -> None:
    seen = shown(keep="last").see(0.3, WRONG, certainty=9, is_last=False)
    assert seen.answer == 0.1  # nothing but the clean image yet
    assert seen.see(0.4, CLOSE).see(0.5, WRONG, certainty=2, is_last=False).see(0.6, SURE).answer == 0.4


def test_the_boldest_is_the_most_certain_wrong_image_seen_whatever_is_kept() -> None:
    for keep in get_args(Keep):
        for select in get_args(Select):
            seen = shown(keep, select).see(0.3, WRONG, certainty=1).see(0.4, WRONG, certainty=3, is_last=False)
            assert seen.see(0.5, SURE, certainty=99, objective=99).see(0.6, WRONG, certainty=2).boldest == 0.4


def test_without_a_wrong_image_the_boldest_is_the_clean_one() -> None:
    assert shown().see(0.3, SURE, certainty=9).boldest == 0.1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["logits", "certainty", "objective"])
@pytest.mark.parametrize("keep", get_args(Keep))
@pytest.mark.parametrize("select", get_args(Select))
def test_a_nan_anywhere_on_the_way_is_an_error_and_never_a_robust_image(
    bad: float, place: str, keep: Keep, select: Select
) -> None:
    seen = shown(keep, select).see(0.3, SURE)
    logits = [1.0, bad, 0.0] if place == "logits" else SURE
    certainty, objective = (bad if place == "certainty" else 0.0), (bad if place == "objective" else 0.0)
    seen.see(0.4, logits, certainty, objective, is_last=False).see(0.5, SURE)
    with pytest.raises(CellError, match="NaN or infinite scores on 1 attacked"):
        seen.tracker.moved()


@pytest.mark.parametrize("keep", get_args(Keep))
@pytest.mark.parametrize("select", get_args(Select))
def test_what_is_kept_of_copies_is_what_would_be_kept_of_one_after_the_other(keep: Keep, select: Select) -> None:
    generator = torch.Generator().manual_seed(3)
    batch = batch_of(40)
    one, many = (Tracker(each, head, keep, select) for each in (batch, batch.repeated(3)))
    # Scores of a few values, so that there are ties.
    shape = (4, 3, batch.size)  # of steps, copies and inputs
    logits = torch.randint(0, 3, (*shape, 2), generator=generator).float()
    heads, values = torch.randint(0, 3, (2, *shape, 1), generator=generator).float()
    images = torch.rand(*shape, *SHAPE, generator=generator)

    def show(tracker: Tracker, step: int, part: int | slice) -> None:
        outputs = Outputs(torch.zeros(0), *(each[step, part].flatten(0, -2) for each in (logits, heads)))
        shown_images = images[step, part].reshape(-1, *SHAPE)
        tracker.see(shown_images, outputs, values[step, part].flatten(), is_last=step == 3)

    for part in range(3):
        for step in range(4):
            show(one, step, part)
    for step in range(4):
        show(many, step, slice(None))
    joined = Tracker(batch, head, keep, select)
    joined.join(many)
    assert torch.equal(joined.answer, one.answer)
    assert torch.equal(joined.boldest, one.boldest)
    assert torch.equal(joined.rank, one.rank)
    assert torch.equal(joined.evades, one.evades)
    assert len({tuple(row) for row in joined.answer.flatten(1).tolist()}) == batch.size


def test_a_nan_seen_on_any_copy_is_an_error() -> None:
    batch = batch_of(2)
    many, joined = (Tracker(each, head, "last", "ce") for each in (batch.repeated(2), batch))
    outputs = Outputs(torch.zeros(4, 0), torch.tensor([[0.0, 1.0]] * 3 + [[math.nan, 0.0]]), torch.zeros(4, 1))
    many.see(many.answer, outputs, torch.zeros(4), is_last=True)
    joined.join(many)
    with pytest.raises(CellError, match="NaN or infinite scores on 1 attacked"):
        joined.moved()


@pytest.mark.parametrize(
    ("evades", "ranks", "best"),
    [
        ([0, 0, 0, 0], [0.1, 0.4, 0.2, 0.3], [1, 3]),
        ([0, 1, 0, 1], [0.9, 0.1, 0.8, 0.2], [1, 3]),  # whoever evades comes first
        ([0, 0, 1, 0], [0.9, 0.3, 0.1, 0.5], [0, 2]),
        ([1, 1, 1, 1], [0.4, 0.1, 0.3, 0.2], [0, 2]),
        ([0, 0, 0, 0], [0.2, 0.7, 0.7, 0.7], [1, 2]),  # of equal ones the earlier
        ([1, 0, 1, 1], [0.5, 0.5, 0.5, 0.5], [0, 2]),
    ],
)
def test_the_best_places_are_those_that_evade_then_those_of_higher_rank(
    evades: list[int], ranks: list[float], best: list[int]
) -> None:
    other = torch.tensor([1, 0, 0, 0]), torch.tensor([0.0, 3.0, 4.0, 2.0])
    columns = torch.stack([torch.tensor(evades), other[0]], 1).bool(), torch.stack([torch.tensor(ranks), other[1]], 1)
    assert best_places(*columns, 2).T.tolist() == [best, [0, 2]]
