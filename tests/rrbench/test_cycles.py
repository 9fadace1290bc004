"""Climbs that end once they repeat themselves: the same bits as the plain way, for fewer gradients."""

from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor, nn

from finished_run import verify
from rrbench import api
from rrbench.ascent import Keep, Score, Select, Until, random_start, search
from rrbench.compute.draws import HashedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.cycles import WINDOW
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Draws, Moved, Outputs
from rrbench.verifying.tolerance import EXACT
from small_run import CONFIG

pytestmark = pytest.mark.usefixtures("one_thread")

STEP = 1 / 64  # exact in binary: a climb comes back to the same bits
BUDGET = Budget("linf", Fraction(1, 4))
EDGE = 16  # steps to the end of the budget
DRAWS = HashedDraws(5)
STEPS = 129  # no window ends whole rounds of 2, 3 or 7 steps before the end

Way = Callable[[int, int], tuple[int, int]]  # (column, line) of an image of two pixels, in steps -> where it goes


def round_trip(period: int) -> Way:
    """Lead to a track that takes `period` steps: right on line 0, up, left on line 1, and down."""
    length = (period - 1) // 2
    is_odd = period % 2  # the last step is then aslant

    def go(column: int, line: int) -> tuple[int, int]:
        if line == 0 and 0 <= column < length:
            return 1, 0
        if (column, line) == (length, 0):
            return 0, 1
        if line == 1 and is_odd < column <= length:
            return -1, 0
        if (column, line) == (is_odd, 1):
            return -is_odd, -1
        return (column < 0) - (column > 0), (line < 0) - (line > 0)

    return go


def to_the_corner(column: int, line: int) -> tuple[int, int]:
    """The budget ends the way: the image then stands still, though its gradient is not zero."""
    return 1, -1


def to_the_middle(column: int, line: int) -> tuple[int, int]:
    """In the middle the gradient is zero."""
    return (column < 0) - (column > 0), (line < 0) - (line > 0)


class Driven(nn.Module):
    """Moves two pixels of images by a way; few different logits and certainties, so that many images are as good.

    Two more pixels, if there are any, say by which of several ways: each is 0, 1/2 or 1, and a start moves it by less.
    """

    def __init__(self, *ways: Way) -> None:
        super().__init__()
        places = range(-EDGE, EDGE + 1)
        steps = [[[way(column, line) for line in places] for column in places] for way in ways]
        self.steps = torch.tensor(steps, dtype=torch.float64)

    def forward(self, images: Tensor) -> Outputs:
        flat = images.flatten(1)
        column, line = ((flat[:, :2].detach() - 0.5) / STEP).floor().long().unbind(1)
        way = ((2 * flat[:, 2:].detach()).round().long() * torch.tensor([1, 3])[: flat.shape[1] - 2]).sum(1)
        pull = flat[:, :2] * self.steps[way, column + EDGE, line + EDGE]
        logits = torch.stack([torch.ones_like(flat[:, 0]), (column + line) % 3], 1)
        return Outputs(flat[:, :0], logits, torch.stack([pull.sum(1), (column + 2 * line) % 4], 1))


def pull(outputs: Outputs, labels: Tensor) -> Tensor:
    return outputs.head[:, 0]


def push(outputs: Outputs, labels: Tensor) -> Tensor:
    return -outputs.head[:, 0]


def certainty(outputs: Outputs, labels: Tensor) -> Tensor:
    return outputs.head[:, 1]


def batch_of(size: int) -> Batch:
    images = torch.full((size, 1, 1, 2), 0.5, dtype=torch.float64)
    return Batch(images, torch.zeros(size, dtype=torch.long), torch.arange(size))


def batch_for(ways: int, size: int) -> Batch:
    """Return so many images for each of several ways."""
    batch, which = batch_of(ways * size), torch.arange(ways).repeat(size)
    marks = torch.stack([which % 3, which // 3], 1).double() / 2
    return batch._replace(images=torch.cat([batch.images, marks.view(-1, 1, 1, 2)], 3))


def found(
    network: nn.Module, batch: Batch, until: Until, *, scores: tuple[Score, ...] = (pull,), restarts: int = 1,
    keep: Keep = "last", select: Select = "ce", budget: Budget = BUDGET, draws: Draws = DRAWS,
    narrow: int | None = None,
) -> Moved:  # fmt: skip
    return search(
        network, batch, budget, draws, scores, certainty, steps=STEPS, restarts=restarts, step=STEP, keep=keep,
        select=select, until=until, narrow=narrow,
    )  # fmt: skip


def counted(way: Way) -> Instrumented:
    return Instrumented(Driven(way), "fp32", watch=True)


def steps_taken(way: Way, batch: Batch) -> list[int]:
    """Walk each climb alone to its end, in whole steps; then look back for what it had to take."""
    taken = []
    for start in ((random_start(batch, "linf", BUDGET.eps, DRAWS, 0).flatten(1) - 0.5) / STEP).tolist():
        walk = [tuple(start)]
        for _ in range(STEPS):
            place = walk[-1]
            way_here = way(int(place[0] // 1), int(place[1] // 1))
            walk.append(tuple(min(max(at + by, -EDGE), EDGE) for at, by in zip(place, way_here, strict=True)))
        ends = [
            first + WINDOW + (STEPS - first - WINDOW) % period
            for first in range(0, STEPS - WINDOW, WINDOW)
            for period in range(1, WINDOW + 1)
            if walk[first + period] == walk[first]
        ]
        taken.append(min(ends, default=STEPS))
    return taken


WAYS = {f"period {period}": round_trip(period) for period in (2, 3, 7, WINDOW - 1, WINDOW)}
WAYS |= {"corner": to_the_corner, "middle": to_the_middle}
TOO_LONG = {f"period {period}": round_trip(period) for period in (WINDOW + 1, WINDOW + 2)}


@pytest.mark.parametrize(("keep", "select"), [("last", "ce"), ("best", "ce"), ("best", "objective"), ("best", "evade")])
@pytest.mark.parametrize("ways", [WAYS, TOO_LONG], ids=["short", "too long"])
def test_the_answers_are_those_of_the_plain_way_bit_for_bit(ways: dict[str, Way], keep: Keep, select: Select) -> None:
    network, batch = Driven(*ways.values()), batch_for(len(ways), 5)
    plain, short = (found(network, batch, until, keep=keep, select=select) for until in get_args(Until))
    assert torch.equal(short.images, plain.images)
    assert plain.boldest is not None
    assert short.boldest is not None
    assert torch.equal(short.boldest, plain.boldest)


@pytest.mark.parametrize("way", [*WAYS, *TOO_LONG])
def test_a_climb_takes_the_gradients_that_it_would_take_alone(way: str) -> None:
    batch = batch_of(7)
    expected = steps_taken((WAYS | TOO_LONG)[way], batch)
    assert (max(expected) < STEPS / 2) if way in WAYS else (min(expected) == STEPS)
    for size in (2, 7):
        network = counted((WAYS | TOO_LONG)[way])
        for first in range(0, 7, size):
            found(network, batch.at(slice(first, first + size)), "repeat")
        assert network.gradients == sum(expected)
        assert network.forwards == sum(expected) + 7


class _Later(HashedDraws):
    """The draws of a later restart, for a search that has only one."""

    def __init__(self, restart: int) -> None:
        super().__init__(5)
        self.restart = restart

    def uniform(self, ids: Tensor, shape: tuple[int, ...], draw: int) -> Tensor:
        return super().uniform(ids, shape, draw + self.restart)


@cache
def gradients_one_by_one() -> float:
    """Count what four climbs by two scores, each from three starts, take one after the other."""
    network = counted(round_trip(3))
    for score in (pull, push):
        for restart in range(3):
            found(network, batch_of(4), "repeat", scores=(score,), draws=_Later(restart))
    return network.gradients


@pytest.mark.parametrize("at_once", [1, 2, 3, 6])
def test_each_of_several_climbs_at_once_ends_by_itself(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrbench.ascent.copies", lambda size, wanted: min(at_once, wanted))
    network, batch = counted(round_trip(3)), batch_of(4)
    plain, short = (
        found(network, batch, until, scores=(pull, push), restarts=3, keep="best", select="evade")
        for until in get_args(Until)
    )
    assert torch.equal(short.images, plain.images)
    assert network.gradients == 4 * 2 * 3 * STEPS + gradients_one_by_one()


@pytest.mark.parametrize("at_once", [1, 4])
def test_a_narrowed_search_ends_on_the_same_images_too(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrbench.ascent.copies", lambda size, wanted: min(at_once, wanted))
    network, batch = Driven(*WAYS.values()), batch_for(len(WAYS), 5)
    plain, short = (
        found(network, batch, until, scores=(pull, push), restarts=4, select="objective", narrow=1)
        for until in get_args(Until)
    )
    assert torch.equal(short.images, plain.images)


@pytest.mark.parametrize(("way", "is_flat"), [("middle", True), ("corner", False), ("period 3", False)])
def test_the_share_of_zero_gradients_is_that_of_the_plain_way(way: str, is_flat: bool) -> None:
    plain, short = counted(WAYS[way]), counted(WAYS[way])
    found(plain, batch_of(7), "end")
    found(short, batch_of(7), "repeat")
    assert short.gradients < plain.gradients / 2
    assert short.vanished() == plain.vanished()
    assert plain.vanished() > 0.9 if is_flat else plain.vanished() == 0


def test_in_l2_every_step_is_taken() -> None:
    network = counted(to_the_middle)
    found(network, batch_of(2), "repeat", budget=Budget("l2", Fraction(1, 4)))
    assert network.gradients == 2 * STEPS


def test_a_nan_on_the_way_is_an_error() -> None:
    class Broken(Driven):
        def forward(self, images: Tensor) -> Outputs:
            outputs = super().forward(images)
            return outputs._replace(logits=outputs.logits.masked_fill(images[:, 0, 0, :1] > 0.7, torch.nan))

    with pytest.raises(CellError, match="NaN"):
        found(Broken(to_the_corner), batch_of(3), "repeat")


def test_a_rerun_in_other_batches_confirms_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.toml").write_text(CONFIG)
    config, out = tmp_path / "config.toml", tmp_path / "runs"
    rows = api.run("confidence", "pgd160,pgd160(until=repeat)", config=config, out=out, device="cpu", limit=6)
    plain, short = (rows[rows.attack == name].iloc[0].to_dict() for name in ("pgd160", "pgd160(until=repeat)"))
    assert plain["gradients"] == 160
    assert short["gradients"] < 80
    for name in ("acc_all", "acc_tpr95", "auc", "deploy_robust", "ece", "note"):
        assert short[name] == plain[name]
    monkeypatch.setattr("rrbench.measuring.evaluation.batch_size", lambda device, shape: 4)
    findings = verify(out, rerun=True)
    assert findings.problems == []
    assert findings.tolerances == {EXACT}
    assert findings.rerun == findings.cells == 3


def test_no_step_at_all_is_no_error() -> None:
    network, batch = counted(to_the_corner), batch_of(2)
    moved = search(
        network, batch, BUDGET, DRAWS, (pull,), certainty, steps=0, restarts=1, step=STEP, keep="last", select="ce",
        until="repeat",
    )  # fmt: skip
    assert torch.equal(moved.images, random_start(batch, "linf", BUDGET.eps, DRAWS, 0))
    assert (network.gradients, network.vanished()) == (0, 0)
