"""`rrbench train`: trains checkpoints, several at once if the GPU has room."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rrbench.cli import options
from rrbench.errors import CellError, StoppedError, UseError, no_exit, reason

if TYPE_CHECKING:
    from rrbench.files.checkpoints import Checkpoint
    from rrbench.planning.cells import Training
    from rrbench.zoo import Entry


def train(
    framework: Annotated[str, typer.Option(help="Training framework, such as pgd-at; or several.")] = "pgd-at",
    rejector: Annotated[
        str, typer.Option(help="Rejector whose head and loss are trained along, such as rr; or several.")
    ] = "confidence",
    dataset: options.Dataset = None,
    network: options.Network = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the preset's; the schedule shrinks with it.")] = None,
    average: Annotated[
        float | None,
        typer.Option(help="Decay of the running mean of the weights, such as 0.999; 0: no mean."),
    ] = None,
    preset: options.Preset = "quick",
    config: options.Config = None,
    out: options.Out = Path("runs"),
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    seed: Annotated[int, typer.Option(help="Seed of weights, order and attacks.")] = 0,
    jobs: Annotated[
        int | None, typer.Option(help="Trainings at once; by default one, on a GPU what fits it, at most four.")
    ] = None,
    pack: Annotated[
        Path | None, typer.Option(help="Also put 8-bit weights, measured anew, into this zoo (see run --zoo).")
    ] = None,
    list_in: Annotated[
        Path | None,
        typer.Option(
            "--list",
            help="Also list them in the index of this zoo, without weights: for networks that you do not keep.",
        ),
    ] = None,
    stop_after: options.StopAfter = None,
) -> None:
    """Train networks, a checkpoint after every epoch; run it again to go on after an interruption.

    Example: rrbench train --framework pgd-at --rejector rr,ebd --dataset cifar10 --network resnet18 --epochs 110
    """
    from rrbench.api import RunOptions, prepare, tell_kept
    from rrbench.engines.side_by_side import default_jobs, train_side_by_side
    from rrbench.measuring.pack import add, add_unkept
    from rrbench.progress import reporter

    job = prepare(
        RunOptions(
            rejector,
            "clean",
            frameworks=framework,
            dataset=dataset,
            network=network,
            preset=preset,
            config=config,
            out=out,
            data_dir=data_dir,
            device=device,
            precision=precision,
            retrain=True,
            seeds=(seed,),
            stop_after=stop_after,
            recipe={key: value for key, value in (("epochs", epochs), ("average", average)) if value is not None},
            report=reporter(),
        )
    )
    trainings, materials = list(job.plan.checkpoints()), job.materials
    if jobs is not None and jobs < 1:
        raise UseError(f"--jobs must be at least 1, not {jobs}")
    materials.store.prepare()

    def work(training: "Training") -> "tuple[Checkpoint, Entry | None]":
        checkpoint = materials.checkpoint(training)
        command = shlex.join(["rrbench", *sys.argv[1:]])
        # Pack now: if another training hangs or fails, this one is already in the zoo.
        try:
            with no_exit():
                packed = add(pack, materials, training, checkpoint, command) if pack else None
        except Exception as error:
            raise CellError(f"trained, in {checkpoint.path}, but not packed: {reason(error)}") from None
        if list_in:
            add_unkept(list_in, training, checkpoint, command, packed)
        return checkpoint, packed

    try:
        ended = train_side_by_side(materials, trainings, work, jobs or default_jobs(materials.device))
    except KeyboardInterrupt:
        done = sum(materials.source(training).path.is_file() for training in trainings)
        tell_kept(materials, job.plan, f"{done} of {len(trainings)} checkpoints")
        raise
    for each in ended:
        if each.result is not None:
            _print(each.training, *each.result, pack)
    left = [str(each.error) for each in ended if isinstance(each.error, StoppedError)]
    if left:
        materials.report.line(
            f"stopped after {stop_after}; left: {', '.join(left)}; run the same command again to go on"
        )
    if len(ended) == 1 and isinstance(ended[0].error, UseError):
        raise ended[0].error
    failed = [
        f"{each.training.trained_as}: {reason(each.error)}"
        for each in ended
        if each.error is not None and not isinstance(each.error, StoppedError)
    ]
    if failed:
        raise CellError(f"{len(failed)} of {len(ended)} trainings failed: {'; '.join(failed)}")


def _print(training: "Training", checkpoint: "Checkpoint", packed: "Entry | None", folder: Path | None) -> None:
    """Print the accuracies of a training, and the path of its checkpoint."""
    chosen = checkpoint.facts["epoch"]
    record = checkpoint.facts["log"][chosen - 1]
    judge = f"({training.recipe.choose_on})"
    print(
        f"{training.trained_as} on {training.dataset}: epoch {chosen} of {training.recipe.epochs}, "
        f"clean accuracy {checkpoint.facts['clean_accuracy']:.2f} %, "
        f"{training.chooser} {record['robust_accuracy']:.2f} % {judge}"
    )
    print(f"{checkpoint.path}\nsha256 {checkpoint.sha256}")
    if packed is not None and folder is not None:
        print(
            f"packed: clean accuracy {packed.clean_accuracy:.2f} %, "
            f"{training.chooser} {packed.robust_accuracy:.2f} % {judge}"
        )
        print(f"{folder / packed.file}\nsha256 {packed.sha256}")
