"""The first convolution of a network, in Triton: from three channels, and back to them.

Units that multiply want many channels; here the taps of all colours take their place, read from the images as they lie.
On the way back every position's shares for its neighbours are multiplied first and gathered after.
"""

import torch
import triton
from torch import Tensor
from triton import language as tl

from rrbench.networks.fast.frozen_convolution import LANES, FrozenConvolution
from rrbench.networks.fast.kernels.early_start import start_of, wait_for_last

ROWS = 128  # positions of a program
TAPS = tl.constexpr(9)
DEPTH = tl.constexpr(32)  # taps of all colours, filled up to what a unit multiplies at once


def fits(stem: FrozenConvolution) -> bool:
    """Tell whether these kernels know a first convolution."""
    outputs, colours, *size = stem.source.weight.shape
    shape = (*size, *stem.stride, *stem.padding)
    is_power = outputs & (outputs - 1) == 0 and 16 <= outputs <= 128
    return shape == (3, 3, 1, 1, 1, 1) and colours * TAPS.value <= DEPTH.value and is_power


def forward(stem: FrozenConvolution, images: Tensor, sums: Tensor | None) -> Tensor:
    """Convolve float32 images; `sums`, two zeros for each channel, get the sums of the result and of its square."""
    count, colours, height, width = images.shape
    outputs = stem.weight.shape[0]
    maps = torch.empty(
        count, outputs, height, width, dtype=stem.weight.dtype, device=images.device, memory_format=torch.channels_last
    )
    positions = count * height * width
    _forward[(triton.cdiv(positions, ROWS),)](
        images.contiguous(),
        stem.weight,
        maps,
        images if sums is None else sums,
        positions,
        colours,
        height,
        width,
        outputs,
        LANES,
        sums is not None,
        ROWS,
        **start_of(images),
    )
    return maps


def backward(stem: FrozenConvolution, gradient: Tensor) -> Tensor:
    """Return the float32 gradient at the images."""
    count, outputs, height, width = gradient.shape
    colours = stem.source.weight.shape[1]
    positions = count * height * width
    shares = torch.empty(colours * TAPS.value, positions, device=gradient.device)
    result = torch.empty(count, colours, height, width, device=gradient.device)
    grid = (triton.cdiv(positions, ROWS),)
    _share[grid](gradient, stem.weight, shares, positions, colours, outputs, LANES, ROWS, **start_of(gradient))
    _gather[grid](shares, result, positions, colours, height, width, ROWS, **start_of(gradient))
    return result


@triton.jit
def _weights(weight, taps, colours: tl.constexpr, outputs: tl.constexpr, lanes: tl.constexpr):
    """Load weights, (taps of all colours, outputs), that lie as (outputs, taps, colours filled up to lanes)."""
    where = tl.arange(0, outputs)[None, :] * (TAPS * lanes) + taps % TAPS * lanes + taps // TAPS
    return tl.load(weight + where, taps < TAPS * colours, 0.0)


@triton.jit
def _forward(
    images,
    weight,
    maps,
    sums,
    positions,
    colours: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    outputs: tl.constexpr,
    lanes: tl.constexpr,
    training: tl.constexpr,
    rows: tl.constexpr,
    is_early: tl.constexpr,
):
    """Convolve, and sum the result and its square over all positions."""
    wait_for_last(is_early)
    taps = tl.arange(0, DEPTH)[:, None]
    position = tl.program_id(0) * rows + tl.arange(0, rows)
    line = (position // width % height)[None, :] + taps % TAPS // 3 - 1
    column = (position % width)[None, :] + taps % 3 - 1
    inside = (taps < TAPS * colours) & (position < positions)[None, :]
    inside = inside & (line >= 0) & (line < height) & (column >= 0) & (column < width)
    image = (position // (height * width))[None, :].to(tl.int64)
    value = tl.load(images + ((image * colours + taps // TAPS) * height + line) * width + column, inside, 0.0)
    weights = _weights(weight, taps, colours, outputs, lanes)
    total = tl.dot(tl.trans(value.to(weights.dtype)), weights, input_precision="ieee").to(maps.dtype.element_ty)
    channels = tl.arange(0, outputs)
    where = position.to(tl.int64)[:, None] * outputs + channels[None, :]
    tl.store(maps + where, total, (position < positions)[:, None])
    if training:
        wide = total.to(tl.float32)
        # Relaxed: who reads the sums is a later kernel.
        tl.atomic_add(sums + channels, tl.sum(wide, 0), sem="relaxed")
        tl.atomic_add(sums + outputs + channels, tl.sum(wide * wide, 0), sem="relaxed")


@triton.jit
def _share(
    gradient,
    weight,
    shares,
    positions,
    colours: tl.constexpr,
    outputs: tl.constexpr,
    lanes: tl.constexpr,
    rows: tl.constexpr,
    is_early: tl.constexpr,
):
    """Multiply each position's gradient with the weights of every tap and colour."""
    wait_for_last(is_early)
    taps = tl.arange(0, DEPTH)[:, None]
    position = tl.program_id(0) * rows + tl.arange(0, rows)
    where = position.to(tl.int64)[:, None] * outputs + tl.arange(0, outputs)[None, :]
    value = tl.load(gradient + where, (position < positions)[:, None], 0.0)
    weights = _weights(weight, taps, colours, outputs, lanes)
    total = tl.dot(weights, tl.trans(value), input_precision="ieee")
    inside = (taps < TAPS * colours) & (position < positions)[None, :]
    tl.store(shares + taps.to(tl.int64) * positions + position[None, :], total, inside)


@triton.jit
def _gather(
    shares,
    result,
    positions,
    colours: tl.constexpr,
    height: tl.constexpr,
    width: tl.constexpr,
    rows: tl.constexpr,
    is_early: tl.constexpr,
):
    """Sum what a position's neighbours hold for it: one down and right of it by the tap above and left, and so on."""
    wait_for_last(is_early)
    position = tl.program_id(0) * rows + tl.arange(0, rows)
    line = position // width % height
    column = position % width
    image = (position // (height * width)).to(tl.int64)
    for colour in tl.static_range(colours):
        total = tl.zeros([rows], tl.float32)
        for tap in tl.static_range(TAPS):
            down = 1 - tap // 3
            right = 1 - tap % 3
            inside = (position < positions) & (line + down >= 0) & (line + down < height)
            inside = inside & (column + right >= 0) & (column + right < width)
            own = shares + (colour * TAPS + tap) * tl.cast(positions, tl.int64)
            total += tl.load(own + position + down * width + right, inside, 0.0)
        where = ((image * colours + colour) * height + line) * width + column
        tl.store(result + where, total, position < positions)
