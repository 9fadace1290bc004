"""Shared by tests of whole runs: a recipe that trains in a second, and three checkpoints trained with it once."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from filelock import FileLock

from browser import Browser, started
from made_up_plugins import Brighter, BrokenTraining, Fragile, Misbehaving, Noise, RejectAll, Unfit, Watching, Wrong
from rrbench import api
from rrbench.plugins.registry import table
from rrbench.progress import Advance
from rrbench.report import write_report
from rrbench.rows.row import ResultRow
from short_trainings import Diverging, Fused, Leaving, Recorded

MakeOnce = Callable[[str, Callable[[Path], None]], Path]
TINY = """
[metrics]
resamples = 200

[dataset.digits.recipe]
epochs = 2
batch = 128
choose_by = "pgd1"

[dataset.digits.framework.pgd-at]
steps = 1
"""


@dataclass
class Recorder:
    """A report that remembers what it was told."""

    lines: list[str] = field(default_factory=list)
    tasks: list[str] = field(default_factory=list)
    totals: list[float] = field(default_factory=list)  # of the tasks
    done: list[float] = field(default_factory=list)  # of those

    def line(self, text: str) -> None:
        self.lines.append(text)

    @contextmanager
    def task(self, name: str, total: float) -> Iterator[Advance]:
        self.tasks.append(name)
        self.totals.append(total)
        self.done.append(0.0)
        index = len(self.done) - 1

        def advance(done: float) -> None:
            self.done[index] += done

        yield advance


@dataclass
class Bench:
    """A work folder whose trainings are tiny; `measure` is one run in it."""

    out: Path
    config: Path
    report: Recorder = field(default_factory=Recorder)

    def prepare(self, rejectors: str, attacks: str, **options: Any) -> api.Job:
        self.report = Recorder()
        given: dict[str, Any] = {"config": self.config, "out": self.out, "device": "cpu", "limit": 60, "retrain": True}
        return api.prepare(api.RunOptions(rejectors, attacks, report=self.report, **(given | options)))

    def measure(self, rejectors: str, attacks: str, **options: Any) -> list[ResultRow]:
        return api.execute(self.prepare(rejectors, attacks, **options), ["a test"])

    def attacked(self) -> list[str]:
        """Name the attacks that the last run had to make."""
        return [task.partition(" (")[0] for task in self.report.tasks if "gradients an image" in task]

    def trained(self) -> list[str]:
        return [task for task in self.report.tasks if task.startswith("training")]

    def arguments(self) -> list[str]:
        """Say the same on the command line."""
        options = ["--config", self.config, "--out", self.out, "--device", "cpu", "--limit", 60]
        return [*map(str, options), "--retrain"]


@pytest.fixture(scope="session", autouse=True)
def one_thread_throughout() -> Iterator[None]:
    """Keep PyTorch to one thread: on tiny tensors threads mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A configuration file whose trainings take about a second."""
    path = tmp_path_factory.mktemp("config") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="session")
def make_once(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> MakeOnce:
    """Make a folder, by the first process of this session that asks for it; not to be changed."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if hasattr(request.config, "workerinput") else base  # of all processes

    def made(name: str, make: Callable[[Path], None]) -> Path:
        folder, mark = root / name, root / f"{name}.made"
        with FileLock(root / f"{name}.lock"):
            if not mark.exists():
                shutil.rmtree(folder, ignore_errors=True)  # what a failed process has left
                folder.mkdir()
                make(folder)
                mark.touch()
        return folder

    return made


@pytest.fixture(scope="session")
def trained(tiny: Path, make_once: MakeOnce) -> Path:
    """A work folder with the checkpoints pgd-at, pgd-at+rr and pgd-at+ebd; not to be changed."""

    def train(out: Path) -> None:
        assert {row.status for row in Bench(out, tiny).measure("confidence,rr,ebd", "clean")} == {"ok"}

    return make_once("trained", train)


@pytest.fixture
def bench(trained: Path, tiny: Path, tmp_path: Path) -> Bench:
    """A work folder of one's own that holds those checkpoints and nothing else."""
    shutil.copytree(trained / "checkpoints", tmp_path / "runs" / "checkpoints")
    return Bench(tmp_path / "runs", tiny)


@pytest.fixture
def empty(tiny: Path, tmp_path: Path) -> Bench:
    """A work folder in which everything is still to be trained."""
    return Bench(tmp_path / "runs", tiny)


@pytest.fixture
def frameworks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The frameworks of the short trainings, by name, as if they were installed."""
    plugins = {"recorded": Recorded, "fused": Fused, "diverging": Diverging, "leaving": Leaving}
    for name, plugin in plugins.items():
        monkeypatch.setitem(table("framework").classes, name, plugin)
    monkeypatch.setattr(Recorded, "seen", [])
    monkeypatch.setattr(Fused, "fuse", -1)
    monkeypatch.setattr(Diverging, "steps", 0)


@pytest.fixture(scope="session")
def honest(trained: Path, tiny: Path, make_once: MakeOnce) -> Path:
    """A finished run; not to be changed."""

    def measure(out: Path) -> None:
        shutil.copytree(trained / "checkpoints", out / "checkpoints")
        attacks = "pgd3,adaptive(con+rcon,steps=2)"
        rows = api.run("confidence,kd,rr", attacks, config=tiny, out=out, device="cpu", limit=60, retrain=True)
        assert set(rows.status) == {"ok"}

    return make_once("honest", measure)


@pytest.fixture
def folder(honest: Path, tmp_path: Path) -> Path:
    """The same, of one's own."""
    return Path(shutil.copytree(honest, tmp_path / "runs"))


@pytest.fixture
def plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Install what made_up_plugins holds, with no call counted."""
    plugins: dict[str, dict[str, type]] = {
        "attack": {"brighter": Brighter, "watching": Watching, "misbehaving": Misbehaving},
        "rejector": {"noise": Noise, "reject-all": RejectAll, "wrong": Wrong, "unfit": Unfit},
        "framework": {"broken": BrokenTraining},
        "network": {"fragile": Fragile},
    }
    for kind, classes in plugins.items():
        for name, plugin in classes.items():
            monkeypatch.setitem(table(kind).classes, name, plugin)
    monkeypatch.setattr(Brighter, "calls", [])


@pytest.fixture(scope="session")
def reported(make_once: MakeOnce) -> Path:
    """A work folder with all that a report shows: clean without an auc, two budgets, an adaptive attack."""

    def measure(out: Path) -> None:
        attacks = "pgd10,adaptive(con+rcon,eta=1,steps=10)"
        job = api.prepare(
            api.RunOptions("confidence,rr", attacks, budgets="linf:1/10,linf:1/4", out=out, device="cpu", limit=24)
        )
        api.execute(job, ["rrbench", "run", "--attacks", attacks])

    return make_once("reported", measure)


@pytest.fixture(scope="session")
def report_page(reported: Path, make_once: MakeOnce) -> Path:
    """Its report."""
    return make_once("report", lambda folder: write_report(reported, folder / "report.html")) / "report.html"


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, started once for the tests of all pages."""
    yield from started(tmp_path_factory.mktemp("profile"))
