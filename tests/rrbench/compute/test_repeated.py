"""A step that is recorded and replayed does what the plain step does, and counts as much."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recordings import Again, Rehearsed
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.recorder import PLAIN, SIZES, Recording, Work
from rrbench.compute.repeated import Repeated, watching
from rrbench.protocols import Outputs

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """Its slope is NaN for a value above 1e6, and 0 for a value of 0."""

    def forward(self, images: Tensor) -> Outputs:
        flat = images.flatten(1)
        bad = torch.where(flat > 1e6, torch.nan, 1.0)
        return Outputs(flat, flat.square() * bad, flat[:, :0])


class Doubling:
    """Adds a network's gradient to the first rows of a tensor, and keeps the largest sum of each row."""

    def __init__(self, count: int, record: Callable[[Work], Recording] | None = None) -> None:
        self.network = Instrumented(Net(), "fp32", watch=True)
        self.values = torch.linspace(0, 1, 3 * count).view(count, 3)
        self.seen = torch.zeros(count)
        self.wanted = torch.ones(count, dtype=torch.bool)
        self.calls: list[int] = []
        self.repeated = Repeated(self.step, [self.values], [self.seen], self.network, record)

    def step(self, rows: int) -> None:
        self.calls.append(rows)
        values = self.values[:rows].clone().requires_grad_()
        with watching(self.network, self.wanted[:rows]):
            (slope,) = torch.autograd.grad(self.network(values).logits.sum(), values)
        self.values[:rows] += slope
        self.seen[:rows] = torch.maximum(self.seen[:rows], self.values[:rows].sum(1))


def test_recorded_steps_do_and_count_what_plain_ones_do() -> None:
    plain, record = Doubling(20), Rehearsed()
    replaying = Doubling(20, record)
    for each in (plain, replaying):
        each.values[3] = 0.0  # flat
        for rows in (20, 20, 16, 20, 20, 16, 20, 16, 16, 16, 20):
            each.repeated(rows, rows)
    assert record.recordings == 2
    torch.testing.assert_close(replaying.values, plain.values)
    torch.testing.assert_close(replaying.seen, plain.seen)
    for each in (plain, replaying):
        assert each.network.gradients == each.network.forwards == 20 * 6 + 16 * 5
        assert each.network.vanished() == pytest.approx(11 / (20 * 6 + 16 * 5))
        assert not each.network.has_seen_nan()


@pytest.mark.parametrize("record", [None, Rehearsed()], ids=["plain", "recorded"])
def test_rows_that_only_fill_a_batch_count_for_nothing(record: Callable[[Work], Recording] | None) -> None:
    each = Doubling(16, record)
    each.wanted[12:] = False
    each.values[:] = 0.0
    each.values[13] = 1e7  # its slope is NaN
    for _ in range(PLAIN + 4):
        each.repeated(16, 12)
    assert each.network.gradients == each.network.forwards == 12 * (PLAIN + 4)
    assert each.network.vanished() == 1.0
    assert not each.network.has_seen_nan()
    each.wanted[13] = True
    each.repeated(16, 13)
    assert each.network.has_seen_nan()


def test_a_size_is_recorded_after_a_few_plain_steps_and_a_large_one_never() -> None:
    record = Rehearsed()
    small, large = Doubling(16, record), Doubling(SIZES[-1] + 1, record)
    for _ in range(PLAIN + 3):
        large.repeated(SIZES[-1] + 1, SIZES[-1] + 1)
    assert record.recordings == 0
    for _ in range(PLAIN):
        small.repeated(16, 16)
    assert record.recordings == 0
    for _ in range(4):
        small.repeated(16, 16)
    assert (record.recordings, record.replays) == (1, 4)


@pytest.mark.parametrize(
    ("wanted", "most", "recorded", "plain"),
    [(10, 500, 16, 10), (16, 500, 16, 16), (129, 500, 192, 129), (450, 500, 500, 450), (2047, 5000, 2048, 2047)],
)
def test_only_few_sizes_are_worked_on_if_steps_are_recorded(wanted: int, most: int, recorded: int, plain: int) -> None:
    assert Doubling(1, Rehearsed()).repeated.rows(wanted, most) == recorded
    assert Doubling(1).repeated.rows(wanted, most) == plain


def test_more_rows_than_are_ever_recorded_are_worked_on_exactly() -> None:
    assert Doubling(1, Rehearsed()).repeated.rows(SIZES[-1] + 7, 9000) == SIZES[-1] + 7


class Wrong:
    """Does the work one and a half times, as a certainty may that changes with every call."""

    def __init__(self, work: Work) -> None:
        self.work = work

    def replay(self) -> Tensor:
        before = self.work().clone()
        return self.work().add_(before).div_(2)


class Idle(Again):
    """Does nothing."""

    def replay(self) -> Tensor:
        return torch.zeros(())


def refuse(work: Work) -> Recording:
    work()
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize(
    "record", [Rehearsed(Wrong), Rehearsed(Idle), refuse], ids=["answers otherwise", "does nothing", "is refused"]
)
def test_what_cannot_be_recorded_goes_on_plainly_as_if_nothing_had_been_tried(
    record: Callable[[Work], Recording],
) -> None:
    plain, replaying = Doubling(2000), Doubling(2000, record)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for each in (plain, replaying):
            each.values[5] = 0.0  # flat
            for _ in range(PLAIN + 5):
                each.repeated(16, 16)
    # A few rows among many that have left: what is compared are the rows of the step.
    torch.testing.assert_close(replaying.values, plain.values)
    torch.testing.assert_close(replaying.seen, plain.seen)
    for each in (plain, replaying):
        assert each.network.gradients == 16 * (PLAIN + 5)
        assert each.network.vanished() == 1 / 16
    assert [str(each.message).partition("(")[0] for each in caught] == [
        "small batches go slowly: a step could not be recorded "
    ]
    assert replaying.repeated.rows(10, 50) == 10


@pytest.mark.gpu
def test_on_a_gpu_a_recorded_step_does_and_counts_what_the_plain_one_does() -> None:
    results = []
    for replays in (False, True):
        made = Doubling(20)
        made.values, made.seen, made.wanted = made.values.cuda() / 1000, made.seen.cuda(), made.wanted.cuda()
        made.network.replays = replays
        made.repeated = Repeated(made.step, [made.values], [made.seen], made.network)
        for _ in range(7):
            made.repeated(20, 20)
        assert made.network.vanished() == 0
        assert made.network.gradients == 20 * 7
        results.append((made.values.cpu(), made.seen.cpu(), len(made.calls)))
    torch.testing.assert_close(results[0][:2], results[1][:2])
    assert [calls for *_, calls in results] == [7, PLAIN + 2]
