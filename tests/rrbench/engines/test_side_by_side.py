"""Several trainings at once: the checkpoints of one after the other; an error ends one, an interrupt all."""

import gc
import itertools
import os
import sys
import threading
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rrbench import zoo
from rrbench.engines.side_by_side import Stoppable, default_jobs, train_side_by_side
from rrbench.errors import CellError
from rrbench.measuring.materials import Materials
from rrbench.measuring.store import Store
from rrbench.planning.cells import Training
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_preset
from rrbench.progress import Silent
from rrbench_baselines.ebd import Ebd
from spoken import Spoken

CPU = torch.device("cpu")


@pytest.fixture
def materials(tmp_path: Path) -> Materials:
    found = Materials(Store(tmp_path), CPU, "fp32", (), retrain=True)
    found.store.prepare()
    return found


def trainings(count: int) -> list[Training]:
    request = Request(
        ["rr"], ["clean"], frameworks=["standard"], recipe={"epochs": 1, "batch": 512, "choose_by": "pgd1"}
    )
    plan = make_plan(request, load_preset("quick"))
    (first,) = plan.checkpoints()
    return [replace(first, seed=seed) for seed in range(count)]


def test_side_by_side_they_end_as_one_after_the_other(materials: Materials, tmp_path: Path, one_thread: None) -> None:
    alone = Materials(Store(tmp_path / "alone"), CPU, "fp32", (), retrain=True)
    alone.store.prepare()
    together = [each.get() for each in train_side_by_side(materials, trainings(2), materials.checkpoint, jobs=2)]
    assert [each.sha256 for each in together] == [alone.checkpoint(each).sha256 for each in trainings(2)]
    assert together[0].sha256 != together[1].sha256


def test_what_trainings_set_for_all_threads_is_put_back(
    materials: Materials, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Path.cwd()
    monkeypatch.chdir(before)  # to come back if this fails
    train_side_by_side(materials, trainings(2), lambda training: os.chdir(tmp_path), jobs=2)
    assert Path.cwd() == before


def test_an_error_ends_its_own_training_alone_and_is_told_at_once(materials: Materials) -> None:
    told = threading.Event()
    materials.report = spoken = Spoken(told.set)

    def work(training: Training) -> int:
        if training.seed == 0:
            raise CellError("diverged\nin many lines")
        assert told.wait(10), "the error waits for the others"
        return training.seed

    ended = train_side_by_side(materials, trainings(3), work, jobs=2)
    assert spoken.lines == ["failed: training standard+rr: diverged"]
    assert [each.result for each in ended] == [None, 1, 2]
    assert materials.report is spoken
    with pytest.raises(CellError, match="diverged"):
        ended[0].get()


def test_an_exit_ends_its_own_training_alone(materials: Materials) -> None:
    def work(training: Training) -> int:
        return sys.exit(0) if training.seed == 0 else training.seed

    exited, *others = train_side_by_side(materials, trainings(3), work, jobs=2)
    assert isinstance(exited.error, CellError)
    assert str(exited.error).startswith("a plugin tried to end the process (SystemExit: 0)")
    assert [each.result for each in others] == [1, 2]


def test_a_training_that_failed_lets_go_of_its_network_while_others_go_on(materials: Materials) -> None:
    held: list[weakref.ref[torch.nn.Module]] = []

    def fails() -> None:
        network = torch.nn.Linear(2, 2)
        held.append(weakref.ref(network))
        try:
            raise KeyError("first")
        except KeyError:
            raise torch.OutOfMemoryError("out of memory") from None

    def work(training: Training) -> bool:
        if training.seed == 0:
            fails()
        gc.collect()
        return held[0]() is None

    failed, later = train_side_by_side(materials, trainings(2), work, jobs=1)
    assert isinstance(failed.error, torch.OutOfMemoryError)
    assert later.get()


def test_an_error_in_one_of_two_leaves_the_other_whole(
    tmp_path: Path, command: Any, tiny: Path, one_thread: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["train", "--framework", "standard", "--rejector", "rr,ebd", "--epochs", 2, "--config", tiny]
    assert command(*options, "--out", tmp_path / "whole").code == 0
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole" / "checkpoints").iterdir()}
    loss, steps = Ebd.training_loss, itertools.count()

    def breaks(self: Ebd, *given: Any) -> Any:
        if next(steps) == 12:  # in its second epoch
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nand more")
        return loss(self, *given)

    with monkeypatch.context() as context:
        context.setattr(Ebd, "training_loss", breaks)
        answer = command(*options, "--jobs", 2, "--out", tmp_path / "one", "--pack", tmp_path / "zoo")
    assert answer.code == 1
    why = "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert f"failed: training standard+ebd: {why}" in answer.err.splitlines()
    assert answer.err.splitlines()[-1] == f"rrbench: 1 of 2 trainings failed: standard+ebd: {why}"
    assert "Traceback" not in answer.err
    assert answer.out.startswith("standard+rr on digits: epoch ")
    there = {path.name: path.read_bytes() for path in (tmp_path / "one" / "checkpoints").iterdir()}
    finished = {name for name in there if "resume" not in name}
    assert len(finished) == 2
    assert all(there[name] == whole[name] for name in finished)
    assert [entry.trained_as for entry in zoo.entries(tmp_path / "zoo")] == ["standard+rr"]
    assert command(*options, "--out", tmp_path / "one").code == 0, "the same command goes on"
    assert {path.name: path.read_bytes() for path in (tmp_path / "one" / "checkpoints").iterdir()} == whole


def test_an_interrupt_ends_the_others_where_they_report(materials: Materials) -> None:
    ended, begun = threading.Event(), threading.Event()

    def work(training: Training) -> None:
        if training.seed == 0:
            begun.wait(10)
            raise KeyboardInterrupt
        with materials.report.task("long", 1.0) as advance:
            begun.set()
            try:
                while True:
                    advance(0.0)
            except KeyboardInterrupt:
                ended.set()
                raise

    with pytest.raises(KeyboardInterrupt):
        train_side_by_side(materials, trainings(2), work, jobs=2)
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
    monkeypatch.setattr("rrbench.engines.side_by_side.free_memory", lambda device: free * 2**30)
    assert default_jobs(torch.device("cuda")) == jobs
    assert default_jobs(CPU) == 1
