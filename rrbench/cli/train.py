"""`rrbench train`: checkpoints, several at once where there is room."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options
from rrbench.errors import UseError


def train(
    framework: Annotated[str, typer.Option(help="Training framework, such as pgd-at; or several.")] = "pgd-at",
    rejector: Annotated[
        str, typer.Option(help="Rejector whose head and loss are trained along, such as rr; or several.")
    ] = "confidence",
    dataset: options.Dataset = None,
    network: options.Network = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the preset's; the schedule shrinks with it.")] = None,
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
) -> None:
    """Train networks, a checkpoint after every epoch; run it again to go on after an interruption.

    Example: rrbench train --framework pgd-at --rejector rr,ebd --dataset cifar10 --network resnet18 --epochs 110
    """
    from rrbench.api import prepare
    from rrbench.engines.beside import beside, default_jobs
    from rrbench.progress import reporter
    from rrbench.zoo.pack import add

    job = prepare(
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
        recipe={} if epochs is None else {"epochs": epochs},
        report=reporter(),
    )
    trainings, runner = list(job.plan.checkpoints()), job.runner
    if jobs is not None and jobs < 1:
        raise UseError(f"--jobs must be at least 1, not {jobs}")
    runner.store.prepare()
    checkpoints = beside(runner, trainings, runner.checkpoint, jobs or default_jobs(runner.device))
    for training, checkpoint in zip(trainings, checkpoints, strict=True):
        chosen = checkpoint.facts["epoch"]
        record = checkpoint.facts["log"][chosen - 1]
        print(
            f"{training.trained_as} on {training.dataset}: epoch {chosen} of {training.recipe.epochs}, "
            f"clean accuracy {checkpoint.facts['clean_accuracy']:.2f} %, "
            f"{training.chooser} {record['robust_accuracy']:.2f} % ({training.recipe.choose_on})"
        )
        print(f"{checkpoint.path}\nsha256 {checkpoint.sha256}")
        if pack is not None:
            entry = add(pack, runner, training, shlex.join(["rrbench", *sys.argv[1:]]))
            print(
                f"packed: clean accuracy {entry.clean_accuracy:.2f} %, "
                f"{training.chooser} {entry.robust_accuracy:.2f} % ({training.recipe.choose_on})"
            )
            print(f"{pack / entry.file}\nsha256 {entry.sha256}")
