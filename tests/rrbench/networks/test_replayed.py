"""A replayed pass answers as the plain one does, whatever its batch shares with others."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from rrbench.compute import devices
from rrbench.compute.devices import make_twin, tf32
from rrbench.compute.recorder import PLAIN, SIZES, Recording, Work
from rrbench.compute.turns import TURNS
from rrbench.networks.composed import Composed
from rrbench.networks.fast.replayed import Pass, Replayed
from rrbench.networks.fast.residual import FastResidual
from rrbench.networks.preact_resnet import PreActResNet18, ResidualBackbone
from rrbench.protocols import DataInfo
from rrbench_baselines.rr import RR

INFO = DataInfo(classes=4, shape=(3, 8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.25))
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Shared:
    """Stands for a recorder where there is no GPU: work is done again, in memory that all recordings share.

    So a replay overwrites the last result of its own recording, and with NaN the trails of all other passes.
    """

    def __init__(self) -> None:
        self.made: list[Again] = []

    def __call__(self, work: Work) -> "Again":
        self.made.append(Again(work, self))
        return self.made[-1]

    def spoil_others(self, user: Pass) -> None:
        for other in {id(each.user): each.user for each in self.made if each.user is not user}.values():
            for passed in other.trail or ():
                passed.first.maps.fill_(torch.nan)
                passed.second.maps.fill_(torch.nan)


class Again:
    """What `Shared` records."""

    def __init__(self, work: Work, shared: Shared) -> None:
        self.work, self.shared, self.user = work, shared, cast(Pass, cast(MethodType, work).__self__)
        self.result = work().clone()

    def replay(self) -> Tensor:
        self.shared.spoil_others(self.user)
        return self.result.copy_(self.work())


def make_twins(device: str, record: Callable[[Work], Recording] | None = None) -> tuple[Composed, Composed]:
    """Return two twins of one network: one that goes plainly, and one that replays."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = Composed(INFO, ResidualBackbone(3, 16, (16, 32), 1), 32, RR()).to(device).eval()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    plain, replaying = network.twin(torch.float32), network.twin(torch.float32)
    assert plain is not None
    assert replaying is not None
    backbone = cast(FastResidual, replaying.backbone)
    backbone.replayed = Replayed(backbone, record or (None if device == "cuda" else Shared()))
    return plain, replaying


def passes_of(twin: Composed) -> Replayed:
    found = cast(FastResidual, twin.backbone).replayed
    assert found is not None
    return found


def images(count: int, device: str, seed: int = 1) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).to(device)


def slope(network: nn.Module, given: Tensor) -> tuple[Tensor, Tensor]:
    given = given.clone().requires_grad_()
    outputs = network(given)
    (gradient,) = torch.autograd.grad(outputs.logits[:, 0].sum() + outputs.head.square().sum(), given)
    return torch.cat([outputs.features, outputs.logits, outputs.head], 1).detach(), gradient


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with tf32(False):
        yield


@contextmanager
def no_new_recordings(twin: Composed) -> Iterator[None]:
    before = dict(passes_of(twin).passes)
    yield
    assert passes_of(twin).passes == before


@pytest.mark.parametrize("device", DEVICES)
def test_replayed_passes_answer_and_slope_as_plain_ones(device: str) -> None:
    plain, replaying = make_twins(device)
    for attempt in range(PLAIN + 4):
        count = 16 - attempt  # all in one size: what an earlier batch left behind must not be seen
        given = images(count, device, seed=attempt)
        expected, found = slope(plain, given), slope(replaying, given)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-6)
        with torch.no_grad():
            torch.testing.assert_close(replaying(given).logits, plain(given).logits, rtol=1e-5, atol=1e-6)
    assert sorted(key[1] for key in passes_of(replaying).passes) == [False, True]


def warm(twin: Composed, *counts: int) -> None:
    """Ask until these sizes are recorded."""
    device = str(next(twin.parameters()).device)
    for count in counts:
        for _ in range(PLAIN + 1):
            slope(twin, images(count, device))


@pytest.mark.parametrize("other", [16, 20, 24], ids=["same size", "another size", "another recording"])
@pytest.mark.parametrize("device", DEVICES)
def test_two_batches_may_go_forward_before_either_goes_back(device: str, other: int) -> None:
    plain, replaying = make_twins(device)
    warm(replaying, 16, 24)
    first, second = images(16, device, 2).requires_grad_(), images(other, device, 3).requires_grad_()
    values = [[twin(given).logits[:, 1].sum() for given in (first, second)] for twin in (plain, replaying)]
    expected, found = (torch.autograd.grad(pair[0] * 2 + pair[1], (first, second)) for pair in values)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_a_later_pass_does_not_overwrite_what_an_earlier_one_returned(device: str) -> None:
    plain, replaying = make_twins(device)
    warm(replaying, 16)

    def features_and_gradient(twin: Composed, seed: int) -> tuple[Tensor, Tensor]:
        given = images(16, device, seed).requires_grad_()
        features = twin.backbone(given)
        return features.detach(), torch.autograd.grad(features.square().sum(), given)[0]

    found, expected = ([features_and_gradient(twin, seed) for seed in (5, 6)] for twin in (replaying, plain))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_one_batch_may_go_back_several_times(device: str) -> None:
    plain, replaying = make_twins(device)
    warm(replaying, 16)
    given = images(9, device, 4).requires_grad_()
    ours, theirs = replaying(given).logits, plain(given).logits
    for label in range(3):
        (found,) = torch.autograd.grad(ours[:, label].sum(), given, retain_graph=True)
        (expected,) = torch.autograd.grad(theirs[:, label].sum(), given, retain_graph=True)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


def test_images_may_change_after_the_forward_pass_but_not_if_they_must_go_forward_again() -> None:
    _, replaying = make_twins("cpu")
    warm(replaying, 16)
    start = images(16, "cpu").requires_grad_()

    def gradient(*, another_goes_forward: bool) -> Tensor:
        moved = start * 1
        value = replaying.backbone(moved).sum()
        if another_goes_forward:
            slope(replaying, images(16, "cpu"))
        with torch.no_grad():
            moved.add_(1)
        return torch.autograd.grad(value, start)[0]

    (expected,) = torch.autograd.grad(replaying.backbone(start * 1).sum(), start)
    torch.testing.assert_close(gradient(another_goes_forward=False), expected)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        gradient(another_goes_forward=True)


def test_a_size_is_recorded_once_and_only_if_it_is_asked_for_again() -> None:
    shared = Shared()
    _, replaying = make_twins("cpu", shared)
    for _ in range(PLAIN):
        slope(replaying, images(10, "cpu"))
    assert shared.made == []
    for count in (16, 16, 12, 3, 1):
        slope(replaying, images(count, "cpu"))
    assert len(shared.made) == 2  # forward and backward
    assert list(passes_of(replaying).passes) == [((16, 3, 8, 8), True)]
    warm(replaying, 24)
    assert list(passes_of(replaying).passes) == [((16, 3, 8, 8), True), ((24, 3, 8, 8), True)]


def test_images_of_another_size_have_their_own_recording() -> None:
    plain, replaying = make_twins("cpu")
    warm(replaying, 16)
    for _ in range(PLAIN + 1):
        wide = torch.rand(16, 3, 8, 16, generator=torch.Generator().manual_seed(7))
        torch.testing.assert_close(slope(replaying, wide), slope(plain, wide), rtol=1e-4, atol=1e-6)
    assert len(passes_of(replaying).passes) == 2


@pytest.mark.parametrize("device", DEVICES)
def test_a_replay_follows_the_weights(device: str) -> None:
    plain, replaying = make_twins(device)
    warm(replaying, 16)
    before = slope(replaying, images(16, device))
    with torch.no_grad():
        for tensor in (*plain.classifier.parameters(), *cast(FastResidual, plain.backbone).learned):
            tensor.add_(0.05)
    for twin in (plain, replaying):
        twin.refresh()
    found = slope(replaying, images(16, device))
    torch.testing.assert_close(found, slope(plain, images(16, device)), rtol=1e-4, atol=1e-6)
    assert not torch.allclose(found[0], before[0], rtol=1e-2)


@pytest.mark.parametrize("device", DEVICES)
def test_what_an_earlier_batch_left_behind_is_not_seen_even_if_it_is_nan(device: str) -> None:
    plain, replaying = make_twins(device)
    warm(replaying, 16)
    slope(replaying, torch.full((16, 3, 8, 8), torch.nan, device=device))
    torch.testing.assert_close(
        slope(replaying, images(5, device)), slope(plain, images(5, device)), rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("device", DEVICES)
def test_recorded_in_inference_mode_it_serves_other_modes_too(device: str) -> None:
    plain, replaying = make_twins(device)
    with torch.inference_mode():
        for _ in range(PLAIN + 1):
            replaying(images(16, device))
    assert len(passes_of(replaying).passes) == 1
    with torch.no_grad():
        found, expected = (twin(images(12, device)).logits for twin in (replaying, plain))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_large_and_empty_batches_go_plainly() -> None:
    _, replaying = make_twins("cpu")
    with no_new_recordings(replaying), torch.no_grad():
        for _ in range(PLAIN + 1):
            assert replaying(images(0, "cpu")).logits.shape == (0, 4)
    found = [passes_of(replaying).find(torch.empty(SIZES[-1] + 1, 3, 8, 8), has_gradient=True) for _ in range(9)]
    assert found == [None] * 9


def test_training_goes_plainly() -> None:
    plain, replaying = make_twins("cpu")
    warm(replaying, 16)
    expected = slope(plain.train(), images(16, "cpu"))
    with no_new_recordings(replaying):
        found = slope(replaying.train(), images(16, "cpu"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


class Refusing(Shared):
    """A recorder whose device refuses large batches."""

    asked = 0

    def __call__(self, work: Work) -> Again:
        self.asked += 1
        user = cast(Pass, cast(MethodType, work).__self__)
        if len(user.images) > 16:
            self.spoil_others(user)  # it fails halfway
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate")
        return super().__call__(work)


def test_after_a_refused_recording_all_go_plainly_and_what_went_forward_before_still_comes_back() -> None:
    refusing = Refusing()
    plain, replaying = make_twins("cpu", refusing)
    warm(replaying, 16)
    assert len(passes_of(replaying).passes) == 1
    first = images(16, "cpu", 2).requires_grad_()
    ours, theirs = (twin(first).logits.square().sum() for twin in (replaying, plain))
    with pytest.warns(UserWarning, match=r"^small batches go slowly: .* \(CUDA out of memory\.\)$"):
        warm(replaying, 20)
    torch.testing.assert_close(
        torch.autograd.grad(ours, first), torch.autograd.grad(theirs, first), rtol=1e-4, atol=1e-6
    )
    assert not passes_of(replaying).passes  # their memory is free
    before = refusing.asked
    for count in (16, 20, 100):
        warm(replaying, count)
        torch.testing.assert_close(
            slope(replaying, images(count, "cpu")), slope(plain, images(count, "cpu")), rtol=1e-4, atol=1e-6
        )
    assert refusing.asked == before


@pytest.mark.parametrize("wrong", [0, 1], ids=["forward", "backward"])
def test_a_recording_that_answers_otherwise_is_refused(wrong: int) -> None:
    class Lying(Again):
        def replay(self) -> Tensor:
            return super().replay().mul_(1.02)

    class Liar(Shared):
        def __call__(self, work: Work) -> Again:
            self.made.append((Lying if len(self.made) == wrong else Again)(work, self))
            return self.made[-1]

    plain, replaying = make_twins("cpu", Liar())
    with pytest.warns(UserWarning, match="answers otherwise than the plain pass"):
        warm(replaying, 16)
    torch.testing.assert_close(slope(replaying, images(16, "cpu")), slope(plain, images(16, "cpu")))


@pytest.mark.parametrize("replays", [True, False])
def test_a_twin_replays_only_if_it_is_asked_to(monkeypatch: pytest.MonkeyPatch, replays: bool) -> None:
    network = Composed(INFO, ResidualBackbone(3, 16, (16, 32), 1), 32, RR())
    monkeypatch.setattr(devices, "find_spec", lambda name: name)  # as if Triton were there
    twin = make_twin(network, "tf32", torch.device("cuda"), replays=replays)
    assert isinstance(twin, Composed)
    assert (cast(FastResidual, twin.backbone).replayed is not None) == replays


def test_a_twin_of_a_backbone_of_ones_own_need_not_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Backbone(nn.Linear):
        def twin(self, dtype: torch.dtype) -> nn.Module:
            return nn.Linear(3, 32)

    monkeypatch.setattr(devices, "find_spec", lambda name: name)  # as if Triton were there
    network = Composed(INFO, Backbone(3, 32), 32, RR())
    assert isinstance(make_twin(network, "bf16", torch.device("cuda"), replays=True), Composed)


def test_sizes_grow_by_at_most_a_half() -> None:
    steps = [large / small for small, large in itertools.pairwise(SIZES)]
    assert min(steps) > 1
    assert max(steps) == 1.5


@pytest.mark.gpu
def test_in_bf16_a_replayed_resnet_gives_the_same_bits() -> None:
    info = DataInfo(classes=10, shape=(3, 32, 32), mean=(0.5,) * 3, std=(0.25,) * 3)
    network = PreActResNet18().build(info, RR()).cuda().eval()
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    device = torch.device("cuda")
    plain, replaying = (make_twin(network, "bf16", device, replays=replays) for replays in (False, True))
    assert plain is not None
    assert replaying is not None
    for attempt in range(PLAIN + 3):
        for count in (1, 17, 100 - attempt, 1000):
            given = torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(count)).cuda()
            expected, found = slope(plain, given), slope(replaying, given)
            assert torch.equal(found[0], expected[0])
            assert torch.equal(found[1], expected[1])
    assert len(passes_of(cast(Composed, replaying)).passes) == 4


@pytest.mark.gpu
def test_while_this_thread_has_a_turn_nothing_is_recorded() -> None:
    _, replaying = make_twins("cuda")
    with TURNS.together(), pytest.warns(UserWarning, match="has a turn already"):
        warm(replaying, 16)
    assert not passes_of(replaying).passes
