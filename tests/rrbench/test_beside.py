"""Several trainings at once: the checkpoints of one after the other, errors that wait, an interrupt that does not."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from rrbench.cells import Training
from rrbench.config import load_preset
from rrbench.engines.beside import Stoppable, beside, default_jobs
from rrbench.errors import CellError
from rrbench.plan import Request, make_plan
from rrbench.progress import Silent
from rrbench.runner import Runner
from rrbench.store import Store

CPU = torch.device("cpu")


@pytest.fixture
def runner(tmp_path: Path) -> Runner:
    found = Runner(Store(tmp_path), CPU, "fp32", (), retrain=True)
    found.store.prepare()
    return found


def trainings(count: int) -> list[Training]:
    plan = make_plan(Request(["rr"], ["clean"], recipe={"epochs": 1, "batch": 512}), load_preset("quick"))
    (first,) = plan.checkpoints()
    return [replace(first, seed=seed) for seed in range(count)]


def test_side_by_side_they_end_as_one_after_the_other(runner: Runner, tmp_path: Path, one_thread: None) -> None:
    alone = Runner(Store(tmp_path / "alone"), CPU, "fp32", (), retrain=True)
    alone.store.prepare()
    together = beside(runner, trainings(2), runner.checkpoint, jobs=2)
    assert [each.sha256 for each in together] == [alone.checkpoint(each).sha256 for each in trainings(2)]
    assert together[0].sha256 != together[1].sha256


def test_an_error_waits_for_the_others_and_the_report_comes_back(runner: Runner) -> None:
    done, outer = [], runner.report

    def work(training: Training) -> int:
        if training.seed == 0:
            raise CellError("diverged")
        done.append(training.seed)
        return training.seed

    with pytest.raises(CellError, match="diverged"):
        beside(runner, trainings(3), work, jobs=2)
    assert sorted(done) == [1, 2]
    assert runner.report is outer


def test_an_interrupt_ends_the_others_where_they_report(runner: Runner) -> None:
    ended, begun = threading.Event(), threading.Event()

    def work(training: Training) -> None:
        if training.seed == 0:
            begun.wait(10)
            raise KeyboardInterrupt
        with runner.report.task("long", 1.0) as advance:
            begun.set()
            try:
                while True:
                    advance(0.0)
            except KeyboardInterrupt:
                ended.set()
                raise

    with pytest.raises(KeyboardInterrupt):
        beside(runner, trainings(2), work, jobs=2)
    assert ended.is_set()


def test_work_that_was_told_to_stop_ends_at_its_next_report() -> None:
    stop = threading.Event()
    with Stoppable(Silent(), stop).task("training", 2.0) as advance:
        advance(1.0)
        stop.set()
        with pytest.raises(KeyboardInterrupt):
            advance(1.0)


@pytest.mark.parametrize(("free", "jobs"), [(140, 4), (50, 2), (10, 1)])
def test_a_gpu_takes_as_many_as_fit_its_memory_and_a_cpu_one(
    monkeypatch: pytest.MonkeyPatch, free: int, jobs: int
) -> None:
    monkeypatch.setattr("rrbench.engines.beside.free_memory", lambda device: free * 2**30)
    assert default_jobs(torch.device("cuda")) == jobs
    assert default_jobs(CPU) == 1
