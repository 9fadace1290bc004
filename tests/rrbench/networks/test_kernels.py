"""The Triton kernels without a GPU: compiled for one, and interpreted and compared with plain PyTorch.

In two processes, since Triton decides once, when it is loaded, whether it interprets. It lies beside the environment,
not in it: PyTorch would load it in every process that trains, which takes seconds. What it compiled lies there too: a
later session finds it by a hash of the kernels' code, of the options and of Triton, and compiles only what changed.
"""

import itertools
import math
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rrbench.compute.devices import tell_compiling
from rrbench.networks.fast import norm_relu
from rrbench.networks.fast.frozen_convolution import FrozenConvolution, widen
from rrbench.networks.fast.norm_relu import Norm, Sums
from rrbench.progress import Silent

TRITON, CACHE = Path(sys.prefix) / "triton", Path(sys.prefix) / "triton-cache"
NUMBERS = {"rows": "i32", "positions": "i32", "tiles": "i32", "eps": "fp32", "momentum": "fp32"}
NORM = {"channels": 160, "width": 32, "height": 64, "tiles": 4}
NORM_MAPS = ("maps", "skip", "total", "active", "gradient", "side_gradient", "past", "result")
STEM = {"colours": 3, "height": 9, "width": 8, "outputs": 64, "lanes": 8, "rows": 128}
STEM_MAPS = ("maps", "gradient", "weight")
RUNNING = ("seen_inverse", "norm_weight", "norm_bias", "running_mean", "running_variance")
ADDS = re.compile(r"\b(atom|red)\.[a-z_:.]*add")
TOUCHES = re.compile(r"\b(ld\.global|st\.global|cp\.async|atom\.|red\.)")
LINK = {"height": 16, "inputs": 64, "outputs": 64, "stages": 3, "num_warps": 4}


# What each process does, in this order: what is told of compiling is told once.
COMPILED, INTERPRETED = ("tell", "compile", "compile-hopper", "choose", "cut"), ("compare",)


@pytest.fixture(scope="module")
def ask() -> Callable[[tuple[str, ...]], subprocess.CompletedProcess[str]]:
    """Do several works in one process with Triton, once."""

    @cache
    def run(works: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "PYTHONPATH": str(TRITON),
            "TRITON_CACHE_DIR": str(CACHE),
            "TRITON_INTERPRET": str(int(works == INTERPRETED)),
        }
        words = [sys.executable, __file__, *works]
        return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=200)

    return run


@pytest.mark.parametrize(
    ("work", "expected"),
    [
        ("compile", ["_sums", "_forward", "_back_sums", "_backward", "_forward", "_share", "_gather"]),
        ("compile-hopper", ["forward"] * 3 + ["backward"] * 3 + ["link"] * 2),
        ("tell", ["compiling kernels for this GPU; they are kept, a later run need not wait for them"]),
        ("choose", ["15 as expected"]),
        ("cut", ["12 as expected"]),
        ("compare", ["8 alike", "NaN stays", "4 stems alike"]),
    ],
    ids=["compiled", "compiled for Hopper", "told", "chosen", "cut", "interpreted"],
)
def test_without_a_gpu(work: str, expected: list[str], ask: Callable[..., subprocess.CompletedProcess[str]]) -> None:
    if not TRITON.is_dir():
        pytest.skip("needs Triton, which is for Linux: make .venv/triton")
    ended = ask(INTERPRETED if work in INTERPRETED else COMPILED)
    said = dict(re.findall(r"^# (\S+)\n((?:[^#\n].*\n)*)", ended.stdout, re.MULTILINE))
    assert ended.returncode == 0, ended.stderr
    assert said[work].splitlines() == [*expected, "done"], ended.stderr


def spell(kernel: Any, known: dict[str, Any], types: dict[str, str]) -> tuple[dict[str, str], dict[tuple[int], Any]]:
    """Return a kernel's signature and its constants: those that are known, and None for what is left out."""
    names = kernel.arg_names
    signature = {each: "constexpr" if each in known else types.get(each, "*fp32") for each in names}
    return signature, {(names.index(each),): value for each, value in known.items() if each in names}


def compiled(kernel: Any, sizes: dict[str, int], maps: tuple[str, ...], capability: int = 90) -> Any:
    """Compile a Triton kernel, for an H200 if nothing else is asked for, with all that it can do."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    constants = {each.name: sizes.get(each.name, True) for each in kernel.params if each.is_constexpr}
    source = ASTSource(kernel, *spell(kernel, constants, NUMBERS | dict.fromkeys(maps, "*bf16")))
    return triton.compile(source, target=GPUTarget("cuda", capability, 32))


def waits(ptx: str) -> bool:
    """Tell whether a kernel waits for the one before it before it touches the GPU's memory."""
    before = ptx[: TOUCHES.search(ptx).start()]  # type: ignore[union-attr]
    return "griddepcontrol.wait" in before and ptx.count("griddepcontrol.launch_dependents") == 1


def compile_all() -> None:
    """Compile every Triton kernel, one of them also for GPUs that cannot start a kernel early."""
    from rrbench.networks.fast.kernels import norm_relu_kernels as norms
    from rrbench.networks.fast.kernels import stem_kernels as stem
    from rrbench.networks.fast.kernels.early_start import start_of

    work: list[tuple[Any, dict[str, int], tuple[str, ...]]] = [
        *((each, NORM, NORM_MAPS) for each in (norms._sums, norms._forward, norms._back_sums, norms._backward)),
        *((each, STEM, STEM_MAPS) for each in (stem._forward, stem._share, stem._gather)),
    ]
    for kernel, sizes, maps in work:
        made = compiled(kernel, sizes, maps).asm
        assert made["cubin"].startswith(b"\x7fELF")
        # Only those that sum share what they write with others.
        is_summing = "sums" in kernel.__name__ or kernel is stem._forward
        assert bool(ADDS.search(made["ptx"])) == is_summing, kernel.__name__
        assert waits(made["ptx"]), kernel.__name__
        sys.stdout.write(f"{kernel.__name__}\n")
    late = compiled(stem._gather, STEM | {"is_early": False}, STEM_MAPS, capability=80).asm["ptx"]
    assert "griddepcontrol" not in late
    assert start_of(torch.empty(1)) == {"is_early": False, "launch_pdl": False}


def tell_once() -> None:
    """Compile two kernels into an empty cache, then the same from it, then with somebody else listening."""
    from triton import knobs

    from rrbench.networks.fast.kernels import stem_kernels as stem

    class Written(Silent):
        def line(self, text: str) -> None:
            sys.stdout.write(f"{text}\n")

    others: list[dict[str, object]] = []
    with TemporaryDirectory() as empty, knobs.cache.scope():
        knobs.cache.dir = empty
        for listener in (None, None, lambda **said: others.append(said)):
            knobs.compilation.listener = listener
            tell_compiling(torch.device("cuda"), Written())
            for kernel in (stem._share, stem._gather):
                compiled(kernel, STEM, STEM_MAPS)
    assert [said["cache_hit"] for said in others] == [True, True], "somebody else's listener was taken away"


def compile_for_hopper() -> None:
    """Compile every Gluon kernel, in training and not, with shortcuts of both kinds."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon._runtime import GluonASTSource

    from rrbench.networks.fast.kernels import convolution_kernels as convolutions
    from rrbench.networks.fast.kernels import resident_kernels as resident

    def described(*block: int) -> str:
        layout = gl.NVMMASharedLayout.get_default_for(list(block), gl.bfloat16)
        return f"tensordesc<bf16{list(block)},{layout!r}>"

    def tiled(lines: int, width: int) -> dict[str, str]:
        source, target, weight = described(1, lines, 1, 16, 64), described(1, lines, 1, 16, width), described(width, 64)
        tiles = dict.fromkeys(("total", "skip", "active", "result", "maps", "past"), target)
        return tiles | {"source": source, "weight": weight, "side_source": source, "side_weight": weight}

    half, small, narrow, wide = tiled(4, 128), tiled(4, 64), tiled(8, 64), tiled(8, 128)
    chunks = {"source": described(1, 2, 1, 32, 64), "weight": described(64, 64)}
    chunks |= dict.fromkeys(("result", "added", "active", "seen"), "*bf16")
    alone = LINK | {"side_source": None, "side_weight": None, "side_inputs": 0, "stride": 1}
    side = LINK | {"side_inputs": 64, "stride": 2, "inputs": 128, "outputs": 128}
    summed = dict.fromkeys(RUNNING, None)
    # The one number that follows the number of images; the others are multiples of 16, as positions are.
    assert [given.name for given in resident.link.params if given.do_not_specialize] == ["tiles"]
    for kernel, types, known in (
        (convolutions.forward, half, side | summed | {"active": None, "skip": None}),
        (convolutions.forward, narrow, alone | summed | {"active": None}),
        (convolutions.forward, wide, side | {"sums": None, "skip": None}),
        (convolutions.backward, wide, side | {"past": None}),
        (convolutions.backward, half, side | {"sums": None}),
        (convolutions.backward, small, alone | {"sums": None}),
        (resident.link, chunks, LINK | {"result": None, "seen": None, "sums": None}),
        (resident.link, chunks, LINK | {"active": None, "added": None, "variance": None}),
    ):
        spelled = GluonASTSource(kernel, *spell(kernel, known, NUMBERS | types))
        made: Any = triton.compile(spelled, target=GPUTarget("cuda", 90, 32))
        # Multiplied by the matrix units, fetched by the copy engine.
        assert "wgmma" in made.asm["ptx"]
        assert "cp.async.bulk.tensor" in made.asm["ptx"]
        assert waits(made.asm["ptx"])
        assert bool(ADDS.search(made.asm["ptx"])) == ("sums" not in known)
        sys.stdout.write(f"{kernel.__name__}\n")


def choose_all() -> None:
    """Ask which kernels do a convolution of so many maps, and its shortcut."""
    from rrbench.networks.fast import resident_convolution, tiled_convolution
    from rrbench.networks.fast.fused_links import kernels_for
    from rrbench.networks.fast.links import Side

    def frozen(inputs: int, outputs: int, size: int, stride: int, dtype: torch.dtype) -> FrozenConvolution:
        made = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
        return FrozenConvolution(made, dtype)

    short, fused = torch.bfloat16, tiled_convolution
    # Inputs, outputs, size, stride; count, height and width of the maps; size of a shortcut, or none; precision.
    cases = [
        ((64, 64, 3, 1), (5, 32, 32), 0, short, resident_convolution),
        ((64, 64, 3, 1), (5, 32, 32), 1, short, fused),
        ((64, 64, 3, 1), (5, 16, 16), 0, short, fused),
        ((64, 128, 3, 2), (5, 32, 32), 1, short, fused),
        ((256, 512, 3, 2), (5, 2, 2), 1, short, fused),
        ((512, 512, 3, 1), (1, 1, 1), 0, short, fused),
        ((64, 64, 3, 1), (0, 32, 32), 0, short, None),
        ((64, 64, 3, 1), (5, 32, 32), 0, torch.float32, None),
        ((64, 64, 3, 1), (5, 32, 32), 3, short, None),
        ((128, 128, 1, 1), (5, 16, 16), 0, short, None),
        ((160, 160, 3, 1), (5, 32, 32), 0, short, None),
        ((640, 640, 3, 1), (5, 8, 8), 0, short, None),
        ((128, 128, 3, 1), (5, 9, 8), 0, short, None),
        ((128, 128, 3, 1), (5, 2, 256), 0, short, None),
        ((256, 512, 3, 2), (5, 1, 1), 0, short, None),
    ]
    for (inputs, outputs, size, stride), (count, height, width), shortcut, dtype, expected in cases:
        convolution = frozen(inputs, outputs, size, stride, dtype)
        given = torch.empty(count, outputs, max(height // stride, 1), max(width // stride, 1), dtype=dtype)
        side = Side(frozen(inputs, outputs, shortcut, stride, dtype), given) if shortcut else None
        found = kernels_for(convolution, side, torch.Size((count, inputs, height, width)))
        assert found is expected, (inputs, outputs, size, stride, count, height, width, shortcut, found)
    sys.stdout.write(f"{len(cases)} as expected\n")


def cut_all() -> None:
    """Cut the maps of ResNet-18's stages into tiles for the 132 units of an H200."""
    from rrbench.networks.fast.tiled_convolution import Tiling

    # Images, channels, height, width; kinds of positions; positions of a tile, and how many tiles.
    cases = [
        ((128, 128, 16, 16), 1, 128, 256),
        ((128, 256, 8, 8), 1, 128, 128),  # halves would be 256
        ((128, 512, 4, 4), 1, 64, 128),
        ((132, 512, 4, 4), 1, 64, 132),
        ((133, 512, 4, 4), 1, 128, 68),
        ((5000, 512, 4, 4), 1, 128, 2500),
        ((16, 128, 16, 16), 1, 64, 64),
        ((128, 128, 8, 8), 4, 128, 256),  # the way back of stride 2
        ((128, 256, 4, 4), 4, 128, 128),
        ((128, 64, 16, 16), 4, 128, 1024),
        ((1, 64, 4, 4), 1, 64, 1),
        ((1, 128, 4, 128), 1, 128, 4),  # no line fits into half a tile
    ]
    for shape, kinds, positions, tiles in cases:
        found = Tiling.of(shape, 132, kinds)
        assert found.width == min(shape[1], 128)
        many = math.prod(found.grid(kinds))
        assert (found.images * found.lines * found.columns, many) == (positions, tiles), (shape, kinds, found)
    sys.stdout.write(f"{len(cases)} as expected\n")


def compare(kernels: Any, channels: int, *, training: bool, has_more: bool) -> None:
    """Take the same maps forward and a gradient back both ways; in float32, since the interpreter cuts bf16 short."""
    generator = torch.Generator().manual_seed(channels)

    def draw() -> Tensor:
        drawn = torch.randn(3, channels, 15, 13, generator=generator)
        return drawn.contiguous(memory_format=torch.channels_last)

    maps, skip, gradient, side_gradient, past = (draw() for _ in range(5))
    weight, bias, mean, variance = torch.rand(4, channels, generator=generator) + 0.5
    more = {"side_gradient": side_gradient, "past": past} if has_more else {}
    found: list[list[Tensor]] = []
    for way in (kernels, norm_relu):
        norm = Norm(weight, bias, mean.clone(), variance.clone(), eps=1e-5, momentum=0.1)
        sums = Sums(2 * channels, maps.device)
        forth, back = (sums.take(channels) if training else None for _ in range(2))
        total, active, seen = way.forward(maps, skip if has_more else None, norm, forth)
        result = way.backward(gradient, seen, norm, back, **more)
        found.append([total, active, *seen, norm.mean, norm.variance, result, *([] if back is None else [back])])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


def compare_all() -> None:
    """Compare in every way that the kernels can be asked."""
    from rrbench.networks.fast.kernels import norm_relu_kernels

    norm_relu_kernels.PROGRAMS = 2  # fewer than there are pieces, so that each sums several
    ways = list(itertools.product((16, 160), (True, False), (True, False)))
    for channels, training, has_more in ways:
        compare(norm_relu_kernels, channels, training=training, has_more=has_more)
    sys.stdout.write(f"{len(ways)} alike\n")
    maps = torch.full((1, 16, 2, 2), torch.nan).contiguous(memory_format=torch.channels_last)
    weight, bias, mean, variance = torch.ones(4, 16)
    norm = Norm(weight, bias, mean, variance, eps=1e-5, momentum=0.1)
    assert bool(norm_relu_kernels.forward(maps, None, norm, None).active.isnan().all())
    sys.stdout.write("NaN stays\n")
    compare_stems()


def compare_stems() -> None:
    """Compare the first convolution and its way back."""
    from rrbench.networks.fast.kernels import stem_kernels

    shapes = list(itertools.product((1, 3), ((9, 8), (13, 16))))
    for colours, size in shapes:
        torch.manual_seed(colours)
        stem = FrozenConvolution(nn.Conv2d(colours, 16, 3, padding=1, bias=False), torch.float32)
        assert stem_kernels.fits(stem)
        images, sums = torch.rand(3, colours, *size), torch.zeros(32)
        expected = stem.forward(widen(images, stem))
        found = stem_kernels.forward(stem, images, sums)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(sums, torch.cat([expected.sum((0, 2, 3)), expected.square().sum((0, 2, 3))]))
        gradient = torch.randn(expected.shape).contiguous(memory_format=torch.channels_last)
        back = stem.backward(gradient, gradient.shape[2:])[:, :colours]
        torch.testing.assert_close(stem_kernels.backward(stem, gradient), back, rtol=1e-5, atol=1e-5)
    sys.stdout.write(f"{len(shapes)} stems alike\n")


if __name__ == "__main__":
    known = {
        "compile": compile_all,
        "compile-hopper": compile_for_hopper,
        "tell": tell_once,
        "choose": choose_all,
        "cut": cut_all,
        "compare": compare_all,
    }
    for work in sys.argv[1:]:
        sys.stdout.write(f"# {work}\n")
        try:
            known[work]()
            sys.stdout.write("done\n")
        except Exception:  # the next has a test of its own
            traceback.print_exc()
