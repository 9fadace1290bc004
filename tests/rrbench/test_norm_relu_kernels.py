"""The Triton kernels where there is no GPU: compiled for one, and interpreted against plain PyTorch.

Each in a process of its own, since Triton decides once, when it is loaded, whether it interprets. It lies beside the
environment, not in it: PyTorch would load it in every process that trains, which takes seconds.
"""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rrbench.networks import norm_relu
from rrbench.networks.norm_relu import Norm, Sums

TRITON = Path(sys.prefix) / "triton"
WHOLE = {"rows": "i32", "eps": "fp32", "momentum": "fp32"}
MAPS = ("maps", "skip", "total", "active", "gradient", "beside", "past", "result")
SIZES = {"channels": 160, "width": 32, "height": 64, "tiles": 4}


@pytest.mark.parametrize(
    ("work", "is_interpreted", "expected"),
    [
        ("compile", False, ["_sums", "_forward", "_back_sums", "_backward"]),
        ("compare", True, ["8 alike", "NaN stays"]),
    ],
    ids=["compiled", "interpreted"],
)
def test_without_a_gpu(work: str, is_interpreted: bool, expected: list[str], tmp_path: Path) -> None:
    if not TRITON.is_dir():
        pytest.skip("needs Triton, which is for Linux: make .venv/triton")
    environment = os.environ | {
        "PYTHONPATH": str(TRITON),
        "TRITON_CACHE_DIR": str(tmp_path),
        "TRITON_INTERPRET": str(int(is_interpreted)),
    }
    ended = subprocess.run(
        [sys.executable, __file__, work], env=environment, capture_output=True, text=True, timeout=120
    )
    assert (ended.returncode, ended.stdout.splitlines()) == (0, expected), ended.stderr


def compile_all() -> None:
    """Compile every kernel for an H200, with all that it can do."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rrbench.networks import norm_relu_kernels as kernels

    for kernel in (kernels._sums, kernels._forward, kernels._back_sums, kernels._backward):
        constants = {each.name: SIZES.get(each.name, True) for each in kernel.params if each.is_constexpr}
        signature = {
            each: "constexpr" if each in constants else WHOLE.get(each, "*bf16" if each in MAPS else "*fp32")
            for each in kernel.arg_names
        }
        places = {(kernel.arg_names.index(each),): value for each, value in constants.items()}
        compiled: Any = triton.compile(ASTSource(kernel, signature, places), target=GPUTarget("cuda", 90, 32))
        assert compiled.asm["cubin"].startswith(b"\x7fELF")
        # Only those that sum share what they write with others.
        assert ("atom.global" in compiled.asm["ptx"]) == ("sums" in kernel.__name__)
        sys.stdout.write(f"{kernel.__name__}\n")


def compare(kernels: Any, channels: int, *, training: bool, has_more: bool) -> None:
    """Take the same maps forward and a gradient back both ways; in float32, since the interpreter cuts bf16 short."""
    generator = torch.Generator().manual_seed(channels)

    def draw() -> Tensor:
        drawn = torch.randn(3, channels, 15, 13, generator=generator)
        return drawn.contiguous(memory_format=torch.channels_last)

    maps, skip, gradient, beside, past = (draw() for _ in range(5))
    weight, bias, mean, variance = torch.rand(4, channels, generator=generator) + 0.5
    more = {"beside": beside, "past": past} if has_more else {}
    found: list[list[Tensor]] = []
    for way in (kernels, norm_relu):
        norm = Norm(weight, bias, mean.clone(), variance.clone(), eps=1e-5, momentum=0.1)
        sums = Sums(2 * channels, maps.device)
        forth, back = (sums.take(channels) if training else None for _ in range(2))
        active, seen = way.forward(maps, skip if has_more else None, norm, forth)
        result = way.backward(gradient, seen, norm, back, **more)
        found.append([active, *seen, norm.mean, norm.variance, result, *([] if back is None else [back])])
    for ours, plain in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-5, atol=1e-5)


def compare_all() -> None:
    """Compare in every way that the kernels can be asked."""
    from rrbench.networks import norm_relu_kernels

    norm_relu_kernels.PROGRAMS = 2  # fewer than there are pieces, so that each sums several
    ways = list(itertools.product((16, 160), (True, False), (True, False)))
    for channels, training, has_more in ways:
        compare(norm_relu_kernels, channels, training=training, has_more=has_more)
    sys.stdout.write(f"{len(ways)} alike\n")
    maps = torch.full((1, 16, 2, 2), torch.nan).contiguous(memory_format=torch.channels_last)
    norm = Norm(*torch.ones(4, 16), eps=1e-5, momentum=0.1)
    assert bool(norm_relu_kernels.forward(maps, None, norm, None)[0].isnan().all())
    sys.stdout.write("NaN stays\n")


if __name__ == "__main__":
    {"compile": compile_all, "compare": compare_all}[sys.argv[1]]()
