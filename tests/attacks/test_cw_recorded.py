"""CW whose steps are recorded finds what CW with plain steps finds."""

import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from cw_runs import BOTH, SHORT, digits, distances, fast_on_small_networks, flags, run
from recordings import Rehearsed
from rrbench.compute.devices import make_twin, place
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.recorder import SIZES
from rrbench.compute.repeated import Repeated
from rrbench.datasets.cifar import Cifar10
from rrbench.networks.preact_resnet import PreActResNet18
from rrbench.protocols import Batch, Norm
from rrbench_attacks import cw
from rrbench_attacks.cw import CarliniWagner, CwL2, CwLinf
from rrbench_baselines.rr import RR


@pytest.fixture(autouse=True, scope="module")
def _fast() -> Iterator[None]:
    with fast_on_small_networks():
        yield


@pytest.mark.parametrize("attack", [*BOTH, CwL2("adaptive"), CwLinf("adaptive", start="phase1"), CwL2(stop="batch")])
def test_recorded_steps_find_what_plain_ones_find(attack: CarliniWagner, monkeypatch: pytest.MonkeyPatch) -> None:
    network, batch = digits(90)
    attack = replace(attack, **SHORT)
    first, second = (Instrumented(network, "fp32", watch=True) for _ in range(2))
    plain = run(attack, first, batch, median=0.6)
    record, seen = Rehearsed(), list[int]()
    monkeypatch.setattr(cw, "Repeated", partial(Repeated, record=record))
    with network.register_forward_hook(lambda module, given, outputs: seen.append(len(given[0]))):
        recorded = run(attack, second, batch, median=0.6)
    assert torch.equal(flags(recorded), flags(plain))
    assert recorded.boldest is not None
    assert plain.boldest is not None
    for found, expected in ((recorded.images, plain.images), (recorded.boldest, plain.boldest)):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)
    assert set(seen) <= {90, *SIZES}
    assert record.replays > 0.8 * len(seen)
    assert (len(set(seen)) > 2) == (attack.stop == "image")
    # What only fills a batch counts for nothing. Rounding may let an image stall a little earlier or later.
    assert second.gradients == pytest.approx(first.gradients, rel=0.02)
    assert second.gradients <= 90 * attack.gradients_per_image(10)
    assert sum(seen) > second.gradients or attack.stop == "batch"


@pytest.mark.gpu
@pytest.mark.parametrize("goal", ["normal", "adaptive"])
@pytest.mark.parametrize("kind", [CwL2, CwLinf])
def test_on_a_gpu_recorded_steps_find_what_plain_ones_find(kind: type[CarliniWagner], goal: Any) -> None:
    torch.manual_seed(0)
    network = place(PreActResNet18().build(Cifar10.info, RR()), torch.device("cuda")).eval().requires_grad_(False)
    images = torch.rand(90, 3, 32, 32, generator=torch.Generator().manual_seed(1)).cuda()
    with torch.no_grad():
        outputs = network(images)
    batch = Batch(images, outputs.logits.argmax(1), torch.arange(90, device="cuda"))
    found = []
    for replays in (False, True):
        twin = make_twin(network, "bf16", torch.device("cuda"), replays=True)
        assert twin is not None
        seen = Instrumented(twin, "bf16", exact=network, watch=True)
        assert seen.replays
        seen.replays = replays
        median = float(RR().certainty(outputs).median())
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found.append(run(kind(goal, **{**SHORT, "steps": 100}), seen, batch, RR(), median))
        assert not seen.has_seen_nan()
    plain, recorded = found
    assert (flags(recorded) == flags(plain)).float().mean() > 0.97
    both = flags(plain) & flags(recorded)
    assert both.sum() > 60
    norm: Norm = "l2" if kind is CwL2 else "linf"
    one, other = (float(distances(moved.images, batch, norm)[both].mean()) for moved in (plain, recorded))
    assert other == pytest.approx(one, rel=0.02)
