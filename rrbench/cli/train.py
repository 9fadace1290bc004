"""`rrbench train`: one checkpoint."""

from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options
from rrbench.errors import UseError


def train(
    framework: Annotated[str, typer.Option(help="Training framework, such as pgd-at.")] = "pgd-at",
    rejector: Annotated[str, typer.Option(help="Rejector whose head and loss are trained along.")] = "confidence",
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
) -> None:
    """Train one network, a checkpoint after every epoch; run it again to go on after an interruption.

    Example: rrbench train --framework pgd-at --rejector rr --dataset cifar10 --network resnet18 --epochs 110
    """
    from rrbench.api import prepare
    from rrbench.progress import reporter

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
    trainings = list(job.plan.checkpoints())
    if len(trainings) > 1:
        raise UseError(f"train makes one checkpoint, not {', '.join(each.trained_as for each in trainings)}")
    training = trainings[0]
    job.runner.store.prepare()
    checkpoint = job.runner.checkpoint(training)
    chosen = checkpoint.facts["epoch"]
    record = checkpoint.facts["log"][chosen - 1]
    print(
        f"{training.trained_as} on {training.dataset}: epoch {chosen} of {training.recipe.epochs}, "
        f"clean accuracy {checkpoint.facts['clean_accuracy']:.2f} %, "
        f"{training.chooser} {record['robust_accuracy']:.2f} % ({training.recipe.choose_on})"
    )
    print(f"{checkpoint.path}\nsha256 {checkpoint.sha256}")
