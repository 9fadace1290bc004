"""A kernel that starts early reads nothing before it is written; needs a Hopper GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from rrbench.compute.devices import make_twin, place
from rrbench.datasets.cifar import Cifar10
from rrbench.networks.composed import Composed
from rrbench.networks.preact_resnet import PreActResNet18
from rrbench_baselines.confidence import Confidence

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
    ),
]
REPLAYS = 300


@contextmanager
def late_starts() -> Iterator[None]:
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def run_late(kernel: Any, *given: Any, **more: Any) -> Any:
        assert more.get("launch_pdl"), f"{kernel.__name__} starts late anyway"
        return run(kernel, *given, **more | {"launch_pdl": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JITFunction, "run", run_late)
        yield


def slopes(network: Composed, images: Tensor) -> Tensor:
    images = images.detach().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        value = network(images).logits.square().sum()
    return torch.autograd.grad(value, images)[0]


def farthest(network: Composed, batches: Tensor, expected: list[Tensor]) -> float:
    """Replay the slopes of two batches in turn; return how far an image's slope was from the expected, at worst."""
    given, graph = batches[0].clone(), torch.cuda.CUDAGraph()
    slopes(network, given)
    with torch.cuda.graph(graph):
        found = slopes(network, given)
    worst = torch.zeros((), device="cuda")
    for turn in range(REPLAYS):
        given.copy_(batches[turn % 2])  # what the replay before left in memory is wrong now
        graph.replay()
        length = expected[turn % 2].flatten(1).norm(dim=1)
        worst = torch.maximum(worst, ((found - expected[turn % 2]).flatten(1).norm(dim=1) / length).max())
    return float(worst)


@pytest.mark.parametrize("count", [128, 16])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_replayed_slopes_are_those_of_kernels_that_start_late(training: bool, count: int) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = place(PreActResNet18().build(Cifar10.info, Confidence()), torch.device("cuda")).train(training)
        batches = torch.rand(2, count, 3, 32, 32).cuda()
    twin = cast(Composed, make_twin(network, "bf16", torch.device("cuda")))
    with late_starts():
        expected = [slopes(twin, batch) for batch in batches]
        # In training a norm's sums are added in any order, so that two late runs differ, too.
        noise = farthest(twin, batches, expected)
    assert float((expected[0] - expected[1]).norm() / expected[0].norm()) > 0.9
    assert training or noise == 0
    assert farthest(twin, batches, expected) <= 1.25 * noise < 0.6
