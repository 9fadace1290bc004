"""`rrbench table`: rows as a table."""

from pathlib import Path
from typing import Annotated

import typer


def table(
    results: Annotated[Path, typer.Argument(help="A results CSV, or a work folder.")] = Path("runs"),
    by: Annotated[str, typer.Option(help="A row for each rejector and a column for each value of this.")] = "",
    metric: Annotated[str, typer.Option(help="The column shown with --by.")] = "acc_tpr95",
    layout: Annotated[str, typer.Option("--format", help="text, markdown or csv.")] = "text",
) -> None:
    """Print results; with --by a pivot of one metric.

    Example: rrbench table runs --by attack --metric deploy_robust
    """
    from rrbench.rows import read_rows
    from rrbench.tables import pivot_table, results_table

    rows = read_rows(results)
    print(pivot_table(rows, by, metric, layout) if by else results_table(rows, layout))
