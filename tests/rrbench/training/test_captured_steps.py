"""A captured step equals the plain step: the same weights after the same batches, also if the rate changes."""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import ClassVar, Literal, NamedTuple, get_args

import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.devices import make_twin, place
from rrbench.compute.draws import HashedDraws, ReplayedDraws
from rrbench.compute.instrumented import Instrumented
from rrbench.datasets.digits import Digits
from rrbench.frameworks.pgd_at import PgdAt
from rrbench.frameworks.standard import Standard
from rrbench.networks.composed import Composed
from rrbench.networks.preact_resnet import ResidualBackbone
from rrbench.planning.cells import Training
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_preset
from rrbench.plugins.registry import build
from rrbench.progress import Silent
from rrbench.protocols import Batch, Draws, Rejector, Victim
from rrbench.training.average import Average
from rrbench.training.captured_steps import WARM, Captured, CapturedStep, Step
from rrbench.training.train import make_optimizer
from spoken import Spoken

Optimizer = Literal["sgd", "adam"]


def a_training(optimizer: Optimizer = "sgd") -> Training:
    plan = make_plan(Request(["rr"], ["clean"]), load_preset("quick"))
    training = plan.cells[0].training
    return replace(training, recipe=replace(training.recipe, batch=32, optimizer=optimizer))


def steps_of(
    kind: type[Step], device: torch.device, *more: object, framework: object = None, optimizer: Optimizer = "sgd"
) -> Step:
    training = a_training(optimizer)
    rejector = build(Rejector, training.rejector)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network: nn.Module = Composed(Digits.info, ResidualBackbone(1, 16, (16, 32), 1), 32, rejector)
    network = place(network, device)
    model = Instrumented(network, "fp32", twin=make_twin(network, "fp32", device)).train()
    data = Digits().load("train", ()).to(device)
    average = Average(network, 0.9)
    parts = (framework or PgdAt(steps=2), rejector, model, make_optimizer(network, training.recipe), Digits.info, data)
    return kind(*parts, *(more or (Silent(), "rr")), average=average)  # type: ignore[arg-type]


def weights_after(step: Step, rates: list[float]) -> Tensor:
    """Take one step for each rate, the last on a smaller batch, over three epochs; return weights and their mean."""
    for epoch in range(3):
        step.begin(a_training(), epoch)
        for index, rate in enumerate(rates):
            size = 20 if index == len(rates) - 1 else 32
            step.take(torch.arange(size, device=step.data.labels.device) + 32 * index, rate)
    assert step.average is not None
    weights = [parameter.detach() for parameter in step.network.network.parameters()]
    return torch.cat([tensor.flatten() for tensor in (*weights, *step.average.tensors.values())])


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """A GPU that adds in a fixed order, and a stream of its own: the default one cannot be captured."""
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    with torch.cuda.stream(torch.cuda.Stream()):
        yield torch.device("cuda")


def test_replayed_draws_are_the_hashed_ones_of_the_stream_they_follow() -> None:
    ids = torch.arange(7)
    replayed = ReplayedDraws(1)
    first = replayed.uniform(ids, (3,), 0), replayed.normal(ids, (2, 2), 1)
    replayed.follow(2)
    second = replayed.uniform(ids, (3,), 0), replayed.normal(ids, (2, 2), 1)
    for stream, found in ((1, first), (2, second)):
        hashed = HashedDraws(stream)
        assert torch.equal(found[0], hashed.uniform(ids, (3,), 0))
        assert torch.equal(found[1], hashed.normal(ids, (2, 2), 1))


RATES = [0.001] * 6 + [0.0001] * 2


@cache
def plainly(optimizer: Optimizer) -> Tensor:
    """Return the weights after plain steps, taken once for all tests."""
    return weights_after(steps_of(Step, torch.device("cpu"), optimizer=optimizer), RATES)


# The notes of an epoch's full batches; of the first, three warm, and so does its last, smaller one.
FIRST = ["captured 32 at 0.001", *["32"] * 3, "captured 32 at 0.0001", "32"]
LATER = ["captured 32 at 0.001", *["32"] * 6, "captured 32 at 0.0001", "32"]


class Played(CapturedStep):
    """Stands in for a GPU: a graph is the plain step at the rate of its capture. Some sizes are refused."""

    def _capture(self, own: Captured, rate: float) -> None:
        self.notes.append(f"captured {len(own.positions)} at {rate}")
        if len(own.positions) in self.refused:
            own.is_refused = True
            return
        own.rate, own.graph = rate, Graph(lambda: self._replay(own, rate))  # type: ignore[assignment]

    def _replay(self, own: Captured, rate: float) -> None:
        self.notes.append(f"{len(own.positions)}")
        Step.take(self, own.positions, rate)

    notes: ClassVar[list[str]] = []
    refused: ClassVar[tuple[int, ...]] = ()


class Graph(NamedTuple):
    replay: Callable[[], None]


@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_every_size_of_batch_is_warmed_captured_and_replayed(optimizer: Optimizer) -> None:
    cpu = torch.device("cpu")
    Played.notes.clear()
    played = weights_after(steps_of(Played, cpu, Silent(), "rr", optimizer=optimizer), RATES)
    assert Played.notes == [*FIRST, *LATER, "captured 20 at 0.0001", "20", *LATER, "20"]
    assert torch.equal(played, plainly(optimizer))


@pytest.mark.parametrize(
    ("refused", "notes"),
    [
        (20, [*FIRST, *LATER, "captured 20 at 0.0001", *LATER]),  # the full ones go on as before
        (32, ["captured 32 at 0.001"]),  # after that nobody tries the small one
    ],
)
def test_a_size_that_cannot_be_captured_goes_plainly(
    refused: int, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    Played.notes.clear()
    monkeypatch.setattr(Played, "refused", (refused,))
    played = weights_after(steps_of(Played, cpu, Silent(), "rr"), RATES)
    assert Played.notes == notes
    assert torch.equal(played, plainly("sgd"))


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_a_captured_step_is_the_plain_one(optimizer: Optimizer, gpu: torch.device) -> None:
    report = Spoken()
    captured = steps_of(CapturedStep, gpu, report, "rr", optimizer=optimizer)
    plain = steps_of(Step, gpu, optimizer=optimizer)
    assert torch.equal(weights_after(captured, RATES), weights_after(plain, RATES))
    assert float(captured.total) == float(plain.total)
    assert report.lines == []
    assert isinstance(captured, CapturedStep)
    pools = {size: each.graph.pool() for size, each in captured._captured.items() if each.graph is not None}
    assert set(pools) == {32, 20}
    assert pools[32] == pools[20]


class Crowded(Standard):
    """Counts how many are in the middle of a step at once."""

    inside, most = 0, 0

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        Crowded.inside += 1
        Crowded.most = max(Crowded.most, Crowded.inside)
        time.sleep(0.05)
        loss = super().__call__(victim, batch, draws)
        Crowded.inside -= 1
        return loss


def test_of_trainings_side_by_side_one_warms_at_a_time() -> None:
    cpu = torch.device("cpu")
    Crowded.most = 0
    steps = [steps_of(CapturedStep, cpu, Silent(), "rr", framework=Crowded()) for _ in range(3)]

    def warm(step: Step) -> None:
        for _ in range(WARM):
            step.take(torch.arange(32), 0.1)

    threads = [threading.Thread(target=warm, args=(step,)) for step in steps]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert (Crowded.inside, Crowded.most) == (0, 1)


class Waiting(Standard):
    """Looks at a number on the host in the middle of a step."""

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> Tensor:
        loss = super().__call__(victim, batch, draws)
        return loss * (1 if float(loss.detach()) > 0 else 2)


@pytest.mark.gpu
def test_a_step_that_waits_for_the_device_is_taken_plainly_and_said_so(gpu: torch.device) -> None:
    report = Spoken()
    step = steps_of(CapturedStep, gpu, report, "rr", framework=Waiting())
    plain = weights_after(steps_of(Step, gpu, framework=Waiting()), RATES)
    assert torch.equal(weights_after(step, RATES), plain)
    assert len(report.lines) == 1
    assert report.lines[0].startswith("rr: its step of 32 images cannot be captured and goes on plainly (")
