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
    from rrbench.errors import UseError
    from rrbench.report import write_report

    if out.suffix not in (".html", ".htm"):
        raise UseError(f"cannot write {out}: a report is HTML, end the name in .html")
    write_report(options.results_at(results), out)
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MB)")
