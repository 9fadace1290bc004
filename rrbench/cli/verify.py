"""`rrbench verify`: checks stored results."""

from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options


def verify(
    results: Annotated[Path, typer.Argument(help="A work folder, or a folder of published results.")] = Path("runs"),
    rerun: Annotated[
        bool,
        typer.Option("--rerun", help="Repeat every attack as well; compare certainties, metrics, costs and notes."),
    ] = False,
    allow_unchecked: Annotated[
        bool,
        typer.Option("--allow-unchecked", help="Exit 0 although checkpoints or data sets of some cells are not here."),
    ] = False,
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
) -> None:
    """Recompute every metric from the scores, check hashes and keys, replay stored images on the checkpoints.

    Exits with 1 where something is wrong, or could not be checked.

    Example: rrbench verify runs --rerun
    """
    from rrbench.compute.devices import find_device
    from rrbench.datasets.search import roots
    from rrbench.progress import reporter
    from rrbench.verifying.verify import verify_folder

    findings = verify_folder(
        options.results_at(results), roots(data_dir), find_device(device), rerun=rerun, report=reporter()
    )
    for line in findings.lines():
        print(line)
    print(findings.summary())
    if findings.problems or (findings.unchecked and not allow_unchecked):
        raise typer.Exit(1)
