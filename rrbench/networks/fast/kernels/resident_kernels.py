"""`convolution_kernels` for 64 channels on lines of 32, where fetching takes longest: weights stay, maps come thrice.

A program stays on its unit and goes from tile to tile, eight lines of an image each. All weights fit its shared memory.
A chunk of maps is the lines i and i + 4. The chunk of i + 1 lies one line below it, so that the three taps of a column
share six chunks. Two groups of warps take turns: one multiplies while the other ends its tile.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from rrbench.networks.fast.kernels.hopper import load, normal, rectified, wait_for_last

CHANNELS = gl.constexpr(64)
COLUMNS = gl.constexpr(32)
APART = gl.constexpr(4)  # lines from a chunk's first to its second
LINES = gl.constexpr(8)  # of a tile: four chunks
CHUNKS = gl.constexpr(6)  # that a tile needs for a column's taps: its own four and one on either side
REGISTERS = gl.constexpr(216)  # of a thread that multiplies; those that fetch need few


@gluon.jit
def _fetch(source, weight, weights, known, ring, full, empty, tiles, height: gl.constexpr):
    """Fetch the weights once, then chunk after chunk as room comes free."""
    mbarrier.expect(known, 9 * weight.block_type.nbytes)
    for tap in gl.static_range(9):
        load(weight, [0, tap * CHANNELS], known, weights.index(tap))
    across: gl.constexpr = height // LINES
    step = 0
    for tile in range(gl.program_id(0), tiles, gl.num_programs(0)):
        start = tile % across * LINES - 1
        for right in range(3):
            for chunk in gl.static_range(CHUNKS):
                slot = (step & 1) * CHUNKS + chunk
                line = start + chunk
                mbarrier.wait(empty.index(slot), ((step >> 1) & 1) ^ 1)
                mbarrier.expect(full.index(slot), source.block_type.nbytes)
                # Not `//`, which would take the line before the first for one of its own group.
                place = [tile // across, line >> 2, line & 3, right - 1, 0]
                load(source, place, full.index(slot), ring.index(slot))
            step += 1


@gluon.jit
def _offsets(image, line, height: gl.constexpr, layout: gl.constexpr):
    """Return where a chunk lies in maps."""
    row = gl.arange(0, 2 * COLUMNS, gl.SliceLayout(1, layout))
    position = (line + row // COLUMNS * APART) * COLUMNS + row % COLUMNS
    column = gl.arange(0, CHANNELS, gl.SliceLayout(0, layout))
    within = gl.expand_dims(position * CHANNELS, 1) + gl.expand_dims(column, 0)
    return image.to(gl.int64) * (height * COLUMNS * CHANNELS) + within


@gluon.jit
def _gather(seen, added, image, line, height: gl.constexpr, layout: gl.constexpr):
    """Load what one chunk of the result is put together with."""
    where = _offsets(image, line, height, layout)
    none = gl.zeros([2 * COLUMNS, CHANNELS], gl.bfloat16, layout)
    return none if seen is None else gl.load(seen + where), none if added is None else gl.load(added + where)


@gluon.jit
def _end(
    product,
    seen_maps,
    more,
    image,
    line,
    first,
    second,
    result,
    added,
    active,
    sums,
    seen,
    mean,
    scale,
    shift,
    height: gl.constexpr,
    layout: gl.constexpr,
):
    """Do what comes after a convolution to one chunk of its result, and write it; return the sums so far."""
    where = _offsets(image, line, height, layout)
    value = gl.convert_layout(product.to(gl.bfloat16), layout).to(gl.float32)
    if seen is not None:
        before = seen_maps.to(gl.float32)
        if sums is not None:
            value = gl.where(normal(before, scale, shift) > 0, value, 0.0)
            also = value * (before - gl.expand_dims(mean, 0))
        else:
            value = gl.where(before > 0, value, 0.0) * gl.expand_dims(scale, 0)
    if added is not None:
        value += more.to(gl.float32)
    short = value.to(gl.bfloat16)
    if result is not None:
        gl.store(result + where, short)
    if active is not None:
        gl.store(active + where, rectified(normal(short.to(gl.float32), scale, shift)).to(gl.bfloat16))
    if sums is not None:
        if seen is None:
            value = short.to(gl.float32)
            also = value * value
        # A thread holds every sixteenth position: here it sums its own, at the end those of all.
        first += gl.convert_layout(gl.sum(value.reshape([2 * COLUMNS // 16, 16, CHANNELS]), 0), layout)
        second += gl.convert_layout(gl.sum(also.reshape([2 * COLUMNS // 16, 16, CHANNELS]), 0), layout)
    return first, second


@gluon.jit
def _multiply(
    group: gl.constexpr,
    weights,
    known,
    ring,
    full,
    empty,
    turn,
    result,
    added,
    active,
    seen,
    sums,
    inverse,
    norm_weight,
    norm_bias,
    mean,
    variance,
    eps,
    tiles,
    height: gl.constexpr,
):
    """Multiply every other tile of this program, and end it while the other group multiplies."""
    rows: gl.constexpr = 2 * COLUMNS
    product: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, CHANNELS, 16])
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [4, 8], [4, 1], [1, 0])
    channels = gl.arange(0, CHANNELS, gl.SliceLayout(0, layout))
    first = gl.zeros([16, CHANNELS], gl.float32, layout)
    second = gl.zeros([16, CHANNELS], gl.float32, layout)
    one_over = gl.zeros([CHANNELS], gl.float32, gl.SliceLayout(0, layout))
    center = one_over
    scale = one_over
    shift = one_over
    if inverse is not None:
        if variance is None:
            one_over = gl.load(inverse + channels)
        else:
            one_over = gl.rsqrt(gl.load(variance + channels) + eps)
            gl.store(inverse + channels, one_over)
        center = gl.load(mean + channels)
        scale = gl.load(norm_weight + channels) * one_over
        shift = gl.load(norm_bias + channels) - center * scale
    mbarrier.wait(known, 0)
    across: gl.constexpr = height // LINES
    step = 3 * group
    for tile in range(gl.program_id(0) + group * gl.num_programs(0), tiles, 2 * gl.num_programs(0)):
        image = tile // across
        line = tile % across * LINES
        maps_a, more_a = _gather(seen, added, image, line, height, layout)
        # One for each chunk of the result.
        a = gl.zeros([rows, CHANNELS], gl.float32, product)
        b = gl.zeros([rows, CHANNELS], gl.float32, product)
        c = gl.zeros([rows, CHANNELS], gl.float32, product)
        d = gl.zeros([rows, CHANNELS], gl.float32, product)
        # The first group begins; each waits for the other's last tile.
        mbarrier.wait(turn.index(group), (step // 6 & 1) ^ (1 - group))
        for right in range(3):
            base = (step & 1) * CHUNKS
            phase = (step >> 1) & 1
            top = weights.index(right).permute((1, 0))
            middle = weights.index(3 + right).permute((1, 0))
            bottom = weights.index(6 + right).permute((1, 0))
            mbarrier.wait(full.index(base), phase)
            maps = ring.index(base).reshape([rows, CHANNELS])
            a = warpgroup_mma(maps, top, a, is_async=True)
            mbarrier.wait(full.index(base + 1), phase)
            maps = ring.index(base + 1).reshape([rows, CHANNELS])
            b = warpgroup_mma(maps, top, b, is_async=True)
            a = warpgroup_mma(maps, middle, a, is_async=True)
            a, b = warpgroup_mma_wait(2, deps=(a, b))
            mbarrier.arrive(empty.index(base))
            mbarrier.wait(full.index(base + 2), phase)
            maps = ring.index(base + 2).reshape([rows, CHANNELS])
            c = warpgroup_mma(maps, top, c, is_async=True)
            b = warpgroup_mma(maps, middle, b, is_async=True)
            a = warpgroup_mma(maps, bottom, a, is_async=True)
            a, b, c = warpgroup_mma_wait(3, deps=(a, b, c))
            mbarrier.arrive(empty.index(base + 1))
            mbarrier.wait(full.index(base + 3), phase)
            maps = ring.index(base + 3).reshape([rows, CHANNELS])
            d = warpgroup_mma(maps, top, d, is_async=True)
            c = warpgroup_mma(maps, middle, c, is_async=True)
            b = warpgroup_mma(maps, bottom, b, is_async=True)
            a, b, c, d = warpgroup_mma_wait(3, deps=(a, b, c, d))
            mbarrier.arrive(empty.index(base + 2))
            mbarrier.wait(full.index(base + 4), phase)
            maps = ring.index(base + 4).reshape([rows, CHANNELS])
            d = warpgroup_mma(maps, middle, d, is_async=True)
            c = warpgroup_mma(maps, bottom, c, is_async=True)
            b, c, d = warpgroup_mma_wait(2, deps=(b, c, d))
            mbarrier.arrive(empty.index(base + 3))
            mbarrier.wait(full.index(base + 5), phase)
            maps = ring.index(base + 5).reshape([rows, CHANNELS])
            d = warpgroup_mma(maps, bottom, d, is_async=True)
            c, d = warpgroup_mma_wait(1, deps=(c, d))
            mbarrier.arrive(empty.index(base + 4))
            d = warpgroup_mma_wait(0, deps=(d,))
            mbarrier.arrive(empty.index(base + 5))
            step += 1
        mbarrier.arrive(turn.index(1 - group))
        step += 3  # of the other's tile
        # What the next chunk needs is on its way while one is put together.
        maps_b, more_b = _gather(seen, added, image, line + 1, height, layout)
        first, second = _end(
            a, maps_a, more_a, image, line, first, second, result, added, active, sums, seen, center, scale, shift,
            height, layout,
        )  # fmt: skip
        maps_a, more_a = _gather(seen, added, image, line + 2, height, layout)
        first, second = _end(
            b, maps_b, more_b, image, line + 1, first, second, result, added, active, sums, seen, center, scale, shift,
            height, layout,
        )  # fmt: skip
        maps_b, more_b = _gather(seen, added, image, line + 3, height, layout)
        first, second = _end(
            c, maps_a, more_a, image, line + 2, first, second, result, added, active, sums, seen, center, scale, shift,
            height, layout,
        )  # fmt: skip
        first, second = _end(
            d, maps_b, more_b, image, line + 3, first, second, result, added, active, sums, seen, center, scale, shift,
            height, layout,
        )  # fmt: skip
    if sums is not None:
        # Relaxed: who reads the sums is a later kernel.
        gl.atomic_add(sums + channels, gl.sum(first, 0), sem="relaxed")
        last = gl.sum(second, 0)
        if seen is not None:
            last *= one_over
        gl.atomic_add(sums + CHANNELS + channels, last, sem="relaxed")


# Else an odd number of images, as when some have left an attack, would have all these kernels compiled again.
@gluon.jit(do_not_specialize=["tiles"])
def link(
    source,
    weight,
    result,
    added,
    active,
    seen,
    sums,
    inverse,
    norm_weight,
    norm_bias,
    mean,
    variance,
    eps,
    tiles,
    height: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Convolve and do what comes after it, forward or back."""
    weights = gl.allocate_shared_memory(weight.dtype, [9] + weight.block_type.shape, weight.layout)
    ring = gl.allocate_shared_memory(source.dtype, [2 * CHUNKS] + source.block_type.shape, source.layout)
    known = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    full = gl.allocate_shared_memory(gl.int64, [2 * CHUNKS, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [2 * CHUNKS, 1], mbarrier.MBarrierLayout())
    turn = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(known, count=1)
    for slot in gl.static_range(2 * CHUNKS):
        mbarrier.init(full.index(slot), count=1)
        mbarrier.init(empty.index(slot), count=1)
    for each in gl.static_range(2):
        mbarrier.init(turn.index(each), count=1)
    wait_for_last()
    # Written out: constants that are put into a variable together are constants no more.
    gl.warp_specialize(
        [
            (_multiply, (
                0, weights, known, ring, full, empty, turn, result, added, active, seen, sums, inverse, norm_weight,
                norm_bias, mean, variance, eps, tiles, height,
            )),
            (_multiply, (
                1, weights, known, ring, full, empty, turn, result, added, active, seen, sums, inverse, norm_weight,
                norm_bias, mean, variance, eps, tiles, height,
            )),
            (_fetch, (source, weight, weights, known, ring, full, empty, tiles, height)),
        ],
        [num_warps, 1],
        [REGISTERS, 40],
    )  # fmt: skip
