"""One line of a speed comparison, and tables of such lines."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields, replace
from time import perf_counter
from typing import TypeVar

import torch

from rrbench.rows.tables import render

OURS = "rrbench"
GIB = 2**30
Result = TypeVar("Result")


@dataclass(frozen=True)
class Measurement:
    """The columns of `results/bench/*.csv`, in order; a column that does not apply is empty."""

    what: str
    implementation: str
    device: str
    batch: int | None = None
    precision: str = ""
    gradients_per_second: float | None = None
    ratio: float | None = None  # how many times faster rrbench is than this
    robust_accuracy: float | None = None  # percent, by a new pass in float32; for an epoch, from the training log
    share_of_peak: float | None = None  # of the GPU's own rate of bf16 matrix products
    seconds: float | None = None
    peak_memory_gib: float | None = None
    images_per_second: float | None = None
    success: float | None = None  # share of images that end wrong, by a new pass in float32
    l2_distance: float | None = None  # mean over those images; not squared, unlike the distance of a row


def timed(work: Callable[[], Result], device: torch.device) -> tuple[Result, float, float | None]:
    """Return the result of `work`, its seconds until the device is done, and on a GPU the peak memory in GiB."""
    if device.type != "cuda":
        begin = perf_counter()
        return work(), perf_counter() - begin, None
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    begin = perf_counter()
    result = work()
    torch.cuda.synchronize(device)
    return result, perf_counter() - begin, torch.cuda.max_memory_allocated(device) / GIB


def with_ratios(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Fill in how many times faster rrbench's first line of the same `what` is: by gradients a second, or seconds."""
    ours: dict[str, Measurement] = {}
    for each in measurements:
        if each.implementation == OURS:
            ours.setdefault(each.what, each)
    return [
        each if each.ratio is not None else replace(each, ratio=_ratio(ours.get(each.what), each))
        for each in measurements
    ]


def _ratio(ours: Measurement | None, other: Measurement) -> float | None:
    if ours is None:
        return None
    if ours.gradients_per_second and other.gradients_per_second:
        return ours.gradients_per_second / other.gradients_per_second
    return other.seconds / ours.seconds if ours.seconds and other.seconds else None


FORMATS = {
    "gradients_per_second": "{:.0f}",
    "ratio": "{:.2f}",
    "robust_accuracy": "{:.2f}",
    "share_of_peak": "{:.3f}",
    "seconds": "{:.3f}",
    "peak_memory_gib": "{:.2f}",
    "images_per_second": "{:.2f}",
    "success": "{:.4f}",
    "l2_distance": "{:.4f}",
}
HEADERS = {
    "gradients_per_second": "gradients/s",
    "robust_accuracy": "accuracy",
    "share_of_peak": "of peak",
    "seconds": "s",
    "peak_memory_gib": "GiB",
    "images_per_second": "images/s",
    "l2_distance": "l2 distance",
}  # on a screen; of other columns it is the name


def to_csv(measurements: Sequence[Measurement]) -> str:
    """Write the lines as CSV."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([field.name for field in fields(Measurement)])
    writer.writerows(_texts(each) for each in measurements)
    return buffer.getvalue()


def to_text(measurements: Sequence[Measurement]) -> str:
    """Arrange the lines for a screen, without the device and without columns that are empty everywhere."""
    columns = zip(_names(), *map(_texts, measurements), strict=True)
    shown = [column for column in columns if column[0] != "device" and any(column[1:])]
    header, *lines = map(list, zip(*shown, strict=True))
    return render([HEADERS.get(name, name) for name in header], lines, "text")


def _names() -> list[str]:
    return [field.name for field in fields(Measurement)]


def _texts(measurement: Measurement) -> list[str]:
    values = asdict(measurement).items()
    return ["" if value is None else FORMATS.get(name, "{}").format(value) for name, value in values]
