"""Long climbs that end when they repeat themselves: the same bits as the plain way, for fewer gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from rrbench.ascent import Keep, Score, cross_entropy, search
from rrbench.compute.draws import HashedDraws
from rrbench.cycles import LONG, WINDOW
from rrbench.errors import CellError
from rrbench.protocols import Batch, Budget, Moved, Norm, Outputs

pytestmark = pytest.mark.usefixtures("one_thread")

STEP = 1 / 64  # exact in binary: a climb comes back to the same bits
RADIUS = Fraction(1, 4)


@dataclass
class Net:
    """Two small layers; counts the images whose gradient is asked for."""

    gradients: int = 0

    def __call__(self, images: Tensor) -> Outputs:
        self.gradients += len(images) * images.requires_grad
        first, second = HashedDraws(3).normal(torch.arange(2), (8, 8), 0)
        # Each input's own sums, as a product of matrices may add in another order in another batch.
        hidden = (2 * first * (images.flatten(1) - 0.5)[:, None]).sum(2).tanh()
        logits = (second[:3] * hidden[:, None]).sum(2)
        return Outputs(logits[:, :0], logits, logits[:, :1])


def batch_of(size: int) -> Batch:
    ids = torch.arange(size)
    images = (HashedDraws(1).uniform(ids, (1, 2, 4), 0) * 64).round() / 64
    return Batch(images, ids % 3, ids + 50)


def margin_to(shift: int) -> Score:
    def score(outputs: Outputs, labels: Tensor) -> Tensor:
        rows = torch.arange(len(labels))
        return outputs.logits[rows, (labels + shift) % 3] - outputs.logits[rows, labels]

    return score


def confidence(outputs: Outputs, labels: Tensor) -> Tensor:
    return outputs.logits.softmax(1).amax(1)


def found(
    network: Callable[[Tensor], Outputs], batch: Batch, objectives: Sequence[Score] = (cross_entropy,), *,
    steps: int = LONG, restarts: int = 1, keep: Keep = "last", norm: Norm = "linf", plain: bool = False,
) -> Moved:  # fmt: skip
    return search(
        network, batch, Budget(norm, RADIUS), HashedDraws(5), objectives, confidence, steps=steps, restarts=restarts,
        step=STEP, keep=keep, select="ce", plain=plain,
    )  # fmt: skip


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_the_answers_are_those_of_the_plain_way_bit_for_bit(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rrbench.ascent.copies", lambda size, wanted: min(at_once, wanted))
    batch, objectives, steps = batch_of(5), [margin_to(1), margin_to(2)], LONG + 7
    answers, costs = [], []
    for plain in (True, False):
        network = Net()
        answers.append(found(network, batch, objectives, steps=steps, restarts=3, plain=plain))
        costs.append(network.gradients)
    assert torch.equal(answers[0].images, answers[1].images)
    assert answers[0].boldest is not None
    assert answers[1].boldest is not None
    assert torch.equal(answers[0].boldest, answers[1].boldest)
    assert costs[0] == 5 * 2 * 3 * steps
    assert costs[1] < costs[0] / 3


# Climbs whose every step is known: a pixel's gradient is given as a function of the image.


@dataclass
class Driven:
    """Moves each image as `direction` says, and remembers all values of pixels."""

    direction: Callable[[Tensor], Tensor]
    gradients: int = 0
    seen: set[float] = field(default_factory=set)

    def __call__(self, images: Tensor) -> Outputs:
        self.gradients += len(images) * images.requires_grad
        self.seen |= set(images.detach().flatten().tolist())
        flat = images.flatten(1)
        pull = (flat * self.direction(flat.detach())).sum(1, keepdim=True)
        logits = torch.cat([flat.detach()[:, :1], flat.detach()[:, :1] * 0], 1)
        return Outputs(flat, logits, pull)


def pull(outputs: Outputs, labels: Tensor) -> Tensor:
    return outputs.head[:, 0]


def start_of(batch: Batch) -> Tensor:
    """Return the random start: with no step taken, it is the answer."""
    return found(Driven(torch.zeros_like), batch, [pull], steps=0).images


def pixels(*values: float) -> Batch:
    images = torch.tensor(values).view(-1, 1, 1, 1)
    return Batch(images, torch.ones(len(values), dtype=torch.long), torch.arange(len(values)))


@pytest.mark.parametrize("steps", [LONG, LONG + 1, LONG + 2, LONG + 3])
def test_a_climb_to_and_fro_ends_in_the_phase_of_its_last_step(steps: int) -> None:
    """Above the middle the way is down, else up: from the first crossing on there are two images."""
    network = Driven(lambda image: torch.where(image > 0.5, -1.0, 1.0))
    batch = pixels(0.5)
    expected = start_of(batch)
    for _ in range(steps):
        expected = (expected + (STEP if float(expected) <= 0.5 else -STEP)).clamp(0.25, 0.75)
    assert torch.equal(found(network, batch, [pull], steps=steps).images, expected)
    assert network.gradients <= 4 * WINDOW


def round_trip(length: int) -> Callable[[Tensor], Tensor]:
    """The second pixel says where the first one goes, and turns when that one is `length` steps up or is back."""

    def go(image: Tensor) -> Tensor:
        place, sign = image[:, :1], image[:, 1:]
        is_up = sign > 0.5
        to_turn = torch.where(is_up, place > 0.5 + length * STEP, place < 0.5)
        way = torch.where(is_up, 1.0, -1.0)
        return torch.cat([way, -way * to_turn], 1)

    return go


@pytest.mark.parametrize(("length", "is_noticed"), [(0, True), (1, True), (2, False), (8, False), (12, False)])
def test_a_round_trip_of_any_length_ends_where_it_must(length: int, is_noticed: bool) -> None:
    """The first input travels. The second one cannot reach the turning points, stands still, and leaves."""
    images = torch.tensor([[0.5, 0.5], [0.1, 0.5]]).view(2, 1, 1, 2)
    batch = Batch(images, torch.ones(2, dtype=torch.long), torch.arange(2))
    plain, network = Driven(round_trip(length)), Driven(round_trip(length))
    expected = found(plain, batch, [pull], steps=LONG + 5, restarts=2, plain=True)
    answers = found(network, batch, [pull], steps=LONG + 5, restarts=2)
    assert torch.equal(answers.images, expected.images)
    assert network.seen == plain.seen, "no image beyond the end of a climb is seen, and none is left out"
    assert plain.gradients == 2 * 2 * (LONG + 5)
    travel = 2 * (LONG + WINDOW)  # of two climbs that are never noticed, in whole windows
    assert network.gradients < travel / 4 if is_noticed else travel <= network.gradients < travel + 20 * WINDOW


@pytest.mark.parametrize(
    ("steps", "keep", "norm"), [(LONG - 1, "last", "linf"), (LONG, "best", "linf"), (LONG, "last", "l2")]
)
def test_short_climbs_the_best_image_and_l2_go_the_plain_way(steps: int, keep: Keep, norm: Norm) -> None:
    network = Driven(lambda image: torch.where(image > 0.5, -1.0, 1.0))
    found(network, pixels(0.5, 0.6), [pull], steps=steps, keep=keep, norm=norm, restarts=2)
    assert network.gradients == 2 * 2 * steps


def test_a_nan_on_the_way_is_an_error() -> None:
    def broken(image: Tensor) -> Tensor:
        return torch.where(image > 0.7, torch.nan, 1.0)

    with pytest.raises(CellError, match="NaN"):
        found(Driven(broken), pixels(0.5, 0.1), [pull])
