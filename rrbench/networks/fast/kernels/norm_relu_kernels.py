"""`norm_relu` on a GPU, in Triton.

Between two convolutions a GPU waits for memory, so each kernel reads and writes every number once: the sum of a block
and its shortcut is formed on the way, what ReLU let through is in training worked out again, and the statistics
of a batch are two sums. Maps lie channels-last: a program takes a tile of that matrix of (positions, channels).
"""

import torch
import triton
from torch import Tensor
from triton import language as tl

from rrbench.networks.fast.kernels.early_start import start_of, wait_for_last
from rrbench.networks.fast.norm_relu import Norm, Normed, Seen

ROWS = 64  # positions that one program reads at once
TILES = 4  # times that many for a sum: loads that need not wait for each other
PROGRAMS = 264  # of a sum, at most: each adds once to every channel; two for every unit of an H200
WARPS = 8  # of a sum


def forward(maps: Tensor, skip: Tensor | None, norm: Norm, sums: Tensor | None) -> Normed:
    """Do as `norm_relu.forward`."""
    if sums is None:
        return normalise(maps, norm, None, skip=skip)
    rows, channels, width = _shape(maps)
    total = maps if skip is None else torch.empty_like(maps)
    flags = (channels, skip is not None, width, ROWS, TILES)
    pair = (maps, maps if skip is None else skip)
    _sums[_sum_grid(rows, channels, width)](*pair, total, sums, rows, *flags, num_warps=WARPS, **start_of(maps))
    return normalise(total, norm, sums)


def normalise(maps: Tensor, norm: Norm, sums: Tensor | None, *, skip: Tensor | None = None) -> Normed:
    """Do as `forward`, given the sums of the maps and of their squares."""
    rows, channels, width = _shape(maps)
    total = maps if skip is None else torch.empty_like(maps)
    active, seen = torch.empty_like(maps), torch.empty(2, channels, device=maps.device)
    _forward[(triton.cdiv(rows, ROWS), channels // width)](
        maps,
        maps if skip is None else skip,
        total,
        active,
        norm.mean if sums is None else sums,
        *norm[:4],
        seen,
        rows,
        norm.eps,
        norm.momentum,
        channels,
        sums is not None,
        skip is not None,
        width,
        ROWS,
        **start_of(maps),
    )
    return Normed(total, active, Seen(active if sums is None else total, seen[0], seen[1]))


def backward(
    gradient: Tensor,
    seen: Seen,
    norm: Norm,
    sums: Tensor | None,
    *,
    side_gradient: Tensor | None = None,
    past: Tensor | None = None,
) -> Tensor:
    """Do as `norm_relu.backward`."""
    if sums is not None:
        rows, channels, width = _shape(seen.maps)
        given = (gradient, gradient if side_gradient is None else side_gradient, *seen, norm.weight, norm.bias)
        flags = (channels, side_gradient is not None, width, ROWS, TILES)
        _back_sums[_sum_grid(rows, channels, width)](*given, sums, rows, *flags, num_warps=WARPS, **start_of(gradient))
    return unnormalise(gradient, seen, norm, sums, side_gradient=side_gradient, past=past)


def unnormalise(
    gradient: Tensor,
    seen: Seen,
    norm: Norm,
    sums: Tensor | None,
    *,
    side_gradient: Tensor | None = None,
    past: Tensor | None = None,
) -> Tensor:
    """Do as `backward`, given the sums of what ReLU lets through and of its product with the normalised maps."""
    maps, result = seen.maps, torch.empty_like(seen.maps)
    rows, channels, width = _shape(maps)
    _backward[(triton.cdiv(rows, ROWS), channels // width)](
        gradient,
        gradient if side_gradient is None else side_gradient,
        gradient if past is None else past,
        *seen,
        norm.weight,
        norm.bias,
        norm.mean if sums is None else sums,
        result,
        rows,
        channels,
        sums is not None,
        side_gradient is not None,
        past is not None,
        width,
        ROWS,
        **start_of(maps),
    )
    return result


def _shape(maps: Tensor) -> tuple[int, int, int]:
    """Return positions, channels, and how many channels one program takes: a power of two that divides them."""
    if not maps.is_contiguous(memory_format=torch.channels_last):
        raise ValueError("maps must lie channels-last")
    channels = maps.shape[1]
    return maps.numel() // channels, channels, min(channels & -channels, 64)


def _sum_grid(rows: int, channels: int, width: int) -> tuple[int, int]:
    return min(triton.cdiv(rows, ROWS * TILES), PROGRAMS), channels // width


@triton.jit
def _sums(
    maps,
    skip,
    total,
    sums,
    rows,
    channels: tl.constexpr,
    add: tl.constexpr,
    width: tl.constexpr,
    height: tl.constexpr,
    tiles: tl.constexpr,
    is_early: tl.constexpr,
):
    """Add maps and skip, and sum the result and its square over all positions."""
    wait_for_last(is_early)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    first = tl.zeros([height, width], tl.float32)
    second = tl.zeros([height, width], tl.float32)
    for start in range(tl.program_id(0) * height * tiles, rows, tl.num_programs(0) * height * tiles):
        for tile in tl.static_range(tiles):
            lines = start + tile * height + tl.arange(0, height)
            where = lines.to(tl.int64)[:, None] * channels + columns[None, :]
            inside = (lines < rows)[:, None]
            value = tl.load(maps + where, inside, 0.0)
            if add:
                value = (value.to(tl.float32) + tl.load(skip + where, inside, 0.0).to(tl.float32)).to(value.dtype)
                tl.store(total + where, value, inside)
            wide = value.to(tl.float32)
            first += wide
            second += wide * wide
    tl.atomic_add(sums + columns, tl.sum(first, 0))
    tl.atomic_add(sums + channels + columns, tl.sum(second, 0))


@triton.jit
def _forward(
    maps,
    skip,
    total,
    active,
    sums,
    weight,
    bias,
    running_mean,
    running_variance,
    seen,
    rows,
    eps,
    momentum,
    channels: tl.constexpr,
    training: tl.constexpr,
    add: tl.constexpr,
    width: tl.constexpr,
    height: tl.constexpr,
    is_early: tl.constexpr,
):
    """Normalise and rectify; the first program of each column notes the statistics."""
    wait_for_last(is_early)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    lines = tl.program_id(0) * height + tl.arange(0, height)
    where = lines.to(tl.int64)[:, None] * channels + columns[None, :]
    inside = (lines < rows)[:, None]
    value = tl.load(maps + where, inside, 0.0)
    if training:
        mean = tl.load(sums + columns) / rows
        variance = tl.maximum(tl.load(sums + channels + columns) / rows - mean * mean, 0.0)
    else:
        mean = tl.load(running_mean + columns)
        variance = tl.load(running_variance + columns)
    inverse = tl.rsqrt(variance + eps)
    if tl.program_id(0) == 0:
        tl.store(seen + columns, mean)
        tl.store(seen + channels + columns, inverse)
        if training:
            old_mean = tl.load(running_mean + columns)
            old_variance = tl.load(running_variance + columns)
            unbiased = variance * (rows / tl.maximum(rows - 1, 1))
            tl.store(running_mean + columns, old_mean + momentum * (mean - old_mean))
            tl.store(running_variance + columns, old_variance + momentum * (unbiased - old_variance))
    scale = inverse * tl.load(weight + columns)
    shift = tl.load(bias + columns) - mean * scale
    if add:
        value = (value.to(tl.float32) + tl.load(skip + where, inside, 0.0).to(tl.float32)).to(value.dtype)
        tl.store(total + where, value, inside)
    result = value.to(tl.float32) * scale[None, :] + shift[None, :]
    # Not a maximum: that would turn a NaN into 0.
    result = tl.where(result <= 0.0, 0.0, result)
    tl.store(active + where, result.to(value.dtype), inside)


@triton.jit
def _back_sums(
    gradient,
    side_gradient,
    maps,
    seen_mean,
    seen_inverse,
    weight,
    bias,
    sums,
    rows,
    channels: tl.constexpr,
    has_beside: tl.constexpr,
    width: tl.constexpr,
    height: tl.constexpr,
    tiles: tl.constexpr,
    is_early: tl.constexpr,
):
    """Sum the gradient that ReLU lets through, and its product with the normalised maps."""
    wait_for_last(is_early)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    mean = tl.load(seen_mean + columns)[None, :]
    inverse = tl.load(seen_inverse + columns)[None, :]
    scale = inverse * tl.load(weight + columns)[None, :]
    shift = tl.load(bias + columns)[None, :] - mean * scale
    first = tl.zeros([height, width], tl.float32)
    second = tl.zeros([height, width], tl.float32)
    for start in range(tl.program_id(0) * height * tiles, rows, tl.num_programs(0) * height * tiles):
        for tile in tl.static_range(tiles):
            lines = start + tile * height + tl.arange(0, height)
            where = lines.to(tl.int64)[:, None] * channels + columns[None, :]
            inside = (lines < rows)[:, None]
            value = tl.load(maps + where, inside, 0.0).to(tl.float32)
            slope = tl.load(gradient + where, inside, 0.0).to(tl.float32)
            if has_beside:
                slope += tl.load(side_gradient + where, inside, 0.0).to(tl.float32)
            slope = tl.where(value * scale + shift > 0, slope, 0.0)
            first += slope
            second += slope * (value - mean) * inverse
    tl.atomic_add(sums + columns, tl.sum(first, 0))
    tl.atomic_add(sums + channels + columns, tl.sum(second, 0))


@triton.jit
def _backward(
    gradient,
    side_gradient,
    past,
    maps,
    seen_mean,
    seen_inverse,
    weight,
    bias,
    sums,
    result,
    rows,
    channels: tl.constexpr,
    training: tl.constexpr,
    has_beside: tl.constexpr,
    has_past: tl.constexpr,
    width: tl.constexpr,
    height: tl.constexpr,
    is_early: tl.constexpr,
):
    """Take a gradient back through ReLU and norm."""
    wait_for_last(is_early)
    columns = tl.program_id(1) * width + tl.arange(0, width)
    lines = tl.program_id(0) * height + tl.arange(0, height)
    where = lines.to(tl.int64)[:, None] * channels + columns[None, :]
    inside = (lines < rows)[:, None]
    mean = tl.load(seen_mean + columns)[None, :]
    inverse = tl.load(seen_inverse + columns)[None, :]
    scale = inverse * tl.load(weight + columns)[None, :]
    shift = tl.load(bias + columns)[None, :] - mean * scale
    value = tl.load(maps + where, inside, 0.0).to(tl.float32)
    given = tl.load(gradient + where, inside, 0.0)
    slope = given.to(tl.float32)
    if has_beside:
        slope += tl.load(side_gradient + where, inside, 0.0).to(tl.float32)
    slope = tl.where((value * scale + shift if training else value) > 0, slope, 0.0)
    if training:
        first = tl.load(sums + columns)[None, :] / rows
        second = tl.load(sums + channels + columns)[None, :] / rows
        slope = slope - first - (value - mean) * inverse * second
    slope = slope * scale
    if has_past:
        slope += tl.load(past + where, inside, 0.0).to(tl.float32)
    tl.store(result + where, slope.to(given.dtype), inside)
