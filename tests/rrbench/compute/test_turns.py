"""Turns on a GPU: many threads together or one alone; while one training captures, others only replay."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rrbench.compute.turns import TURNS, Turns
from rrbench.engines.side_by_side import train_side_by_side
from rrbench.measuring import pack
from rrbench.measuring.materials import Materials
from rrbench.measuring.store import Store
from rrbench.names import Choice
from rrbench.planning.cells import Training
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_preset
from rrbench.protocols import Batch, Split
from rrbench.training import resume, train
from rrbench.training.captured_steps import Captured, CapturedStep, Step
from spoken import Spoken


def begun(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def holding(turn: AbstractContextManager[None], has: threading.Event, end: threading.Event) -> Callable[[], None]:
    def work() -> None:
        with turn:
            has.set()
            assert end.wait(10)

    return work


def test_many_work_together() -> None:
    turns, meeting = Turns(), threading.Barrier(3)

    def meet() -> None:
        with turns.together():
            meeting.wait(10)

    threads = [begun(meet) for _ in range(3)]
    for thread in threads:
        thread.join(10)
    assert not meeting.broken


def test_who_is_alone_waits_for_the_others_and_lets_nobody_in() -> None:
    turns, end = Turns(), threading.Event()
    has = [threading.Event() for _ in range(3)]
    first = begun(holding(turns.together(), has[0], end))
    assert has[0].wait(10)
    alone_end = threading.Event()
    alone = begun(holding(turns.alone(), has[1], alone_end))
    assert not has[1].wait(0.05), "alone beside another"
    late = begun(holding(turns.together(), has[2], end))
    assert not has[2].wait(0.05), "who comes later goes first, and the one who waits to be alone never can"
    end.set()
    assert has[1].wait(10)
    assert turns.is_alone()
    assert not has[2].is_set()
    alone_end.set()
    assert has[2].wait(10)
    for thread in (first, alone, late):
        thread.join(10)
    assert not turns.is_alone()


def test_a_turn_is_given_back_after_an_error() -> None:
    turns = Turns()
    for turn in (turns.together, turns.alone, turns.alone, turns.together):
        with pytest.raises(KeyboardInterrupt), turn():
            raise KeyboardInterrupt


def test_a_thread_keeps_its_turn_and_cannot_wait_for_itself() -> None:
    turns = Turns()
    with turns.alone(), turns.together():
        assert turns.is_alone()
    with turns.together(), turns.together(), pytest.raises(RuntimeError, match="has a turn already"), turns.alone():
        pass
    with turns.alone():
        pass


@dataclass
class Watched(CapturedStep):
    """Stands in for a GPU: a graph is the plain step. Whoever does more than replay while it is captured is noted."""

    busy: ClassVar[int] = 0  # threads that do more than replay
    captures: ClassVar[int] = 0
    met: ClassVar[list[int]] = []  # how many were busy during captures

    def _capture(self, own: Captured, rate: float) -> None:
        with TURNS.alone():
            for _ in range(5):
                Watched.met.append(Watched.busy)
                time.sleep(0.001)
            Watched.captures += 1
            own.rate, own.graph = rate, Graph(lambda: Step.take(self, own.positions, rate))  # type: ignore[assignment]


class Graph:
    def __init__(self, replay: Callable[[], None]) -> None:
        self.replay = replay

    def reset(self) -> None:
        del self.replay


def watched(work: Callable[..., Any]) -> Callable[..., Any]:
    """Note that a function does more than replay; it takes a while, so that captures may meet it."""
    lock = threading.Lock()

    def noted(*given: Any, **options: Any) -> Any:
        with lock:
            Watched.busy += 1
        try:
            time.sleep(0.003)
            return work(*given, **options)
        finally:
            with lock:
                Watched.busy -= 1

    return noted


@pytest.fixture
def gpu_like(monkeypatch: pytest.MonkeyPatch) -> None:
    Watched.met.clear()
    Watched.captures = 0
    monkeypatch.setattr(train, "Step", Watched)
    eager = [
        (train, "accuracies"),
        (train, "clean_facts"),
        (train, "build_network"),
        (train, "make_twin"),
        (resume.Writer, "_copies"),
        (Watched, "release"),
        (pack, "pack"),
        (pack, "accuracies"),
        (pack, "clean_facts"),
    ]
    for owner, name in eager:
        monkeypatch.setattr(owner, name, watched(getattr(owner, name)))


def trainings(count: int) -> list[Training]:
    """Return trainings of several lengths whose rate falls often: every fall is a capture for each size of batch."""
    request = Request(
        ["confidence"], ["clean"], frameworks=["standard"], recipe={"epochs": 1, "batch": 512, "choose_by": "pgd1"}
    )
    (first,) = make_plan(request, load_preset("quick")).checkpoints()
    drops = tuple(Fraction(tenth, 10) for tenth in range(1, 10))
    return [
        replace(first, seed=seed, recipe=replace(first.recipe, epochs=2 + seed, drops=drops)) for seed in range(count)
    ]


def test_no_training_captures_while_another_does_more_than_replay(
    tmp_path: Path, gpu_like: None, one_thread: None
) -> None:
    materials = Materials(Store(tmp_path), torch.device("cpu"), "fp32", (), retrain=True)
    materials.store.prepare()

    def work(training: Training) -> str:
        checkpoint = materials.checkpoint(training)
        return pack.add(tmp_path / "zoo", materials, training, checkpoint, "test").trained_as

    ended = train_side_by_side(materials, trainings(3), work, jobs=3)
    assert [each.get() for each in ended] == ["standard"] * 3
    assert Watched.captures > 10
    assert set(Watched.met) == {0}


class Cut(Materials):
    """Judges every training on so many images as no other: cuDNN tries its kernels anew, and waits for the device."""

    def data(self, dataset: Choice, split: Split) -> Batch:
        batch = super().data(dataset, split)
        return batch if split == "train" else batch.at(slice(getattr(OWN, "size", None)))


OWN = threading.local()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_on_a_gpu_no_capture_is_broken_however_trainings_meet(tmp_path: Path) -> None:
    spoken = Spoken()
    materials = Cut(Store(tmp_path), torch.device("cuda"), "bf16", (), retrain=True, report=spoken)
    materials.store.prepare()
    request = Request(["confidence", "rr"], ["clean"], network="resnet18", frameworks=["pgd-at(steps=2)"])
    two = list(make_plan(request, load_preset("quick")).checkpoints())
    drops = (Fraction(1, 3), Fraction(2, 3), Fraction(5, 6))
    # Of several lengths, so that drops, choices, ends and packing meet in ever other ways.
    chosen = [
        replace(two[seed % 2], seed=seed, recipe=replace(two[0].recipe, batch=128, epochs=2 + seed % 5, drops=drops))
        for seed in range(30)
    ]

    def work(training: Training) -> int:
        OWN.size = 200 + 5 * training.seed
        checkpoint = materials.checkpoint(training)
        pack.add(tmp_path / "zoo", materials, training, checkpoint, "test")
        return len(checkpoint.facts["log"])

    ended = train_side_by_side(materials, chosen, work, jobs=2)
    assert [line for line in spoken.lines if "captured" in line or "failed" in line] == []
    assert [each.get() for each in ended] == [2 + seed % 5 for seed in range(30)]
    assert len(list((tmp_path / "zoo").glob("*.safetensors"))) == 30
