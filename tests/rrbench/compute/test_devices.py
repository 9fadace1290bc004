"""Devices: which precision a GPU gets, and which switches are restored after a block."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from rrbench.compute.devices import find_precision, free_memory, tf32, tried_kernels
from rrbench.errors import UseError
from rrbench.progress import Report

CUDA = torch.device("cuda")


@pytest.mark.parametrize(("capability", "expected"), [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "fp32")])
def test_a_gpu_that_has_no_bf16_is_not_given_it(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], expected: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: {"cuda": capability}[device.type])
    assert find_precision("auto", CUDA) == expected
    assert find_precision("tf32", CUDA) == "tf32"
    assert find_precision("auto", torch.device("cpu")) == "fp32"


def test_elsewhere_a_gpu_is_taken_for_one_that_has_bf16_and_a_cpu_has_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_precision("auto", CUDA) == "bf16"
    assert find_precision("auto", torch.device("cpu")) == "fp32"
    with pytest.raises(UseError, match="unknown precision 'fp64'; one of auto, fp32, tf32, bf16"):
        find_precision("fp64", CUDA)


def test_who_leaves_first_takes_no_shortcut_from_those_still_inside() -> None:
    was = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    first, second, left = threading.Event(), threading.Event(), threading.Event()
    seen = []

    def leaves_first() -> None:
        with tried_kernels(True), tf32(True):
            first.set()
            second.wait(10)
        left.set()

    def stays() -> None:
        first.wait(10)
        with tried_kernels(True), tf32(True):
            second.set()
            left.wait(10)
            seen.append((torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32))

    with tried_kernels(True), tf32(True), ThreadPoolExecutor(2) as pool:
        for work in (leaves_first, stays):
            pool.submit(work)
    assert seen == [(True, True)]
    now = torch.backends.cudnn.benchmark, torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    assert now == was


@pytest.mark.parametrize("before", [True, False])
def test_shortcuts_are_put_back(before: bool) -> None:
    was = torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32
    try:
        torch.backends.cudnn.benchmark = torch.backends.cudnn.allow_tf32 = before
        with tried_kernels(True), tf32(not before):
            assert torch.backends.cudnn.benchmark
            assert torch.backends.cudnn.allow_tf32 == (not before)
        with tried_kernels(False):
            assert torch.backends.cudnn.benchmark == before, "another's wish is not taken back"
        assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32) == (before, before)
    finally:
        torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = was


def test_free_memory_counts_what_pytorch_holds_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (100, 1000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 50)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: 20)
    assert free_memory(CUDA) == 130


def test_whoever_prepares_a_run_hears_of_compiling(bench: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[torch.device, Report]] = []
    monkeypatch.setattr("rrbench.api.tell_compiling", lambda *asked: told.append(asked))
    job = bench.prepare("confidence", "clean")
    assert told == [(job.materials.device, bench.report)]
