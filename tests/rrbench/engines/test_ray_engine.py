"""The engine `ray`: the rows of the engine `local`, whatever dies on the way."""

import logging
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from rrbench import api, engines, zoo
from rrbench.engines import cluster as engine
from rrbench.engines.worker import Orders, Worker
from rrbench.errors import UseError
from rrbench.files import provenance
from rrbench.files.arrays import load_arrays, save_arrays
from rrbench.planning.deadline import Deadline
from rrbench.plugins.registry import table
from rrbench.progress import Silent
from rrbench.rows.row import ResultRow, read_rows

TINY = """
[metrics]
resamples = 50

[run]
all_attacks = ["pgd3", "adaptive(ce+rcon,steps=2,eta=1)", "worst-case"]

[dataset.digits.recipe]
epochs = 2
batch = 64
choose_by = "pgd1"

[dataset.digits.framework.pgd-at]
steps = 1
"""
DEADLY = '''
"""An outsider's attack that takes its worker with it."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

import ray

from rrbench.protocols import Attack, Moved

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Deadly(Attack):
    """Kills its worker once, or always, or stays on one node until that is lost."""

    norms = frozenset({"linf"})
    how: str = "once"
    turn: int = 0

    def __call__(self, victim, batch, budget, draws):
        """Add eps to every pixel, or die."""
        if self.how == "always" or (self.how == "once" and not (HERE / "killed").exists()):
            if self.how == "once":
                (HERE / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "exit":
            raise SystemExit(0)
        if self.how == "linger" and ray.is_initialized() and not (HERE / "node-lost").exists():
            if ray.get_runtime_context().get_node_id() == (HERE / "doomed").read_text():
                (HERE / "lingering").touch()
                time.sleep(60)
            end = time.monotonic() + 40
            while not (HERE / "lingering").exists() and time.monotonic() < end:
                time.sleep(0.05)
        return Moved((batch.images + budget.eps).clamp(0, 1))

    def gradients_per_image(self, classes):
        """Return 0."""
        return 0


ATTACKS = {"deadly": Deadly}
'''
ALWAYS, EXITS = "deadly(how=always)", "deadly(how=exit)"
REJECTORS = "confidence,kd"
ATTACKS = "pgd3,deadly(once),deadly(linger,turn=1),deadly(linger,turn=2),adaptive(ce+rcon,steps=2,eta=1),worst-case"


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Install an outsider's package where this process and its children find it."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "deadly_rrbench.py").write_text(DEADLY)
    info = folder / "deadly_rrbench-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: deadly-rrbench\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[rrbench.attacks]\ndeadly = deadly_rrbench:ATTACKS\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        # The workers must find what this process finds, this package included, whichever way it was found.
        patch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
        table.cache_clear()
        yield folder
    table.cache_clear()


@dataclass
class Heard:
    """A report that remembers its lines."""

    lines: list[str]

    def line(self, text: str) -> None:
        self.lines.append(text)

    task = Silent.task


def prepare(folder: Path, attacks: str = ATTACKS, **options: Any) -> api.Job:
    (folder / "tiny.toml").write_text(TINY)
    given: dict[str, Any] = {"config": folder / "tiny.toml", "out": folder / "runs", "device": "cpu", "limit": 32}
    return api.prepare(api.RunOptions(REJECTORS, attacks, **(given | options)))


@dataclass
class Survived:
    """A run in which workers died and a node was lost."""

    rows: list[ResultRow]
    lines: list[str]
    out: Path


@pytest.fixture(scope="module")
def survived(plugin: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survived]:
    """Work on a cluster of two nodes with a core each, of which one is lost while it works."""
    folder = tmp_path_factory.mktemp("cluster")
    heard, patch = Heard([]), pytest.MonkeyPatch()
    patch.setattr(engine, "ATTEMPTS", 2)  # a worker takes seconds to start
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        doomed = cluster.add_node(num_cpus=1)
        (plugin / "doomed").write_text(doomed.node_id)

        def lose_the_node() -> None:
            while not (plugin / "lingering").exists() and ray.is_initialized():
                time.sleep(0.05)
            (plugin / "node-lost").touch()
            cluster.remove_node(doomed, allow_graceful=False)

        ray.init(address=cluster.address, log_to_driver=False, logging_level=logging.ERROR)
        thread = threading.Thread(target=lose_the_node)
        thread.start()
        job = prepare(folder, f"{ALWAYS},{EXITS},{ATTACKS}", engine="ray", report=heard)
        rows = api.execute(job, ["a test"])
        yield Survived(rows, heard.lines, folder / "runs")
    finally:
        patch.undo()
        ray.shutdown()
        cluster.shutdown()


def timeless(row: ResultRow) -> dict[str, object]:
    return {name: value for name, value in asdict(row).items() if name not in ("seconds", "device")}


def test_the_rows_are_those_of_the_local_engine_though_a_worker_was_killed_and_a_node_lost(
    survived: Survived, plugin: Path, tmp_path: Path, one_thread: None
) -> None:
    here = api.execute(prepare(tmp_path), ["a test"])
    there = [row for row in survived.rows if row.attack not in (ALWAYS, EXITS)]
    assert {row.status for row in here} == {"ok"}
    assert len(here) == 2 * 7
    assert [timeless(row) for row in there] == [timeless(row) for row in here]
    assert (plugin / "killed").exists()
    assert (plugin / "node-lost").exists()
    listed = [row for row in read_rows(survived.out) if row.attack not in (ALWAYS, EXITS)]
    assert list(map(timeless, listed)) == list(map(timeless, read_rows(tmp_path / "runs")))


def test_an_attack_that_always_kills_its_worker_fails_its_own_rows_with_one_line(survived: Survived) -> None:
    failed = [row for row in survived.rows if row.status != "ok" and row.attack != EXITS]
    assert [(row.rejector, row.attack) for row in failed] == [(rejector, ALWAYS) for rejector in ("confidence", "kd")]
    assert all(row.error.startswith("its worker died 2 times: ") and "\n" not in row.error for row in failed)


def test_an_attack_that_exits_fails_its_own_rows_and_costs_no_worker(survived: Survived) -> None:
    failed = [row for row in survived.rows if row.attack == EXITS]
    assert [row.status for row in failed] == ["failed", "failed"]
    assert all(row.error.startswith("a plugin tried to end the process (SystemExit: 0)") for row in failed)


def test_what_the_workers_say_is_reported_where_the_run_was_started(survived: Survived) -> None:
    begun = [line.partition(" (")[0] for line in survived.lines if "gradients an image" in line]
    again = [line.partition(": ")[2] for line in survived.lines if line.startswith("lost a worker, trying again")]
    assert sorted(label.split()[2] for label in again if "linger" not in label) == ["deadly", ALWAYS]
    assert len([label for label in again if "linger" in label]) == 1, "the lost node costs what it was doing"
    # clean, pgd3 and five deadly ones serve both rejectors; adaptive and worst-case are run for each.
    assert len(set(begun)) == 7 + 2 * 2
    assert sorted(begun) == sorted([*set(begun), *again]), "nothing but what died is begun twice"
    trained = [line for line in survived.lines if line.startswith("training pgd-at")]
    assert len([line for line in trained if " %, about " not in line]) == 1, "a slow one says how far it is, too"


def test_nothing_of_the_run_is_left_behind(survived: Survived) -> None:
    assert not list((survived.out / "locks").glob("ray-*"))
    stored = [load_arrays(path) for path in (survived.out / "attacks").iterdir()]
    assert len(stored) == 5 + 2 * 2, "what always dies, or exits, leaves nothing"
    moved = [arrays for arrays in stored if not arrays["is_still"].all()]
    assert {len(arrays["images"]) for arrays in moved} == {16}, "images kept for the worst case are dropped after it"
    assert {"images" in arrays for arrays in stored if arrays["is_still"].all()} == {False}


def test_a_time_limit_ends_the_workers_cleanly_and_a_later_run_goes_on(
    survived: Survived, plugin: Path, tmp_path: Path, one_thread: None
) -> None:
    heard = Heard([])
    job = prepare(tmp_path, "pgd3", engine="ray", report=heard, stop_after="1h")
    job.materials.deadline = Deadline("1h", time.time() + 1)  # a worker takes longer than that to start
    assert len(api.execute(job, ["a test"])) < 4
    assert any(line.startswith("stopped after 1h: ") and line.endswith("to go on") for line in heard.lines)
    assert not any("failed" in line for line in heard.lines)
    rows = api.execute(prepare(tmp_path, "pgd3"), ["a test"])
    wanted = [timeless(row) for row in survived.rows if row.attack in ("clean", "pgd3")]
    assert [timeless(row) for row in rows] == wanted


# Wrong use is refused in one line before anything is begun.


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--engine", "rey"], "unknown engine 'rey'; one of local, ray"),
        (["--address", "auto"], "--address is for --engine ray"),
        (["--engine", "ray", "--address", "somewhere"], "neither auto nor HOST:PORT"),
        (["--engine", "ray", "--address", "ray://127.0.0.1:1"], "neither auto nor HOST:PORT"),
        (["--engine", "ray", "--device", "cuda:1"], "the engine places the work"),
        (["--engine", "ray", "--workers", "2"], "--workers is for --dry-run"),
        (["--dry-run", "--workers", "1,none"], "cannot read --workers '1,none'"),
        (["--engine", "ray", "--address", "127.0.0.1:1"], "no Ray cluster answers at 127.0.0.1:1: "),
    ],
)
def test_a_wrong_engine_or_address_is_one_line_and_quick(
    options: list[str], reason: str, command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    begin = time.monotonic()
    answer = command("run", "--rejectors", "rr", "--attacks", "clean", "--out", tmp_path, *options)
    assert (answer.code, answer.out) == (2, "")
    assert reason in answer.err.splitlines()[-1]
    assert time.monotonic() - begin < 10


def test_ray_leaves_sigterm_to_who_started_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **options: signal.signal(signal.SIGTERM, lambda *rest: sys.exit(15)))
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    try:
        with engine._connected(None):
            assert signal.getsignal(signal.SIGTERM) == before
    finally:
        signal.signal(signal.SIGTERM, before)


def test_without_ray_the_engine_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "find_spec", lambda name: None)
    with pytest.raises(UseError, match=r"^engine ray needs the package ray: pip install 'ray>=[0-9.]+'$"):
        engines.find_engine("ray", None)


def test_a_node_that_would_do_other_work_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRBENCH_ZOO", str(zoo.large_zoo()))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    job = api.prepare(api.RunOptions("rr", "clean", out=tmp_path, device="cpu"))
    orders = Orders(job.runner, tmp_path / "sign", str(zoo.large_zoo()), provenance.version())
    with pytest.raises(UseError, match="does not see the work folder"):
        Worker(orders, print).check()
    orders.sign.touch()
    Worker(orders, print).check()
    with pytest.raises(UseError, match=r"has rrbench .*, not 0\.0"):
        Worker(replace(orders, version="0.0"), print).check()
    (unit,) = job.runner.units(job.plan)
    with pytest.raises(UseError, match="another version of rrbench, of a plugin or of the zoo"):
        Worker(orders, print).work(unit, ["another"])
    assert Worker(orders, print).work(unit, job.materials.keys(unit.cells))


def test_a_worker_passes_on_that_it_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RRBENCH_ZOO", str(zoo.large_zoo()))
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    job = api.prepare(api.RunOptions("rr", "clean", out=tmp_path, device="cpu"))
    sent: list[str] = []
    monkeypatch.setattr("rrbench.engines.worker.tell_compiling", lambda device, report: report.line(f"on {device}"))
    Worker(Orders(job.runner, tmp_path / "sign", str(zoo.large_zoo()), provenance.version()), sent.append)
    assert sent == ["on cpu"]


def test_once_an_attack_is_stored_only_the_rejector_that_kills_is_given_up(tmp_path: Path, plugin: Path) -> None:
    job = prepare(tmp_path, "clean", report=Heard([]))
    job.materials.store.prepare()
    unit = next(unit for unit in job.runner.units(job.plan) if len(unit.cells) == 2 and not unit.is_training)
    first, second = unit.cells
    path = job.materials.store.attack_path(first.attack_key(job.materials.source(unit.training).key, "fp32"))
    save_arrays(path, {"vanished": np.asarray(0.0)})
    left = job.runner.give_up(unit, "it died")
    assert left is not None
    assert left.cells == (second,)
    assert [(row.rejector, row.error) for row in job.materials.store.rebuild_rows(Silent()).values()] == [
        ("confidence", "it died")
    ]
    path.unlink()
    assert job.runner.give_up(left, "it died again") is None
    assert len(job.materials.store.rebuild_rows(Silent())) == 2
