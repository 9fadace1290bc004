"""Times a network whose speed nobody has measured: gradients per second on a few images."""

import time

import torch
from torch import nn

from rrbench.ascent import cross_entropy, slope
from rrbench.compute.batching import batch_size
from rrbench.compute.devices import Precision, place, tf32
from rrbench.compute.eval_mode import frozen
from rrbench.compute.instrumented import Instrumented
from rrbench.errors import no_exit
from rrbench.lending import kept, surroundings_kept
from rrbench.measuring.measured_network import changes_itself
from rrbench.names import Choice
from rrbench.planning.cells import Given, Training
from rrbench.plugins.registry import build
from rrbench.protocols import DataInfo, DataSource, NetworkSource, Rejector
from rrbench.training.train import build_network

LONG_ENOUGH = 0.1  # seconds: a batch that takes so long tells the speed
TOO_LONG = 1.0  # seconds: such a batch is not repeated
GROWTH = 4  # of the batch, as long as it takes less


def gradients_per_second(
    training: Training, rejector: Choice, device: torch.device, precision: Precision, *, is_exact: bool
) -> float | None:
    """Return how many gradients a second a network gives on this device in a run of this precision; None if it fails.

    `is_exact` is for attacks whose forward pass is in float32 whatever the run's precision is.
    """
    info = build(DataSource, training.dataset).info
    try:
        with no_exit(), surroundings_kept():
            network = _network(training, rejector, info, device)
            with frozen(network), kept(network, changes_itself), tf32(precision != "fp32"):
                return _speed(Instrumented(network, "fp32" if is_exact else precision), info, device)
    except Exception:  # a network may fail in any way, and its GPU may be in another machine
        return None
    finally:
        if device.type == "cuda":
            torch.cuda.empty_cache()  # other processes may need the memory of the largest batch


def _network(training: Training, rejector: Choice, info: DataInfo, device: torch.device) -> nn.Module:
    if isinstance(training, Given):
        return build(NetworkSource, training.network).build(info, build(Rejector, rejector)).to(device)
    return place(build_network(training, info, build(Rejector, training.rejector)), device)


def _speed(network: Instrumented, info: DataInfo, device: torch.device) -> float | None:
    """Take larger batches, up to that of attacks: small ones are slow, and a large one of a large network is long."""
    most = max(1, min(batch_size(device, info.shape), info.test_size))
    size, found = min(2, most), None  # some networks cannot answer a single image
    while True:
        try:
            seconds = _seconds(network, size, info, device)
            if seconds < TOO_LONG:
                # The first time a batch has a new size, it also waits for memory and for the choice of kernels.
                seconds = min(seconds, _seconds(network, size, info, device))
        except RuntimeError:  # too little memory, say: attacks then take smaller batches, too
            return found
        found = size / seconds
        if seconds >= LONG_ENOUGH or size == most:
            return found
        size = min(GROWTH * size, most)


def _seconds(network: Instrumented, size: int, info: DataInfo, device: torch.device) -> float:
    images = torch.full((size, *info.shape), 0.5, device=device)  # what they show does not change the time
    labels = torch.zeros(size, dtype=torch.long, device=device)
    begin = time.perf_counter()
    _, _, gradient = slope(network, images, lambda outputs: cross_entropy(outputs, labels))
    gradient.sum().item()  # waits for the device
    return time.perf_counter() - begin
