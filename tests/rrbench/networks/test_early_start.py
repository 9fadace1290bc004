"""A kernel that starts early reads nothing before it is written; needs a Hopper GPU."""

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


def slopes(network: Composed, images: Tensor) -> Tensor:
    images = images.detach().requires_grad_()
    with torch.autocast("cuda", torch.bfloat16):
        value = network(images).logits.square().sum()
    return torch.autograd.grad(value, images)[0]


# In training the sums of a norm are added up in any order, so that bf16 rounds otherwise from run to run.
@pytest.mark.parametrize(("training", "tolerance"), [(False, 0.0), (True, 0.1)], ids=["eval", "train"])
@pytest.mark.parametrize("count", [128, 16])
def test_replayed_slopes_are_those_of_kernels_that_start_late(
    count: int, training: bool, tolerance: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.runtime.jit import JITFunction

    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = place(PreActResNet18().build(Cifar10.info, Confidence()), torch.device("cuda")).train(training)
        batches = torch.rand(2, count, 3, 32, 32).cuda()
    twin = cast(Composed, make_twin(network, "bf16", torch.device("cuda")))
    run = JITFunction.run

    def run_late(kernel: Any, *given: Any, **more: Any) -> Any:
        assert more["launch_pdl"]
        return run(kernel, *given, **more | {"launch_pdl": False})

    with monkeypatch.context() as patch:
        patch.setattr(JITFunction, "run", run_late)
        expected = [slopes(twin, batch) for batch in batches]
    given, graph = batches[0].clone(), torch.cuda.CUDAGraph()
    slopes(twin, given)
    with torch.cuda.graph(graph):
        found = slopes(twin, given)
    worst = torch.zeros((), device="cuda")
    for turn in range(REPLAYS):
        given.copy_(batches[turn % 2])  # what the replay before left in memory is wrong now
        graph.replay()
        off = (found - expected[turn % 2]).flatten(1).norm(dim=1) / expected[turn % 2].flatten(1).norm(dim=1)
        worst = torch.maximum(worst, off.max())
    assert float((expected[0] - expected[1]).norm() / expected[0].norm()) > 0.5
    assert float(worst) <= tolerance
