"""A time limit: how it is written, and that work stopped by it goes on to the same bits and rows."""

import math
import time
from pathlib import Path
from typing import Any

import pytest

from rrbench.api import RunOptions, prepare
from rrbench.engines import local
from rrbench.errors import StoppedError, UseError
from rrbench.measuring.store import Store
from rrbench.planning.deadline import Deadline, read_deadline
from rrbench.planning.units import Unit
from rrbench_baselines.confidence import Confidence
from spoken import Spoken


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("25m", 1500), ("1h30m", 5400), ("1.5h", 5400), ("2d", 172800), ("1m1.5s", 61.5)]
)
def test_a_limit_is_read_as_it_is_said(text: str, seconds: float) -> None:
    before = time.time()
    deadline = read_deadline(text)
    assert before + seconds <= deadline.ends <= time.time() + seconds
    assert not deadline.is_over()
    assert deadline.text == text


@pytest.mark.parametrize("text", ["", "25", "m", "25 m", "25min", "-5m", "1e3s", "0s", "0h0m", "9" * 5000 + "s", "٣m"])
def test_what_is_no_time_is_one_line(text: str) -> None:
    with pytest.raises(UseError, match="--stop-after") as caught:
        read_deadline(text)
    assert len(str(caught.value)) < 120


def test_without_a_limit_it_is_never_over() -> None:
    assert read_deadline(None) == Deadline("", math.inf)
    assert not Deadline().is_over()
    assert Deadline("1s", time.time() - 1).is_over()


class Clock:
    """The time on the wall, which passes the deadline at a chosen look."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks_left = 0
        monkeypatch.setattr(Deadline, "is_over", self.is_over)

    def is_over(self) -> bool:
        self.looks_left -= 1
        return self.looks_left < 0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_trainings_stop_at_the_next_epoch_and_go_on_to_the_same_bits(
    tmp_path: Path, command: Any, clock: Clock, tiny: Path, one_thread: None
) -> None:
    options = ["train", "--framework", "standard", "--rejector", "rr,ebd", "--epochs", 3, "--config", tiny]
    options += ["--jobs", 1, "--stop-after", "25m"]
    clock.looks_left = 1000
    assert command(*options, "--out", tmp_path / "whole").code == 0
    out = tmp_path / "stopped"
    # A look before each training, and one after each epoch but its last.
    clock.looks_left = 2
    answer = command(*options, "--out", out)
    assert answer.code == 0, answer.err
    left = "training standard+rr (epoch 2 of 3 is done), training standard+ebd"
    assert answer.err.splitlines()[-1] == f"stopped after 25m; left: {left}; run the same command again to go on"
    assert answer.out == ""
    assert [name.split(".")[1] for name in files(out / "checkpoints")] == ["resume"]
    clock.looks_left = 2
    answer = command(*options, "--out", out, "--pack", tmp_path / "zoo")
    assert answer.code == 0
    assert answer.out.startswith("standard+rr on digits: epoch ")
    assert answer.out.count("packed: ") == 1
    assert "left: training standard+ebd (epoch 1 of 3 is done);" in answer.err
    clock.looks_left = 1000
    answer = command(*options, "--out", out)
    assert answer.code == 0
    assert "stopped" not in answer.err
    assert files(out / "checkpoints") == files(tmp_path / "whole" / "checkpoints")


def rows(out: Path) -> list[str]:
    """Return the rows without what may differ between two runs: seconds."""
    lines = (out / "rows.csv").read_text().splitlines()
    position = lines[0].split(",").index("deploy_n")
    return sorted(",".join(line.split(",")[:position]) for line in lines)


def test_a_run_stops_before_the_next_cell_and_goes_on_to_the_same_rows(
    tmp_path: Path, command: Any, clock: Clock
) -> None:
    options = ["run", "--rejectors", "rr,confidence", "--attacks", "pgd2", "--limit", 20, "--stop-after", "1h30m"]
    clock.looks_left = 1000
    assert command(*options, "--out", tmp_path / "whole").code == 0
    out, counts = tmp_path / "stopped", []
    for looks in (0, 3, 1000):
        clock.looks_left = looks
        answer = command(*options, "--out", out)
        assert answer.code == 0, answer.err
        counts.append(len(rows(out)) - 1)
        assert ("run the same command again to go on" in answer.err) == (looks < 1000)
        assert "failed" not in answer.err
        assert ("rrbench report" in answer.err) == (looks == 3)  # once, and not before there is a row
    assert counts[0] == 0
    assert 0 < counts[1] < counts[2] == 4
    assert rows(out) == rows(tmp_path / "whole")


def test_a_stopped_run_names_what_is_left(tmp_path: Path, command: Any, clock: Clock) -> None:
    clock.looks_left = 1
    answer = command(
        "run",
        "--rejectors",
        "rr",
        "--attacks",
        "pgd1,pgd2,pgd3,pgd4",
        "--limit",
        20,
        "--out",
        tmp_path,
        "--stop-after",
        "1m",
    )
    assert answer.code == 0
    left = "pgd-at+rr rr pgd1 linf:3/20, pgd-at+rr rr pgd2 linf:3/20, pgd-at+rr rr pgd3 linf:3/20 and 1 more"
    line = f"stopped after 1m: 4 of 5 cells are left ({left}); run the same command again to go on"
    assert line in answer.err.splitlines()
    assert "\n1 row in" in answer.out


def test_what_an_earlier_run_left_failed_or_lost_is_left_not_failed(
    tmp_path: Path, command: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["run", "--rejectors", "rr,confidence", "--attacks", "clean", "--limit", 20, "--out", tmp_path]
    clock.looks_left = 1000
    with monkeypatch.context() as context:
        context.setattr(Confidence, "certainty", lambda *given: 1 / 0)
        assert command(*options).code == 1
    scores = list((tmp_path / "scores").iterdir())
    assert len(scores) == 1
    scores[0].unlink()
    clock.looks_left = 0
    answer = command(*options, "--stop-after", "1m")
    assert answer.code == 0, answer.err
    assert "stopped after 1m: 2 of 2 cells are left" in answer.err
    clock.looks_left = 1000
    assert command(*options).code == 0


def test_waiting_for_another_run_ends_with_the_time(tmp_path: Path, clock: Clock) -> None:
    store, report = Store(tmp_path), Spoken()
    store.prepare()
    clock.looks_left = 1
    with store.lock("train-x", report):
        other = Store(tmp_path)
        with pytest.raises(StoppedError, match="train-x"), other.lock("train-x", report, Deadline("1m", 0.0)):
            pass
    assert len(report.lines) == 1


def test_images_kept_for_an_ensemble_go_once_it_has_them_though_the_run_was_stopped_between(
    tmp_path: Path, command: Any, clock: Clock
) -> None:
    (tmp_path / "two.toml").write_text('[run]\nall_attacks = ["pgd1", "pgd2", "worst-case"]\n')
    options = ["run", "--rejectors", "rr", "--attacks", "all", "--limit", 40, "--config", tmp_path / "two.toml"]
    clock.looks_left = 3  # before clean and both members
    answer = command(*options, "--out", tmp_path / "runs", "--stop-after", "1m")
    assert "(pgd-at+rr rr worst-case linf:3/20)" in answer.err
    assert len(list((tmp_path / "runs" / "attacks").glob("*.whole.npz"))) == 2
    clock.looks_left = 1000
    assert command(*options, "--out", tmp_path / "runs").code == 0
    assert not list((tmp_path / "runs" / "attacks").glob("*.whole.npz"))


def test_a_full_disk_in_one_training_is_not_hidden_by_the_time_limit_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = prepare(RunOptions("rr,ebd", "clean", out=tmp_path, device="cpu", retrain=True))
    job.materials.store.prepare()
    monkeypatch.setattr(local, "default_jobs", lambda device: 2)

    def work(unit: Unit) -> bool:
        raise StoppedError("rr") if unit.training.training_key == "rr" else UseError("No space left on device")

    monkeypatch.setattr(job.runner, "work", work)
    with pytest.raises(UseError, match="No space left"):
        list(local.work_here(job.runner, job.runner.units(job.plan)))


def test_a_wrong_limit_is_refused_before_any_work(tmp_path: Path, command: Any) -> None:
    for name in ("run", "train"):
        answer = command(name, "--stop-after", "soon", "--out", tmp_path / "out")
        assert answer.code == 2
        assert answer.err == "rrbench: cannot read --stop-after 'soon'; write a time such as 90s, 25m or 1h30m\n"
    assert not (tmp_path / "out").exists()
