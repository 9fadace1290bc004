"""`rrbench report`: writes results as an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options


def report(
    results: Annotated[Path, typer.Argument(help="A work folder, or a results CSV (then without images).")] = Path(
        "runs"
    ),
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
) -> None:
    """Write one HTML file with summary, tables, plots, attacked images and commands; it needs no network.

    Example: rrbench report runs --out report.html
    """
    from rrbench.report import write_report

    options.check_html(out, "a report")
    write_report(options.results_at(results), out)
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MB)")
