"""`rrbench eval`: measures somebody's own network, from its file."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options
from rrbench.cli.run import parse_seeds, show_rows


def evaluate(
    models: Annotated[list[str], typer.Argument(help="FILE.py:FUNCTION, or several; the function makes the network.")],
    data: Annotated[
        str, typer.Option(help="An .npz file, a folder of images, or a data set such as cifar10; images in [0, 1].")
    ],
    weights: Annotated[
        list[Path] | None,
        typer.Option(help="A .safetensors or .pt file; give it again for each model, or several for one function."),
    ] = None,
    names: Annotated[str | None, typer.Option(help="Names of the models in rows, such as plain,robust.")] = None,
    rejectors: Annotated[str, typer.Option(help="Rejectors, such as confidence,energy; or all.")] = "confidence",
    attacks: options.Attacks = None,
    budgets: Annotated[str | None, typer.Option(help="Such as linf:8/255 (default of files), l2:128/255.")] = None,
    preset: options.Preset = "quick",
    config: options.Config = None,
    out: options.Out = Path("runs"),
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    limit: options.Limit = None,
    seed: Annotated[int | None, typer.Option(help="One seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, such as 0,1,2.")] = None,
    keep: Annotated[str | None, typer.Option(help="Keep all attacked images and/or features: images,features.")] = None,
    stop_after: options.StopAfter = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost; do nothing.")] = False,
) -> None:
    """Measure your own trained networks, with rejectors under attacks, and print one row each.

    The function takes no argument and returns an nn.Module, which takes images in [0, 1] and returns logits.

    Example: rrbench eval my_model.py:build --weights w.safetensors --data images.npz --attacks pgd100,worst-case
    """
    from rrbench.api import RunOptions, execute, prepare
    from rrbench.engines.estimate import describe_plan
    from rrbench.objects import find_data, networks_of
    from rrbench.progress import reporter

    job = prepare(
        RunOptions(
            rejectors,
            attacks,
            dataset=find_data(data),
            network=networks_of(models, [str(path) for path in weights or ()], names),
            budgets=budgets,
            preset=preset,
            config=config,
            out=out,
            data_dir=data_dir,
            device=device,
            precision=precision,
            limit=limit,
            seeds=parse_seeds(seed, seeds),
            keep=keep,
            stop_after=stop_after,
            report=reporter(),
        )
    )
    if dry_run:
        print(describe_plan(job.plan, job.runner))
        return
    show_rows(execute(job, ["rrbench", *sys.argv[1:]]), out)
