"""Convolutions with norm and ReLU by `convolution_kernels`: which ones are supported, the tiles, and the launches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from rrbench.networks.fast.frozen_convolution import FrozenConvolution
from rrbench.networks.fast.kernels import convolution_kernels
from rrbench.networks.fast.kernels.convolution_kernels import DEPTH
from rrbench.networks.fast.kernels.hopper import blocks_of, lines_of, units_of
from rrbench.networks.fast.links import Side
from rrbench.networks.fast.norm_relu import Norm, Seen

ROWS, FEWER = 128, 64  # positions in a tile: fewer where every second unit would have no tile
WIDEST = 128  # channels in a tile
STAGES = 3  # tiles in flight; two programs then share a unit: one multiplies while the other finishes
WARPS = 4


def fits(convolution: FrozenConvolution, side: Side | None, shape: torch.Size) -> bool:
    """Tell whether these kernels support a 3x3 convolution of maps of this shape, and a 1x1 shortcut beside it."""
    count, _, *size = shape
    return (
        count > 0
        and _is_known(convolution, (3, 3, 1, 1))
        and (side is None or _is_known(side.convolution, (1, 1, 0, 0)))
        and all(length & (length - 1) == 0 and length >= convolution.stride[0] for length in size)
        and size[1] <= ROWS
    )


def _is_known(convolution: FrozenConvolution, kernel: tuple[int, ...]) -> bool:
    """Tell whether these kernels support a convolution with this size and padding."""
    outputs, inputs, *size = convolution.weight.shape
    return (
        (*size, *convolution.padding) == kernel
        and convolution.stride in {(1, 1), (2, 2)}
        and convolution.weight.dtype == torch.bfloat16
        and all(channels & (channels - 1) == 0 and channels >= DEPTH.value for channels in (outputs, inputs))
    )


def add_up(
    convolution: FrozenConvolution, maps: Tensor, sums: Tensor, *, skip: Tensor | None, side: Side | None
) -> Tensor:
    """Return convolved maps plus shortcut; add its sum and square sum to `sums`, two zeros for each channel."""
    total = _like(maps, convolution)
    _launch_forward(convolution, maps, skip, side, total=total, sums=sums)
    return total


def normalise(
    convolution: FrozenConvolution,
    maps: Tensor,
    norm: Norm,
    *,
    skip: Tensor | None,
    side: Side | None,
    keeps_total: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return convolved maps plus shortcut, relu(norm()) of that with running statistics, and 1 / the deviation.

    If the first is not kept, the second takes its place.
    """
    active, inverse = _like(maps, convolution), torch.empty_like(norm.mean)
    total = _like(maps, convolution) if keeps_total else None
    _launch_forward(convolution, maps, skip, side, total=total, active=active, norm=norm, inverse=inverse)
    return active if total is None else total, active, inverse


def _launch_forward(
    convolution: FrozenConvolution,
    maps: Tensor,
    skip: Tensor | None,
    side: Side | None,
    *,
    total: Tensor | None = None,
    active: Tensor | None = None,
    sums: Tensor | None = None,
    norm: Norm | None = None,
    inverse: Tensor | None = None,
) -> None:
    """Launch the kernel; it computes each output that it gets a tensor for."""
    made = total if active is None else active
    assert made is not None
    tiling, stride = Tiling.of(made.shape, units_of(made)), convolution.stride[0]
    convolution_kernels.forward[tiling.grid()](
        source=tiling.source(maps, stride),
        weight=tiling.weight(convolution.weight),
        side_source=None if side is None else tiling.source(side.maps, side.convolution.stride[0]),
        side_weight=None if side is None else tiling.weight(side.convolution.weight),
        total=None if total is None else tiling.target(total),
        skip=None if skip is None else tiling.target(skip),
        active=None if active is None else tiling.target(active),
        sums=sums,
        seen_inverse=inverse,
        norm_weight=None if norm is None else norm.weight,
        norm_bias=None if norm is None else norm.bias,
        running_mean=None if norm is None else norm.mean,
        running_variance=None if norm is None else norm.variance,
        eps=0.0 if norm is None else norm.eps,
        height=made.shape[2],
        inputs=maps.shape[1],
        side_inputs=0 if side is None else side.maps.shape[1],
        outputs=made.shape[1],
        stride=stride,
        stages=STAGES,
        num_warps=WARPS,
        launch_pdl=True,
    )


def backward(
    convolution: FrozenConvolution,
    gradient: Tensor,
    seen: Seen,
    norm: Norm,
    sums: Tensor | None,
    *,
    side: Side | None,
    past: Tensor | None = None,
) -> Tensor:
    """Take a gradient back through a convolution and a shortcut, then ReLU, then the norm, and add `past`.

    With `sums`, in training, it stops after ReLU: `sums` get what the norm's backward pass needs.
    """
    assert sums is None or past is None
    assert side is None or side.convolution.stride == convolution.stride
    count, inputs, height, _ = seen.maps.shape
    stride = convolution.stride[0]
    kinds = stride * stride
    tiling = Tiling.of((count, inputs, *gradient.shape[2:]), units_of(gradient), kinds)
    result = torch.empty_like(seen.maps)
    convolution_kernels.backward[tiling.grid(kinds)](
        source=tiling.source(gradient, 1),
        weight=tiling.weight(convolution.mirrored),
        side_source=None if side is None else tiling.source(side.maps, 1),
        side_weight=None if side is None else tiling.weight(side.convolution.mirrored),
        result=tiling.target(result, stride),
        maps=tiling.target(seen.maps, stride),
        past=None if past is None else tiling.target(past, stride),
        sums=sums,
        norm_weight=norm.weight,
        norm_bias=norm.bias,
        seen_mean=seen.mean,
        seen_inverse=seen.inverse,
        height=height // stride,
        inputs=gradient.shape[1],
        side_inputs=0 if side is None else side.maps.shape[1],
        outputs=inputs,
        stride=stride,
        stages=STAGES,
        num_warps=WARPS,
        launch_pdl=True,
    )
    return result


def _like(maps: Tensor, convolution: FrozenConvolution) -> Tensor:
    """Return an empty tensor for the result of a convolution."""
    count, _, lines, columns = maps.shape
    down, right = convolution.stride
    return torch.empty(
        (count, convolution.weight.shape[0], lines // down, columns // right),
        dtype=maps.dtype,
        device=maps.device,
        memory_format=torch.channels_last,
    )


@dataclass(frozen=True)
class Tiling:
    """How a result is cut into tiles."""

    count: int  # number of images
    height: int
    channels: int
    images: int  # in a tile; so are the fields below
    lines: int
    columns: int
    width: int  # channels

    @classmethod
    def of(cls, shape: Sequence[int], units: int, kinds: int = 1) -> "Tiling":
        """Cut into tiles of full lines; into halves of such tiles if each unit of the GPU gets at most one of these.

        Timed on an H200 at a batch of 128: halves save a tenth in the last stage and cost 10 to 80 % in earlier ones.
        Tiles of half the channels cost time everywhere.
        """
        full, half = (cls._of_rows(rows, *shape) for rows in (ROWS, FEWER))
        return half if half.lines and math.prod(half.grid(kinds)) <= units else full

    @classmethod
    def _of_rows(cls, rows: int, count: int, channels: int, height: int, columns: int) -> "Tiling":
        lines = min(height, rows // columns)
        return cls(count, height, channels, rows // max(lines * columns, 1), lines, columns, min(channels, WIDEST))

    def grid(self, kinds: int = 1) -> tuple[int, int, int]:
        """Return how many programs there are along each axis."""
        return -(-self.count // self.images) * (self.height // self.lines), self.channels // self.width, kinds

    def source(self, maps: Tensor, stride: int) -> TensorDescriptor:
        """Describe maps that are convolved."""
        return blocks_of(_view(maps, stride), (self.images, self.lines, 1, self.columns, DEPTH.value))

    def target(self, maps: Tensor, stride: int = 1) -> TensorDescriptor:
        """Describe maps with the layout of the result."""
        return blocks_of(_view(maps, stride), (self.images, self.lines, 1, self.columns, self.width))

    def weight(self, weight: Tensor) -> TensorDescriptor:
        """Describe weights."""
        return blocks_of(lines_of(weight), (self.width, DEPTH.value))


def _view(maps: Tensor, stride: int) -> Tensor:
    count, channels, lines, columns = maps.shape
    return maps.permute(0, 2, 3, 1).view(count, lines // stride, stride, columns // stride, stride * channels)
