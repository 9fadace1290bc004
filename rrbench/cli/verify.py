"""`rrbench verify`: check that results are what they say."""

from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options


def verify(
    results: Annotated[Path, typer.Argument(help="A work folder, or a folder of published results.")] = Path("runs"),
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat every attack as well.")] = False,
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
) -> None:
    """Recompute every metric from the scores, check hashes, replay stored images on the checkpoints.

    Example: rrbench verify runs --rerun
    """
    from rrbench.datasets.search import roots
    from rrbench.devices import find_device
    from rrbench.progress import reporter
    from rrbench.verify import verify_folder

    findings = verify_folder(results, roots(data_dir), find_device(device), rerun=rerun, report=reporter())
    for line in findings.problems:
        print(line)
    print(findings.summary())
    if findings.problems:
        raise typer.Exit(1)
