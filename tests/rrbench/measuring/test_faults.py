"""A run that is killed, doubled or starved of disk: no result is lost, and no traceback."""

import dataclasses
import errno
import json
import multiprocessing
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from rrbench import api
from rrbench.errors import UseError
from rrbench.files.checkpoints import read_checkpoint
from rrbench.files.disk import HERE
from rrbench.frameworks.standard import Standard
from rrbench.measuring import attacking
from rrbench.measuring.evaluation import run_attack
from rrbench.plugins.registry import table
from rrbench.progress import Silent
from rrbench.protocols import Batch, Draws, Victim
from rrbench.rows.row import ResultRow, read_rows
from rrbench.verifying.verify import verify_folder
from spoken import lines
from undisturbed import cells, timeless

PATIENCE = 200  # seconds; a busy machine is slow
SLOW_IMPORT = "torch._dynamo"  # of the optimiser


@pytest.fixture(scope="module")
def start() -> Callable[..., ForkServerProcess]:
    """Start `rrbench.run` in a process of its own; all come from one server that has imported torch once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rrbench.api", "rrbench_attacks", "rrbench_baselines", SLOW_IMPORT])
    with pytest.MonkeyPatch.context() as monkeypatch:
        # As many threads as here: sums in another order are other numbers.
        monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
        forkserver.ensure_running()  # it imports while the first test goes on

    def begin(bench: Any, rejectors: str, attacks: str, **options: object) -> ForkServerProcess:
        given = {"config": bench.config, "out": bench.out, "device": "cpu", "limit": 60, "retrain": True}
        process = context.Process(target=api.run, args=(rejectors, attacks), kwargs=given | options)
        process.start()
        return process

    return begin


def kill_when(process: ForkServerProcess, is_time: Callable[[], bool]) -> None:
    """Send SIGKILL at the right moment."""
    deadline = time.monotonic() + PATIENCE
    while not is_time():
        assert process.is_alive(), "the run ended before it could be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join(PATIENCE)
    assert process.exitcode == -signal.SIGKILL


def beside(bench: Any, tmp_path: Path) -> Any:
    """Return a second work folder with the same checkpoints."""
    shutil.copytree(bench.out / "checkpoints", tmp_path / "undisturbed" / "checkpoints")
    return dataclasses.replace(bench, out=tmp_path / "undisturbed")


def test_a_killed_run_redoes_only_the_cell_it_was_in_and_ends_with_the_same_rows(
    bench: Any, tmp_path: Path, start: Callable[..., ForkServerProcess]
) -> None:
    work = ("confidence,t-con", "pgd20,pgd21,pgd22,pgd23")
    undisturbed = beside(bench, tmp_path)
    expected = undisturbed.measure(*work)
    kill_when(start(bench, *work), lambda: len(list((bench.out / "cells").glob("*.json"))) >= 4)
    before = cells(bench.out)
    assert 4 <= len(before) < 10
    done = {json.loads(content)["row"]["attack"] for _, content in before.values()}

    rows = bench.measure(*work)
    after = cells(bench.out)
    assert timeless(rows) == timeless(expected)
    assert timeless(read_rows(bench.out)) == timeless(read_rows(undisturbed.out))
    assert {path: after[path] for path in before} == before, "a finished cell was measured again"
    again = {task.split()[2] for task in bench.attacked()}
    assert again.isdisjoint(done)
    assert len(again) >= 5 - len(done) - 1
    for path in (bench.out / "scores").glob("*.npz"):
        assert path.read_bytes() == (undisturbed.out / "scores" / path.name).read_bytes()
    assert verify_folder(bench.out, (), torch.device("cpu"), rerun=False, report=Silent()).problems == []


def test_a_killed_training_goes_on_and_ends_with_the_same_weights(
    empty: Any, tmp_path: Path, start: Callable[..., ForkServerProcess]
) -> None:
    recipe = {"epochs": 6, "batch": 539}
    (training,) = empty.prepare("rr", "clean", recipe=recipe).plan.checkpoints()
    undisturbed = dataclasses.replace(empty, out=tmp_path / "undisturbed")
    expected = undisturbed.measure("rr", "clean", recipe=recipe)
    resume = empty.out / "checkpoints" / f"{training.key}.resume.safetensors"
    kill_when(start(empty, "rr", "clean", recipe=recipe), lambda: resume.is_file() and finished(resume) >= 2)
    epoch = finished(resume)
    assert 2 <= epoch < 6
    assert not list((empty.out / "cells").glob("*.json"))

    rows = empty.measure("rr", "clean", recipe=recipe)
    assert [dataclasses.replace(row, checkpoint_sha256="") for row in timeless(rows)] == [
        dataclasses.replace(row, checkpoint_sha256="") for row in timeless(expected)
    ]
    assert f"resuming pgd-at+rr after epoch {epoch}" in empty.report.lines
    for kind in ("", ".last"):
        mine, other = (
            read_checkpoint(bench.out / "checkpoints" / f"{training.key}{kind}.safetensors")
            for bench in (empty, undisturbed)
        )
        assert all(torch.equal(mine.tensors[name], other.tensors[name]) for name in other.tensors)


def finished(resume: Path) -> int:
    return int(read_checkpoint(resume).facts["epoch"])


def test_a_run_sweeps_what_killed_writers_left(bench: Any) -> None:
    left = bench.out / "cells" / f".a.json.x.{HERE}.writing"
    left.mkdir(parents=True)
    (left / "held").touch()
    (left / "new").write_bytes(b"half")
    bench.measure("confidence", "clean")
    assert not left.exists()


def last_lines(answer: Any, count: int) -> list[str]:
    return lines(answer.err)[-count:]


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Python ignores SIGINT where a shell started it in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("is_swallowed", [False, True])
@pytest.mark.parametrize("word", ["interrupted", "terminated"])
def test_a_signal_ends_a_run_with_what_is_kept(
    command: Any, bench: Any, monkeypatch: pytest.MonkeyPatch, word: str, is_swallowed: bool
) -> None:
    left = 2
    number, code = {"interrupted": (signal.SIGINT, 130), "terminated": (signal.SIGTERM, 143)}[word]

    def dying(*arguments: Any) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            try:
                os.kill(os.getpid(), number)
                time.sleep(10)
            except KeyboardInterrupt:
                if is_swallowed:  # as C code does, which makes an error of its own of it
                    raise ValueError("could not determine the shape") from None
                raise
        return run_attack(*arguments)

    monkeypatch.setattr(attacking, "run_attack", dying)
    before = signal.getsignal(signal.SIGTERM)
    words = ["run", *bench.arguments(), "--rejectors", "confidence,t-con", "--attacks", "pgd1,pgd2"]
    answer = command(*words)
    assert answer.code == code
    assert answer.out == ""
    assert last_lines(answer, 2) == [
        f"kept in {bench.out}: 2 of 6 cells",
        f"rrbench: {word}; run the same command again to go on",
    ]
    assert len(read_rows(bench.out)) == 2
    assert not list(bench.out.rglob("*.writing"))
    assert signal.getsignal(signal.SIGTERM) == before
    assert command(*words).code == 0
    assert len(read_rows(bench.out)) == 6


@dataclasses.dataclass(frozen=True)
class Dying(Standard):
    """Standard training that is terminated at a chosen step, whichever thread makes it."""

    fuse: ClassVar[int] = -1

    def __call__(self, victim: Victim, batch: Batch, draws: Draws) -> torch.Tensor:
        type(self).fuse -= 1
        if self.fuse == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return super().__call__(victim, batch, draws)


@pytest.mark.parametrize("jobs", [1, 2])
def test_sigterm_ends_trainings_with_what_is_kept(
    command: Any, empty: Any, monkeypatch: pytest.MonkeyPatch, jobs: int
) -> None:
    monkeypatch.setitem(table("framework").classes, "dying", Dying)
    monkeypatch.setattr(Dying, "fuse", 23)  # nine steps an epoch
    arguments = ["train", "--config", empty.config, "--out", empty.out, "--device", "cpu", "--epochs", 9]
    answer = command(*arguments, "--framework", "dying", "--rejector", "rr,ebd", "--jobs", jobs)
    assert answer.code == 143
    kept, last = last_lines(answer, 2)
    assert last == "rrbench: terminated; run the same command again to go on"
    found = re.fullmatch(rf"kept in {empty.out}: 0 of 2 checkpoints(, dying\+(rr|ebd) up to epoch [1-8] of 9)+", kept)
    assert found
    assert 1 <= kept.count("epoch") <= jobs
    assert not list(empty.out.rglob("*.writing"))


def test_two_runs_on_one_folder_both_finish_and_no_row_is_lost_or_doubled(
    empty: Any, start: Callable[..., ForkServerProcess]
) -> None:
    processes = [start(empty, f"confidence,{other}", "pgd20,pgd21") for other in ("kd", "ebd")]
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0, 0]
    rows = read_rows(empty.out)
    assert [(row.rejector, row.attack, row.status) for row in rows] == [
        (rejector, attack, "ok") for rejector in ("confidence", "kd", "ebd") for attack in ("clean", "pgd20", "pgd21")
    ]
    assert len({row.checkpoint_sha256 for row in rows}) == 2
    runs = json.loads((empty.out / "manifest.json").read_text())["runs"]
    assert [(run["cells"], run["failed"]) for run in runs] == [(6, 0), (6, 0)]
    assert verify_folder(empty.out, (), torch.device("cpu"), rerun=False, report=Silent()).problems == []
    assert len(list((empty.out / "checkpoints").iterdir())) == 4


def test_a_full_disk_is_one_line_and_no_result_is_lost(
    bench: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = ("confidence,kd", "pgd2")
    undisturbed = beside(bench, tmp_path)
    expected = undisturbed.measure(*work)
    for room in range(60):
        before = cells(bench.out)
        with disk_with_room_for(room, monkeypatch):
            rows, complaint = attempt(bench, *work)
        if not complaint:
            break
        assert complaint.startswith("cannot write ")
        assert complaint.endswith(": No space left on device")
        after = cells(bench.out)
        assert {path: after[path] for path in before} == before
        assert not list(bench.out.rglob(".*")), "half a file was left behind"
    assert room > 5
    assert timeless(rows) == timeless(expected)
    assert timeless(read_rows(bench.out)) == timeless(read_rows(undisturbed.out))


def attempt(bench: Any, *work: str) -> tuple[list[ResultRow], str]:
    try:
        return bench.measure(*work), ""
    except UseError as error:
        return [], str(error)


@contextmanager
def disk_with_room_for(files: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    left = files

    def fsync(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as context:
        context.setattr(os, "fsync", fsync)
        yield


def test_a_disk_that_fills_up_in_training_leaves_the_epochs_before(empty: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    work = {"rejectors": "confidence", "attacks": "clean", "recipe": {"epochs": 3, "batch": 539}}
    (training,) = empty.prepare(**work).plan.checkpoints()
    # Room for the probes of the folder and for one or two epochs, not for the checkpoints.
    with disk_with_room_for(3, monkeypatch), pytest.raises(UseError, match="No space left"):
        empty.measure(**work)
    assert finished(empty.out / "checkpoints" / f"{training.key}.resume.safetensors") >= 1
    assert [row.status for row in empty.measure(**work)] == ["ok"]
