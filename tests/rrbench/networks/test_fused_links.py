"""Links in one kernel give the results of separate steps in float32 on the same numbers; needs a Hopper GPU."""

from typing import cast

import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.devices import make_twin, place, tf32
from rrbench.datasets.cifar import Cifar10
from rrbench.networks.composed import Composed
from rrbench.networks.fast import norm_relu
from rrbench.networks.fast.frozen_convolution import FrozenConvolution
from rrbench.networks.fast.links import Links, Side
from rrbench.networks.fast.norm_relu import Norm, Sums
from rrbench.networks.fast.residual import FastResidual, links_for
from rrbench.networks.preact_resnet import PreActResNet18
from rrbench_baselines.rr import RR

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        torch.cuda.is_available() and torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
    ),
]
# Inputs, outputs, height, width, stride, and how many images: of the first, five tiles and more for a program. Some
# are enough for whole tiles, the others are cut into halves.
SHAPES = [
    (64, 64, 32, 32, 1, 200),
    (64, 64, 32, 32, 1, 13),
    (64, 64, 16, 16, 1, 100),
    (64, 64, 16, 16, 1, 5),
    (64, 128, 32, 32, 2, 100),
    (128, 128, 16, 16, 1, 13),
    (128, 256, 16, 16, 2, 13),
    (256, 256, 8, 8, 1, 100),
    (256, 256, 8, 8, 1, 200),
    (512, 512, 4, 4, 1, 13),
    (512, 512, 4, 4, 1, 1),
    (512, 512, 4, 4, 1, 300),
    (128, 256, 16, 16, 2, 100),
    (256, 512, 2, 2, 2, 200),
    (256, 512, 8, 8, 2, 200),
    (512, 512, 1, 1, 1, 300),
    (128, 128, 4, 64, 1, 3),
]


@pytest.fixture
def draw() -> torch.Generator:
    return torch.Generator("cuda").manual_seed(0)


def maps_of(draw: torch.Generator, *shape: int) -> Tensor:
    drawn = torch.randn(shape, generator=draw, device="cuda")
    return drawn.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)


def norm_of(draw: torch.Generator, channels: int) -> Norm:
    weight, bias, mean, variance = torch.rand(4, channels, generator=draw, device="cuda") + 0.5
    return Norm(weight, bias - 0.8, mean - 1, variance, eps=1e-5, momentum=0.1)


def convolution_of(draw: torch.Generator, inputs: int, outputs: int, size: int, stride: int) -> nn.Conv2d:
    made = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False, device="cuda")
    scale = (2 / inputs) ** 0.5 / size
    weight = scale * torch.randn(made.weight.shape, generator=draw, device="cuda")
    made.weight.data = weight.to(torch.bfloat16).float()
    return made


def both_ways(
    norm: Norm, channels: int, *, training: bool
) -> list[tuple[Links, torch.dtype, Norm, list[Tensor | None]]]:
    ways, fused = [], links_for(torch.device("cuda"), torch.bfloat16)
    assert type(fused) is not Links
    for links, dtype in ((fused, torch.bfloat16), (Links(norm_relu), torch.float32)):
        own = norm._replace(mean=norm.mean.clone(), variance=norm.variance.clone())
        sums = Sums(2 * channels, norm.mean.device)
        ways.append((links, dtype, own, [sums.take(channels) if training else None for _ in range(2)]))
    return ways


def assert_alike(found: Tensor, expected: Tensor, share: float = 0.01) -> None:
    """Alike to what bf16 keeps of the largest number."""
    torch.testing.assert_close(found.float(), expected.float(), rtol=0, atol=share * float(expected.abs().max()))


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("more", ["alone", "skip", "side"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_forward(draw: torch.Generator, shape: tuple[int, ...], more: str, training: bool) -> None:
    inputs, outputs, height, width, stride, count = shape
    source, shortcut = convolution_of(draw, inputs, outputs, 3, stride), convolution_of(draw, 64, outputs, 1, 2)
    maps, norm = maps_of(draw, count, inputs, height, width), norm_of(draw, outputs)
    skip = maps_of(draw, count, outputs, height // stride, width // stride)
    sided = maps_of(draw, count, 64, 2 * height // stride, 2 * width // stride)
    found = []
    with tf32(False):
        for links, dtype, own, sums in both_ways(norm, outputs, training=training):
            side = Side(FrozenConvolution(shortcut, dtype), sided.to(dtype)) if more == "side" else None
            given = skip.to(dtype) if more == "skip" else None
            total, active, seen = links.forward(
                FrozenConvolution(source, dtype), maps.to(dtype), own, sums[0], skip=given, side=side
            )
            found.append((total, active, *seen, own.mean, own.variance))
    for ours, plain in zip(*found, strict=True):
        assert_alike(ours, plain)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("more", ["alone", "past", "side"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_backward(draw: torch.Generator, shape: tuple[int, ...], more: str, training: bool) -> None:
    inputs, outputs, height, width, stride, count = shape
    source, shortcut = (
        convolution_of(draw, inputs, outputs, 3, stride),
        convolution_of(draw, inputs, outputs, 1, stride),
    )
    norm = norm_of(draw, inputs)
    maps, past = (maps_of(draw, count, inputs, height, width) for _ in range(2))
    gradient, sided = (maps_of(draw, count, outputs, height // stride, width // stride) for _ in range(2))
    found = []
    with tf32(False):
        for links, dtype, own, (forth, back) in both_ways(norm, inputs, training=training):
            seen = norm_relu.forward(maps.to(dtype), None, own, forth).seen
            side = Side(FrozenConvolution(shortcut, dtype), sided.to(dtype)) if more == "side" else None
            result = links.backward(
                FrozenConvolution(source, dtype),
                gradient.to(dtype),
                seen,
                own,
                back,
                side=side,
                past=past.to(dtype) if more == "past" else None,
            )
            found.append((result, *([] if back is None else back.view(2, -1))))
    for ours, plain in zip(*found, strict=True):
        assert_alike(ours, plain)


@pytest.mark.parametrize("size", [32, 9])
@pytest.mark.parametrize("colours", [3, 1])
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_enter_and_leave(draw: torch.Generator, training: bool, colours: int, size: int) -> None:
    source, norm = convolution_of(draw, colours, 64, 3, 1), norm_of(draw, 64)
    images = torch.rand(7, colours, size, size, generator=draw, device="cuda").to(torch.bfloat16).float()
    gradient = maps_of(draw, 7, 64, size, size)
    found = []
    with tf32(False):
        for links, dtype, own, sums in both_ways(norm, 64, training=training):
            stem = FrozenConvolution(source, dtype)
            total, active, seen = links.enter(stem, images, own, sums[0])
            found.append((total, active, *seen, own.mean, own.variance, links.leave(stem, gradient.to(dtype))))
    for ours, plain in zip(*found, strict=True):
        assert_alike(ours, plain)


def test_what_the_kernels_do_not_know_goes_another_way(draw: torch.Generator) -> None:
    source, norm = convolution_of(draw, 48, 96, 3, 1), norm_of(draw, 96)
    maps = maps_of(draw, 5, 48, 7, 7)
    found = []
    with tf32(False):
        for links, dtype, own, _ in both_ways(norm, 96, training=False):
            found.append(links.forward(FrozenConvolution(source, dtype), maps.to(dtype), own, None).active)
    ours, plain = found
    assert_alike(ours, plain)


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
def test_a_whole_resnet_is_as_near_to_float32_as_with_cudnns_kernels(training: bool) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = place(PreActResNet18().build(Cifar10.info, RR()), torch.device("cuda")).train(training)
        images = torch.rand(50, 3, 32, 32).cuda()
    from rrbench.networks.fast.kernels import norm_relu_kernels

    twin = cast(Composed, make_twin(network, "bf16", torch.device("cuda")))
    fast = cast(FastResidual, twin.backbone)
    gradients = []
    for asked, links in ((network, None), (twin, fast.links), (twin, Links(norm_relu_kernels))):
        if links is not None:
            fast.links = links
        given = images.clone().requires_grad_()
        with tf32(False):
            outputs = asked(given)
        (gradient,) = torch.autograd.grad(outputs.logits.square().sum(), given)
        gradients.append(gradient.double().flatten(1))
    exact, fused, apart = gradients
    off = [float((found - exact).norm() / exact.norm()) for found in (fused, apart)]
    assert off[0] < 1.1 * off[1] < 0.5, off
