"""A 3x3 convolution with what comes after it in one kernel, for Hopper's matrix units, in Gluon.

A GPU that convolves is bound by what its units can fetch, and one that normalises by memory: a kernel that does both
adds the shortcut, the sums of a batch's statistics or the whole norm and ReLU to what it holds already. The copy engine
fetches each tap's tile of the maps as it lies; what is outside an image comes as zeros, and that is the padding.

Maps are seen as (images, lines / s, s, columns / s, s * channels) for a convolution of stride s: every s-th line and
column is then a tile without gaps. The way back of stride 2 makes four kinds of positions, each with taps of its own.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from rrbench.networks.fast.kernels.hopper import load, normal, rectified, store, wait_for_last

DEPTH = gl.constexpr(64)  # channels fetched at once: as much as the units' shared memory swizzles
PART = gl.constexpr(32)  # positions that the way back ends at a time: more would not fit its registers


@gluon.jit
def _fetch(
    source,
    weight,
    side_source,
    side_weight,
    tiles,
    weights,
    ready,
    step,
    main,
    steps,
    image,
    line,
    out,
    down_kind,
    right_kind,
    inputs: gl.constexpr,
    side_inputs: gl.constexpr,
    stride: gl.constexpr,
    is_back: gl.constexpr,
    stages: gl.constexpr,
):
    """Have one step's tiles copied: a tap's maps and weights."""
    slot = step % stages
    there = ready.index(slot)
    mbarrier.expect(there, source.block_type.nbytes + weight.block_type.nbytes, pred=step < steps)
    tap = step // (inputs // DEPTH)
    channel = step % (inputs // DEPTH) * DEPTH
    if is_back and stride == 2:
        # An even line was reached by the middle tap alone, an odd one by the first and the last.
        down = down_kind * (1 - (tap >> right_kind))
        right = right_kind * (1 - (tap & right_kind))
        # The weights are mirrored, so that the last tap lies first.
        tap = 8 - 3 * (1 + down_kind - 2 * down) - (1 + right_kind - 2 * right)
        place = [image, line + down, 0, right, channel]
    else:
        down = tap // 3 - 1
        right = tap % 3 - 1
        column = (right & (stride - 1)) * inputs + channel
        place = [image, line + (down >> (stride - 1)), down & (stride - 1), right >> (stride - 1), column]
    load(source, place, there, tiles.index(slot), pred=step < main)
    load(weight, [out, tap * inputs + channel], there, weights.index(slot), pred=step < main)
    if side_inputs > 0:
        is_side = (step >= main) & (step < steps)
        channel = (step - main) * DEPTH
        load(side_source, [image, line, 0, 0, channel], there, tiles.index(slot), pred=is_side)
        load(side_weight, [out, channel], there, weights.index(slot), pred=is_side)


@gluon.jit
def _product(
    source,
    weight,
    side_source,
    side_weight,
    image,
    line,
    out,
    down_kind,
    right_kind,
    inputs: gl.constexpr,
    side_inputs: gl.constexpr,
    stride: gl.constexpr,
    is_back: gl.constexpr,
    stages: gl.constexpr,
    rows: gl.constexpr,
    width: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Return a tile of the convolution, with that of the shortcut added."""
    tiles = gl.allocate_shared_memory(source.dtype, [stages] + source.block_type.shape, source.layout)
    weights = gl.allocate_shared_memory(weight.dtype, [stages] + weight.block_type.shape, weight.layout)
    ready = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for each in gl.static_range(stages):
        mbarrier.init(ready.index(each), count=1)
    wait_for_last()
    if is_back and stride == 2:
        main = (1 + down_kind) * (1 + right_kind) * (inputs // DEPTH)
        # The shortcut's positions are those of even lines and columns.
        steps = main + (1 - down_kind) * (1 - right_kind) * (side_inputs // DEPTH)
    else:
        main = 9 * (inputs // DEPTH)
        steps = main + side_inputs // DEPTH
    for early in gl.static_range(stages - 1):
        _fetch(
            source, weight, side_source, side_weight, tiles, weights, ready, early, main, steps, image, line, out,
            down_kind, right_kind, inputs, side_inputs, stride, is_back, stages,
        )  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, width, 16])
    total = gl.zeros([rows, width], gl.float32, layout)
    for step in range(steps):
        slot = step % stages
        mbarrier.wait(ready.index(slot), (step // stages) & 1)
        tile = tiles.index(slot).reshape([rows, DEPTH])
        total = warpgroup_mma(tile, weights.index(slot).permute((1, 0)), total, is_async=True)
        # The step before has been multiplied: its place is free.
        total = warpgroup_mma_wait(1, deps=(total,))
        _fetch(
            source, weight, side_source, side_weight, tiles, weights, ready, step + stages - 1, main, steps, image,
            line, out, down_kind, right_kind, inputs, side_inputs, stride, is_back, stages,
        )  # fmt: skip
    total = warpgroup_mma_wait(0, deps=(total,))
    for last in gl.static_range(stages):
        mbarrier.invalidate(ready.index(last))
    return total


@gluon.jit
def forward(
    source,
    weight,
    side_source,
    side_weight,
    total,
    skip,
    active,
    sums,
    seen_inverse,
    norm_weight,
    norm_bias,
    running_mean,
    running_variance,
    eps,
    height: gl.constexpr,
    inputs: gl.constexpr,
    side_inputs: gl.constexpr,
    outputs: gl.constexpr,
    stride: gl.constexpr,
    stages: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Convolve and add; then sum for the statistics, or normalise and rectify."""
    made = total if active is None else active
    shape: gl.constexpr = made.block_type.shape
    rows: gl.constexpr = shape[0] * shape[1] * shape[3]
    width: gl.constexpr = shape[4]
    across: gl.constexpr = height // shape[1]
    image = gl.program_id(0) // across * shape[0]
    line = gl.program_id(0) % across * shape[1]
    out = gl.program_id(1) * width
    product = _product(
        source, weight, side_source, side_weight, image, line, out, 0, 0, inputs, side_inputs, stride, False,
        stages, rows, width, num_warps,
    )  # fmt: skip
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // width, width // 8], [num_warps, 1], [1, 0])
    place = [image, line, 0, 0, out]
    held = gl.allocate_shared_memory(made.dtype, shape, made.layout)
    flat = held.reshape([rows, width])
    flat.store(product.to(made.dtype))
    value = flat.load(layout).to(gl.float32)
    if skip is not None:
        other = gl.allocate_shared_memory(skip.dtype, shape, skip.layout)
        here = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
        mbarrier.init(here, count=1)
        mbarrier.expect(here, skip.block_type.nbytes)
        load(skip, place, here, other)
        mbarrier.wait(here, 0)
        value += other.reshape([rows, width]).load(layout).to(gl.float32)
        mbarrier.invalidate(here)
        short = value.to(made.dtype)
        if total is not None:
            flat.store(short)
        value = short.to(gl.float32)
    channels = out + gl.arange(0, width, gl.SliceLayout(0, layout))
    if sums is not None:
        # Relaxed: who reads the sums is a later kernel.
        gl.atomic_add(sums + channels, gl.sum(value, 0), sem="relaxed")
        gl.atomic_add(sums + outputs + channels, gl.sum(value * value, 0), sem="relaxed")
    else:
        inverse = gl.rsqrt(gl.load(running_variance + channels) + eps)
        if gl.program_id(0) == 0:
            gl.store(seen_inverse + channels, inverse)
        scale = gl.load(norm_weight + channels) * inverse
        shift = gl.load(norm_bias + channels) - gl.load(running_mean + channels) * scale
        result = rectified(normal(value, scale, shift))
        final = gl.allocate_shared_memory(active.dtype, shape, active.layout)
        final.reshape([rows, width]).store(result.to(active.dtype))
    # Last of all: the copies read shared memory that the compiler takes for free once they are under way.
    fence_async_shared()
    if total is not None:
        store(total, place, held)
    if active is not None:
        store(active, place, final)
    tma.store_wait(0)


@gluon.jit
def backward(
    source,
    weight,
    side_source,
    side_weight,
    result,
    maps,
    past,
    sums,
    norm_weight,
    norm_bias,
    seen_mean,
    seen_inverse,
    height: gl.constexpr,
    inputs: gl.constexpr,
    side_inputs: gl.constexpr,
    outputs: gl.constexpr,
    stride: gl.constexpr,
    stages: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Convolve, keep what ReLU lets through; then sum for the norm's way back, or go it."""
    shape: gl.constexpr = result.block_type.shape
    rows: gl.constexpr = shape[0] * shape[1] * shape[3]
    width: gl.constexpr = shape[4]
    across: gl.constexpr = height // shape[1]
    image = gl.program_id(0) // across * shape[0]
    line = gl.program_id(0) % across * shape[1]
    out = gl.program_id(1) * width
    # The kind with most taps first.
    down_kind = (stride - 1) - gl.program_id(2) // stride
    right_kind = (stride - 1) - gl.program_id(2) % stride
    product = _product(
        source, weight, side_source, side_weight, image, line, out, down_kind, right_kind, inputs, side_inputs,
        stride, True, stages, rows, width, num_warps,
    )  # fmt: skip
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [256 // width, width // 8], [num_warps, 1], [1, 0])
    place = [image, line, down_kind, 0, right_kind * outputs + out]
    held = gl.allocate_shared_memory(result.dtype, shape, result.layout)
    flat = held.reshape([rows, width])
    flat.store(product.to(result.dtype))
    other = gl.allocate_shared_memory(maps.dtype, shape, maps.layout)
    here = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(here, count=1)
    if past is not None:
        beyond = gl.allocate_shared_memory(past.dtype, shape, past.layout)
        mbarrier.expect(here, maps.block_type.nbytes + past.block_type.nbytes)
        load(past, place, here, beyond)
    else:
        mbarrier.expect(here, maps.block_type.nbytes)
    load(maps, place, here, other)
    mbarrier.wait(here, 0)
    channels = out + gl.arange(0, width, gl.SliceLayout(0, layout))
    inverse = gl.load(seen_inverse + channels)
    mean = gl.load(seen_mean + channels)
    scale = gl.load(norm_weight + channels) * inverse
    shift = gl.load(norm_bias + channels) - mean * scale
    first = gl.zeros([PART, width], gl.float32, layout)
    second = gl.zeros([PART, width], gl.float32, layout)
    for part in gl.static_range(rows // PART):
        piece = flat.slice(part * PART, PART)
        slope = piece.load(layout).to(gl.float32)
        value = other.reshape([rows, width]).slice(part * PART, PART).load(layout).to(gl.float32)
        if sums is not None:
            slope = gl.where(normal(value, scale, shift) > 0, slope, 0.0)
            first += slope
            second += slope * (value - gl.expand_dims(mean, 0))
        else:
            slope = gl.where(value > 0, slope, 0.0) * gl.expand_dims(scale, 0)
            if past is not None:
                slope += beyond.reshape([rows, width]).slice(part * PART, PART).load(layout).to(gl.float32)
        piece.store(slope.to(result.dtype))
    if sums is not None:
        gl.atomic_add(sums + channels, gl.sum(first, 0), sem="relaxed")
        gl.atomic_add(sums + outputs + channels, gl.sum(second, 0) * inverse, sem="relaxed")
    mbarrier.invalidate(here)
    fence_async_shared()
    store(result, place, held)
    tma.store_wait(0)
