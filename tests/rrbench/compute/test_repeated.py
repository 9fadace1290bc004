"""A step that is recorded and replayed does what the plain step does, and counts as much."""

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from recordings import Again, Rehearsed
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.recorder import PLAIN, SIZES, Recording, Work
from rrbench.compute.repeated import Repeated
from rrbench.protocols import Outputs

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    def forward(self, images: Tensor) -> Outputs:
        flat = images.flatten(1)
        return Outputs(flat, flat.square(), flat[:, :0])


class Doubling:
    """Doubles the first rows of a tensor, and adds a gradient of the network to them."""

    def __init__(self, count: int, record: Callable[[Work], Recording] | None) -> None:
        self.network = Instrumented(Net(), "fp32", watch=True)
        self.values = torch.linspace(0, 1, 3 * count).view(count, 3)
        self.calls: list[int] = []
        self.repeated = Repeated(self.step, [self.values], self.network, record)

    def step(self, rows: int) -> None:
        self.calls.append(rows)
        values = self.values[:rows].clone().requires_grad_()
        (slope,) = torch.autograd.grad(self.network(values).logits.sum(), values)
        self.values[:rows] += slope


def test_recorded_steps_do_and_count_what_plain_ones_do() -> None:
    plain, record = Doubling(20, None), Rehearsed()
    replaying = Doubling(20, record)
    for rows in (20, 20, 16, 20, 20, 16, 20, 16, 16, 16, 20):
        plain.repeated(rows)
        replaying.repeated(rows)
    assert record.recordings == 2
    torch.testing.assert_close(replaying.values, plain.values)
    assert plain.network.gradients == plain.network.forwards == 20 * 6 + 16 * 5
    # Each recording is tried once beside the plain step: two passes more.
    assert replaying.network.gradients == replaying.network.forwards == 20 * 7 + 16 * 6
    # The first value is 0, and so is its row's slope only if all three are: none is.
    assert replaying.network.vanished() == plain.network.vanished() == 0


def test_a_size_is_recorded_after_a_few_plain_steps_and_a_large_one_never() -> None:
    record = Rehearsed()
    small, large = Doubling(16, record), Doubling(SIZES[-1] + 1, record)
    for _ in range(PLAIN + 3):
        large.repeated(SIZES[-1] + 1)
    assert record.recordings == 0
    for _ in range(PLAIN):
        small.repeated(16)
    assert record.recordings == 0
    for _ in range(4):
        small.repeated(16)
    assert (record.recordings, record.replays) == (1, 4)


@pytest.mark.parametrize(
    ("wanted", "most", "recorded", "plain"),
    [(10, 500, 16, 10), (16, 500, 16, 16), (129, 500, 192, 129), (450, 500, 500, 450), (2047, 5000, 2048, 2047)],
)
def test_only_few_sizes_are_worked_on_if_steps_are_recorded(wanted: int, most: int, recorded: int, plain: int) -> None:
    assert Doubling(1, Rehearsed()).repeated.rows(wanted, most) == recorded
    assert Doubling(1, None).repeated.rows(wanted, most) == plain


def test_more_rows_than_are_ever_recorded_are_worked_on_exactly() -> None:
    assert Doubling(1, Rehearsed()).repeated.rows(SIZES[-1] + 7, 9000) == SIZES[-1] + 7


class Wrong(Again):
    """Answers otherwise than the plain step, as a certainty does that changes with every call."""

    def replay(self) -> Tensor:
        return self.work().mul_(1.5)


def refuse(work: Work) -> Recording:
    work()
    raise RuntimeError("operation not permitted when stream is capturing")


@pytest.mark.parametrize("record", [Rehearsed(Wrong), refuse], ids=["answers otherwise", "cannot be recorded"])
def test_what_cannot_be_recorded_goes_on_plainly_and_says_so_once(record: Callable[[Work], Recording]) -> None:
    plain, replaying = Doubling(5, None), Doubling(5, record)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(PLAIN + 5):
            plain.repeated(5)
            replaying.repeated(5)
    torch.testing.assert_close(replaying.values, plain.values)
    assert replaying.network.gradients == plain.network.gradients == 5 * (PLAIN + 5)
    assert [str(each.message).partition("(")[0] for each in caught] == [
        "small batches go slowly: a step could not be recorded "
    ]
    assert replaying.repeated.rows(10, 50) == 10


@pytest.mark.gpu
def test_on_a_gpu_a_recorded_step_does_and_counts_what_the_plain_one_does() -> None:
    results = []
    for replays in (False, True):
        made = Doubling(20, None)
        made.values = made.values.cuda() / 1000
        made.network.replays = replays
        made.repeated = Repeated(made.step, [made.values], made.network)
        for _ in range(7):
            made.repeated(20)
        results.append((made.values.cpu(), made.network.vanished(), made.network.gradients, len(made.calls)))
    torch.testing.assert_close(results[0][0], results[1][0])
    assert results[1][1:] == (0, 20 * 8, PLAIN + 2)
    assert results[0][1:] == (0, 20 * 7, 7)
