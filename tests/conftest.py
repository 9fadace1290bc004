"""Shared by many tests: a tiny image problem, a network that solves it, commands, the code blocks of a document."""

import gc
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest
import typer

from rrbench import cli

if TYPE_CHECKING:  # torch takes seconds to import: the process that only hands out the tests does without it
    from torch import nn

    from rrbench.protocols import Batch, Rejector

# What tests share is no test file: without this a failing assertion there would not show what it compared.
pytest.register_assert_rewrite("made_up_cifar", "own_network", "small_network")

# An outsider's package, which `make test` puts beside the environment: for the tests, and for processes they start.
PLUGIN = str(Path(sys.prefix) / "plugin")
sys.path.append(PLUGIN)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), PLUGIN)))

# Where no bytecode is kept, each worker would compile all tests and rrbench afresh, and so would every process that
# the tests start, some of them torch too: seconds each. Then it is kept beside the environment, for all of them and for
# later sessions.
if sys.dont_write_bytecode:
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(Path(sys.prefix) / "bytecode")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = sys.pycache_prefix

# What takes longest comes first, so that no process still works on it when the others have ended.
LONGEST = (
    "test_kernels", "test_ray_engine", "test_docs", "test_cw", "test_faults", "test_results", "test_autoattack",
    "test_autoattack_package",
    "test_scaffold", "test_verify", "test_drawn", "test_cycles", "test_fuzz_results", "test_fuzz_words",
    "test_fuzz_networks", "test_wrong_plugins",
    "test_default_run", "test_every_attack", "test_report", "test_figure4", "test_transfer", "test_packing",
    "test_every_rejector", "test_explained_columns", "test_findings", "test_evaluate", "test_probes", "test_bench",
    "test_runner_rows", "test_zoo_choice", "test_wheel", "test_train",
)  # fmt: skip


def pytest_configure(config: pytest.Config) -> None:
    """Keep to this order: xdist would begin with the files of most tests, which are short ones."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first, and leave the others as they are."""
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(LONGEST)))


def pytest_collection_finish() -> None:
    """Keep what was imported and collected out of the garbage collector's rounds: it stays to the end."""
    gc.freeze()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("needs a GPU")


@pytest.fixture(scope="session", autouse=True)
def quick_disk() -> Iterator[None]:
    """Do not wait for the disk after each file: that helps only when the power fails, and takes milliseconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_commands() -> Iterator[None]:
    """Build the tree of commands once: typer would build it for every command, of which a process has only one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.main, "get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session", autouse=True)
def quick_probes() -> Iterator[int]:
    """Look for chance in a network by a few passes; give how many a run takes, for the tests of the probes."""
    from rrbench.measuring import probes

    with pytest.MonkeyPatch.context() as patch:
        passes = probes.PASSES
        patch.setattr(probes, "PASSES", 6)
        yield passes


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Keep PyTorch to one thread: on tiny tensors threads mostly wait for each other, beside other jobs for long."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def patterns() -> "Batch":
    """A hundred images: four patterns, one a class, under noise that leaves some of them hard."""
    from rrbench.testing import problem

    return problem.patterns()


@pytest.fixture(scope="session")
def build_network() -> "Callable[[Rejector], nn.Module]":
    """Build networks in eval mode that classify the patterns, alike but for the head that the rejector asks for."""
    from rrbench.testing import problem

    return problem.build_network


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder: `rrbench.evaluate` writes into `runs`, and uses again what is there."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Answer(NamedTuple):
    """What a command said."""

    code: int
    out: str
    err: str


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    """Run a command as the shell would, but in this process: torch is imported already."""

    def call(*arguments: object) -> Answer:
        monkeypatch.setattr(sys, "argv", ["rrbench", *map(str, arguments)])
        monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
        capsys.readouterr()
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        code = stopped.value.code
        return Answer(code if isinstance(code, int) else 0, *capsys.readouterr())

    return call


@pytest.fixture(scope="session")
def fenced() -> Callable[[Path], list[tuple[str, str]]]:
    """Return (language, text) of every fenced block of a document."""
    return lambda path: re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
