"""`rrbench table`: prints rows as a table, or the paper's tables with the measured values."""

import sys
from pathlib import Path
from typing import Annotated, TextIO

import typer

from rrbench.cli import options
from rrbench.errors import UseError

QUICK = 50  # so many rows are compared within seconds


def table(
    results: Annotated[Path | None, typer.Argument(help="A results CSV, or a work folder. [default: runs]")] = None,
    by: Annotated[
        str, typer.Option(help="A row for each rejector and a column for each value of this, such as attack or budget.")
    ] = "",
    metric: Annotated[
        str,
        typer.Option(
            help="The one metric shown, such as joint, robust or TPR-95, or any column of rows.csv; "
            "by attack where --by says nothing else. [default: TPR-95]"
        ),
    ] = "",
    rejectors: Annotated[
        str, typer.Option(help="Only rows of these rejectors, such as rr,ebd or confidence@trades.")
    ] = "",
    attacks: Annotated[
        str, typer.Option(help="Only rows of these attacks, such as worst-case or pgd; the best joint number first.")
    ] = "",
    budgets: Annotated[
        str, typer.Option(help="Only rows of these budgets, such as linf:8/255,l2:128/255; clean rows stay.")
    ] = "",
    against: Annotated[
        str, typer.Option(help="Paired differences from this rejector, such as confidence or confidence@trades.")
    ] = "",
    paper: Annotated[
        str, typer.Option(help="A table of the paper: table1 to table13, text, all, or label:NAME (its LaTeX label).")
    ] = "",
    layout: Annotated[str, typer.Option("--format", help="text, markdown, latex, csv or html.")] = "text",
    folders: Annotated[
        list[Path] | None,
        typer.Option(
            "--results", help="With --paper: where rows are; may be repeated. [default: the published rows, and runs]"
        ),
    ] = None,
    dataset: Annotated[str | None, typer.Option(help="With --paper: the same table for another data set.")] = None,
    network: Annotated[str | None, typer.Option(help="With --paper: the same table for another network.")] = None,
    preset: Annotated[str | None, typer.Option(help="With --paper: only rows of this preset.")] = None,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="With --paper: count the cells that are within tolerance, out and explained by a footnote, out and "
            "unexplained, missing. Exit 1 if one is unexplained; explained and missing ones do not fail.",
        ),
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="With --paper: what is missing, and what would fill it at what cost.")
    ] = False,
) -> None:
    """Print results; with --by or --metric a pivot; with --paper a table of the paper, published beside measured.

    Several seeds of one training are one line: mean and standard deviation.

    Example: rrbench table runs --by attack --metric joint --against confidence
    """
    from rrbench.metrics.columns import column_of
    from rrbench.rows.currency import noted
    from rrbench.rows.row import read_rows
    from rrbench.rows.tables import choose, pivot_table, results_table
    from rrbench.rows.weak_attacks import with_weak_notes

    more = {"--results": folders, "--dataset": dataset, "--network": network, "--preset": preset}
    if paper:
        if results is not None or by or metric or rejectors or attacks or budgets or against:
            raise UseError(
                "--paper takes its rows from --results DIR; "
                "a results file, --by, --metric, --rejectors, --attacks, --budgets and --against go without it"
            )
        _paper(paper, layout, folders, dataset, network, preset, check=check, plan=plan)
        return
    given = [name for name, value in (more | {"--check": check or None, "--plan": plan or None}).items() if value]
    if given:
        raise UseError(f"{', '.join(given)} needs --paper")
    path = options.results_at(results or Path("runs"))
    everything = noted(with_weak_notes(read_rows(path), is_whole=False))
    if not everything:
        raise UseError(f"{path} holds no rows: nothing to show")
    rows = choose(everything, rejectors, attacks, budgets)
    is_pivot, by, metric = bool(by or metric), by or "attack", column_of(metric) or "acc_tpr95"
    if against:
        from rrbench.progress import Silent, reporter
        from rrbench.rows.paired import against_table

        long = reporter() if len(rows) > QUICK and (path / "scores").is_dir() else Silent()
        with long.task(f"comparing {len(rows)} rows with {against}", len(rows)) as advance:
            shown, notes = against_table(path, rows, by, metric, against, layout, everything, advance)
        print(shown)
        print("\n".join(notes), file=_beside(layout))
    elif is_pivot:
        print(pivot_table(rows, by, metric, layout))
    else:
        print(results_table(rows, layout, is_ranked=bool(attacks)))


def _paper(
    paper: str,
    layout: str,
    folders: list[Path] | None,
    dataset: str | None,
    network: str | None,
    preset: str | None,
    *,
    check: bool,
    plan: bool,
) -> None:
    from rrbench.paper.tabulate import Selection, paper_tables

    if check and plan:
        raise UseError("give --check or --plan, not both")
    selection = Selection(paper, dataset, network, preset)
    tables = paper_tables(selection, folders)
    if plan:
        from rrbench.paper.planning import describe_missing

        print(describe_missing(selection, tables))
        return
    print(tables.show(layout, with_verdicts=check))
    if check:
        print(tables.summary(), file=_beside(layout))
        if tables.is_failing():
            print("rrbench: measured cells are out of tolerance and unexplained", file=sys.stderr)
            raise typer.Exit(1)


def _beside(layout: str) -> TextIO:
    """Return the stream for remarks: stderr for CSV, LaTeX and HTML, so that stdout holds only the table."""
    return sys.stdout if layout in ("text", "markdown") else sys.stderr
