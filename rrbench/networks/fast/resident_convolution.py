"""Convolutions with norm and ReLU by `resident_kernels`: which ones are supported, and the launch."""

import torch
from torch import Tensor

from rrbench.networks.fast.frozen_convolution import FrozenConvolution
from rrbench.networks.fast.kernels import resident_kernels
from rrbench.networks.fast.kernels.hopper import blocks_of, lines_of, units_of
from rrbench.networks.fast.kernels.resident_kernels import APART, CHANNELS, COLUMNS, LINES
from rrbench.networks.fast.links import Side
from rrbench.networks.fast.norm_relu import Norm, Seen

WARPS = 4  # for each warp group


def fits(convolution: FrozenConvolution, side: Side | None, shape: torch.Size) -> bool:
    """Tell whether these kernels support a convolution of maps of this shape; they support no shortcut."""
    count, channels, height, width = shape
    return (
        count > 0
        and side is None
        and tuple(convolution.weight.shape) == (CHANNELS.value, CHANNELS.value, 3, 3)
        and convolution.weight.dtype == torch.bfloat16
        and (*convolution.stride, *convolution.padding) == (1, 1, 1, 1)
        and (channels, width, height % LINES.value) == (CHANNELS.value, COLUMNS.value, 0)
    )


def add_up(
    convolution: FrozenConvolution, maps: Tensor, sums: Tensor, *, skip: Tensor | None, side: Side | None
) -> Tensor:
    """See `tiled_convolution.add_up`."""
    assert side is None
    total = torch.empty_like(maps)
    _launch(convolution.weight, maps, result=total, added=skip, sums=sums)
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
    """See `tiled_convolution.normalise`."""
    assert side is None
    active, inverse = torch.empty_like(maps), torch.empty_like(norm.mean)
    total = torch.empty_like(maps) if keeps_total else None
    _launch(
        convolution.weight,
        maps,
        result=total,
        added=skip,
        active=active,
        inverse=inverse,
        norm=norm,
        mean=norm.mean,
        variance=norm.variance,
    )
    return active if total is None else total, active, inverse


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
    """See `tiled_convolution.backward`."""
    assert side is None
    assert sums is None or past is None
    result = torch.empty_like(gradient)
    _launch(
        convolution.mirrored,
        gradient,
        result=result,
        added=past,
        seen=seen.maps,
        sums=sums,
        inverse=seen.inverse,
        norm=norm,
        mean=seen.mean,
    )
    return result


def _launch(
    weight: Tensor,
    maps: Tensor,
    *,
    result: Tensor | None,
    added: Tensor | None = None,
    active: Tensor | None = None,
    seen: Tensor | None = None,
    sums: Tensor | None = None,
    inverse: Tensor | None = None,
    norm: Norm | None = None,
    mean: Tensor | None = None,
    variance: Tensor | None = None,
) -> None:
    """Launch the kernel; it computes each output that it gets a tensor for."""
    count, channels, height, width = maps.shape
    for each in (maps, added, seen):
        if each is not None and not each.is_contiguous(memory_format=torch.channels_last):
            raise ValueError("maps must lie channels-last")
    lines = maps.permute(0, 2, 3, 1).view(count, height // APART.value, APART.value, width, channels)
    tiles = count * height // LINES.value
    resident_kernels.link[(min(tiles, units_of(maps)),)](
        source=blocks_of(lines, (1, 2, 1, width, channels)),
        weight=blocks_of(lines_of(weight), (channels, channels)),
        result=result,
        added=added,
        active=active,
        seen=seen,
        sums=sums,
        inverse=inverse,
        norm_weight=None if norm is None else norm.weight,
        norm_bias=None if norm is None else norm.bias,
        mean=mean,
        variance=variance,
        eps=0.0 if norm is None else norm.eps,
        tiles=tiles,
        height=height,
        num_warps=WARPS,
        launch_pdl=True,
    )
