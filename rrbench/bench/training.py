"""Seconds an epoch: the plain step, ours alone, and several trainings side by side; and whether all learn the same."""

import math
import threading
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

from rrbench.bench.measurement import OURS, Measurement, timed
from rrbench.compute.devices import describe, place, tf32, tried_kernels
from rrbench.compute.instrumented import Instrumented
from rrbench.engines.side_by_side import default_jobs, train_side_by_side
from rrbench.files.disk import Files
from rrbench.measuring.materials import Materials
from rrbench.planning.cells import Training
from rrbench.plugins.registry import build
from rrbench.protocols import DataSource, Framework, Rejector
from rrbench.training.captured_steps import Step
from rrbench.training.train import Epoch, build_network, epochs, make_optimizer

PLAIN = "plain step"
PLAIN_STEPS = 40  # timed plain steps; the time of an epoch is computed from them
EPOCHS = 3  # of ours; the first two also capture
CURVE = 10  # epochs in which ours must learn as much as the plain step


def training(materials: Materials, example: Training) -> Iterator[Measurement]:
    """Measure an epoch of one training with its choice of epoch; the plain step without."""
    gradients = build(Framework, example.framework).gradients_per_image()
    size = materials.data(example.dataset, "train").size

    def line(name: str, seconds: float, memory: float | None) -> Measurement:
        return Measurement(
            what="training",
            implementation=name,
            device=describe(materials.device),
            batch=example.recipe.batch,
            precision=materials.precision,
            gradients_per_second=gradients * size / seconds,
            seconds=seconds,
            peak_memory_gib=memory,
        )

    for jobs in dict.fromkeys([1, default_jobs(materials.device)]):
        seconds, memory = _epoch_seconds(materials, example, jobs)
        yield line(OURS if jobs == 1 else f"{OURS}, {jobs} side by side", seconds / jobs, memory)
    yield line(PLAIN, *_plain_seconds(materials, example))


def curve(materials: Materials, example: Training) -> Iterator[Measurement | str]:
    """Train some epochs at the recipe's first rate, our way and the plain way; a line for each epoch of each."""
    recipe = replace(example.recipe, epochs=CURVE, drops=())
    logs: dict[str, list[dict[str, float]]] = {}
    for name, is_plain in ((OURS, False), (PLAIN, True)):
        logs[name] = []
        with TemporaryDirectory() as folder:
            for record, seconds in _train(materials, replace(example, recipe=recipe), Path(folder), is_plain=is_plain):
                logs[name].append(record)
                yield Measurement(
                    what=f"epoch {record['epoch']}",
                    implementation=name,
                    device=describe(materials.device),
                    batch=recipe.batch,
                    precision=materials.precision,
                    robust_accuracy=record["robust_accuracy"],
                    seconds=seconds,
                )
    for metric in ("clean_accuracy", "robust_accuracy"):
        ours, plain = ([record[metric] for record in logs[name]] for name in (OURS, PLAIN))
        gaps = [left - right for left, right in zip(ours, plain, strict=True)]
        shown = f"mean {fmean(gaps):+.2f}, largest {max(gaps, key=abs):+.2f} points"
        yield f"{metric} less the plain step's over {CURVE} epochs: {shown}; ours {ours}, plain {plain}"


def _epoch_seconds(materials: Materials, example: Training, jobs: int) -> tuple[float, float | None]:
    """Return the mean seconds of the last epoch of `jobs` trainings of other seeds at once."""
    # Chosen on all test images, as the paper's recipe does. At the first rate: a drop is captured anew, and all of the
    # recipe's would fall into so short a training.
    recipe = replace(example.recipe, epochs=EPOCHS, choose_on="test", drops=())
    trainings = [replace(example, recipe=recipe, seed=seed) for seed in range(jobs)]
    with TemporaryDirectory() as folder:

        def work(each: Training) -> float:
            path = Path(folder) / str(each.seed)
            path.mkdir()
            return in_step(_train(materials, each, path), barrier)

        barrier = threading.Barrier(jobs)
        ended, _, memory = timed(lambda: train_side_by_side(materials, trainings, work, jobs), materials.device)
    return fmean(each.get() for each in ended), memory


def in_step(going: Iterable[Epoch], barrier: threading.Barrier) -> float:
    """Train, starting every epoch together with the other trainings, and return the seconds of the last epoch.

    So no epoch is timed while another training has ended or not started yet.
    """
    seconds = math.nan
    try:
        barrier.wait()
        for epoch in going:
            seconds = epoch.seconds
            barrier.wait()
    except threading.BrokenBarrierError:
        pass  # another training failed, and says why
    except BaseException:
        barrier.abort()  # the others must not wait for a training that has failed
        raise
    return seconds


def _train(materials: Materials, training: Training, folder: Path, *, is_plain: bool = False) -> Iterator[Epoch]:
    return epochs(
        training,
        lambda split: materials.data(training.dataset, split),
        Files(folder / "chosen.safetensors", folder / "last.safetensors", folder / "resume.safetensors"),
        device=materials.device,
        precision=materials.precision,
        report=materials.report,
        is_plain=is_plain,
    )


def _plain_seconds(materials: Materials, example: Training) -> tuple[float, float | None]:
    """Return the seconds of an epoch of plain steps: neither captured nor through a twin."""
    info, data = build(DataSource, example.dataset).info, materials.data(example.dataset, "train")
    rejector = build(Rejector, example.rejector)
    network = place(build_network(example, info, rejector), materials.device)
    model = Instrumented(network, materials.precision).train()
    optimizer = make_optimizer(network, example.recipe)
    framework = build(Framework, example.framework)
    step = Step(framework, rejector, model, optimizer, info, data, materials.report, example.trained_as)
    pieces = data.ids.argsort().split(example.recipe.batch)
    pieces = [piece for piece in pieces if len(piece) == example.recipe.batch][:PLAIN_STEPS]
    step.begin(example, 0)

    def take() -> None:
        for piece in pieces:
            step.take(piece, example.recipe.learning_rate)

    with tf32(materials.precision == "tf32"), tried_kernels(True):  # as any training has them
        step.take(pieces[0], example.recipe.learning_rate)
        _, seconds, memory = timed(take, materials.device)
    return seconds / len(pieces) * (data.size / example.recipe.batch), memory
