"""The whole comparison: what it runs on, and its parts one after another."""

from collections.abc import Collection, Iterator
from fractions import Fraction

import torch
from torch.utils.flop_counter import FlopCounterMode

from rrbench.api import Job
from rrbench.bench import attacks
from rrbench.bench.cw import IMAGES as CW_IMAGES
from rrbench.bench.cw import cw
from rrbench.bench.measurement import Measurement, timed
from rrbench.bench.training import curve, training
from rrbench.compute.devices import describe
from rrbench.compute.eval_mode import frozen
from rrbench.measuring.measured_network import MeasuredNetwork
from rrbench.plugins.registry import build
from rrbench.protocols import Rejector

PARTS = ("pgd", "training", "autoattack", "cw", "curve")
SIDE = 8192  # of the square matrices whose product gives the GPU's own rate
PRODUCTS = 20


def compare(job: Job, parts: Collection[str], peers: frozenset[str], count: int | None) -> Iterator[Measurement | str]:
    """Measure the parts asked for, slow ones on `count` inputs; a string is a remark for the reader."""
    device = job.materials.device
    peak = matrix_rate(device)
    if peak:
        seconds = 2 * SIDE**3 / peak
        yield Measurement("matrix product", "torch", describe(device), SIDE, "bf16", share_of_peak=1.0, seconds=seconds)
    arena = make_arena(job, peak) if {"pgd", "autoattack", "cw"} & set(parts) else None
    if arena and "pgd" in parts:
        yield from attacks.pgd(arena, peers)
    if "training" in parts:
        yield from training(job.materials, next(iter(job.plan.checkpoints())))
    if arena and "autoattack" in parts:
        yield from attacks.autoattack(arena, peers, count or attacks.PACKAGE_IMAGES)
    if arena and "cw" in parts:
        yield from cw(arena, peers, count or CW_IMAGES)
    if "curve" in parts:
        yield from curve(job.materials, next(iter(job.plan.checkpoints())))


def make_arena(job: Job, peak: float | None) -> attacks.Arena:
    """Set up the job's first cell with a budget for attacks; train its network if there is no checkpoint."""
    cell = next(cell for cell in job.plan.cells if cell.budget is not None)
    job.materials.store.prepare()
    measured = job.materials.measured_network(cell, job.materials.checkpoint(cell.training))
    step = dict(cell.attack.settings)["step"]
    assert cell.budget is not None
    assert isinstance(step, Fraction)
    rejector = build(Rejector, cell.rejector)
    return attacks.Arena(measured, rejector, cell.budget, step, job.config, peak, operations(measured))


def matrix_rate(device: torch.device) -> float | None:
    """Return a GPU's bf16 operations a second, on random data."""
    if device.type != "cuda":
        return None
    left, right = (torch.randn(SIDE, SIDE, device=device, dtype=torch.bfloat16) for _ in range(2))

    def multiply() -> None:
        for _ in range(PRODUCTS):
            torch.mm(left, right)

    multiply()
    _, seconds, _ = timed(multiply, device)
    return 2 * SIDE**3 * PRODUCTS / seconds


def operations(measured: MeasuredNetwork) -> float:
    """Count the operations of one image's gradient, forward and backward, with PyTorch's own counter."""
    image = measured.test().images[:1].clone().requires_grad_()
    with frozen(measured.network), FlopCounterMode(display=False) as counter:
        measured.network(image).logits.sum().backward()
    return float(counter.get_total_flops())
