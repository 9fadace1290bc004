"""What many tests share: a tiny image problem and a network that solves it, commands, the blocks of a document."""

import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from rrbench import cli
from rrbench.draws import HashedDraws
from rrbench.networks.small_cnn import SmallCnn
from rrbench.protocols import Batch, DataInfo, Rejector
from rrbench_baselines.confidence import Confidence

# What tests share is no test file: without this a failing assertion there would not show what it compared.
pytest.register_assert_rewrite("made_up_cifar", "own_network", "small_network")

# An outsider's package, which `make test` puts beside the environment: for the tests, and for processes they start.
PLUGIN = str(Path(sys.prefix) / "plugin")
sys.path.append(PLUGIN)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), PLUGIN)))

INFO = DataInfo(classes=4, shape=(1, 8, 8), mean=(0.5,), std=(0.25,))
NETWORK = SmallCnn(width=4)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out what needs a GPU where there is none."""
    if item.get_closest_marker("gpu") is not None and not torch.cuda.is_available():
        pytest.skip("needs a GPU")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Keep PyTorch to one thread: on tiny tensors threads mostly wait for each other, beside other jobs for long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def patterns() -> Batch:
    """A hundred images: four patterns, one a class, under noise that leaves some of them hard."""
    ids = torch.arange(100)
    labels = ids % 4
    pattern = HashedDraws(11).uniform(labels, INFO.shape, 0) - 0.5
    images = 0.5 + 0.5 * pattern + 0.25 * HashedDraws(12).normal(ids, INFO.shape, 0)
    return Batch(images.clamp(0, 1), labels, ids + 1000)


@pytest.fixture(scope="session")
def build_network(patterns: Batch) -> Callable[[Rejector], nn.Module]:
    """Build networks in eval mode that classify the patterns, alike but for the head that the rejector asks for."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        trained = NETWORK.build(INFO, Confidence())
    for _ in range(25):
        # Not torch.optim, whose import alone takes longer than all this.
        parameters = list(trained.parameters())
        loss = F.cross_entropy(trained(patterns.images).logits, patterns.labels)
        with torch.no_grad():
            for parameter, slope in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.sub_(0.5 * slope)
    weights = trained.state_dict()

    def build(rejector: Rejector) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(1)
            network = NETWORK.build(INFO, rejector)
        network.load_state_dict(weights, strict=False)
        return network.eval()

    return build


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
