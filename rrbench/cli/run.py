"""`rrbench run`: trains missing checkpoints, attacks, measures, prints the rows."""

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rrbench.cli import options
from rrbench.errors import UseError, brief
from rrbench.numbers import counted, read_whole

if TYPE_CHECKING:
    from rrbench.rows.row import ResultRow


def run(
    rejectors: options.Rejectors = None,
    attacks: options.Attacks = None,
    dataset: options.Dataset = None,
    network: options.Network = None,
    frameworks: Annotated[str | None, typer.Option(help="Training frameworks, such as pgd-at; or all.")] = None,
    budgets: Annotated[str | None, typer.Option(help="Such as linf:8/255,l2:128/255.")] = None,
    paper: Annotated[
        str | None,
        typer.Option(help="Fill a table of the paper: exactly its missing cells, by default of preset paper."),
    ] = None,
    preset: Annotated[str | None, typer.Option(help="Settings: quick (default), paper, official or strong.")] = None,
    config: options.Config = None,
    out: options.Out = Path("runs"),
    data_dir: options.DataDir = None,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    engine: Annotated[str, typer.Option(help="local, or ray: on the GPUs or cores of a Ray cluster.")] = "local",
    address: Annotated[
        str | None, typer.Option(help="Of the Ray cluster: auto or HOST:PORT; without it one is started here.")
    ] = None,
    zoo: Annotated[bool, typer.Option("--zoo", help="Use checkpoints of $RRBENCH_ZOO or results/zoo.")] = False,
    retrain: Annotated[bool, typer.Option("--retrain", help="Ignore the checkpoints inside the package.")] = False,
    limit: options.Limit = None,
    every: Annotated[int | None, typer.Option(help="Only the test inputs 0, N, 2N and so on.")] = None,
    seed: Annotated[int | None, typer.Option(help="One seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Several seeds, such as 0,1,2.")] = None,
    keep: Annotated[str | None, typer.Option(help="Keep all attacked images and/or features: images,features.")] = None,
    stop_after: options.StopAfter = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its cost; do nothing.")] = False,
    workers: Annotated[
        str | None, typer.Option(help="With --dry-run: the time with so many workers (GPUs), such as 1,8,64.")
    ] = None,
) -> None:
    """Measure rejectors under attacks and print one row each.

    Example: rrbench run --rejectors rr,ebd --attacks pgd100,adaptive
    """
    from rrbench.api import RunOptions, execute, prepare
    from rrbench.engines.estimate import describe_plan
    from rrbench.progress import reporter

    counts = parse_workers(workers)
    if counts and not dry_run:
        raise UseError("--workers is for --dry-run; --engine ray takes all that the cluster has")
    job = prepare(
        RunOptions(
            rejectors,
            attacks,
            dataset=dataset,
            network=network,
            frameworks=frameworks,
            budgets=budgets,
            paper=paper,
            preset=preset,
            config=config,
            out=out,
            data_dir=data_dir,
            device=device,
            precision=precision,
            engine=engine,
            address=address,
            zoo=zoo,
            retrain=retrain,
            limit=limit,
            every=every,
            seeds=parse_seeds(seed, seeds),
            keep=keep,
            stop_after=stop_after,
            report=reporter(),
        )
    )
    if dry_run:
        print(describe_plan(job.plan, job.runner, counts))
        return
    is_first = not any((job.materials.store.root / "cells").glob("*.json"))
    rows = execute(job, ["rrbench", *sys.argv[1:]]) if job.plan.cells else []
    if not job.plan.cells:
        left_out = "".join(f"left out: {line}\n" for line in job.plan.dropped)
        print(_filled(str(paper), dataset, network, preset, out))
        print(f"\n{left_out}nothing {'else ' if left_out else ''}was missing")
        return
    show_rows(rows, out, None if paper is None else _filled(paper, dataset, network, preset, out))
    if is_first and rows:  # a run that stopped early may have none
        report = job.materials.report
        is_usual = dataset in (None, job.config.run.dataset) and network is None
        for line in (*how_to_type(), *what_next(out, is_usual=is_usual)):
            report.line(line)


def show_rows(rows: "Sequence[ResultRow]", out: Path, table: str | None = None) -> None:
    """Print rows, or a table that they fill, and where they are; exit with 1 if some have failed."""
    from rrbench.rows.row import read_rows
    from rrbench.rows.tables import results_table

    print(results_table(rows) if table is None else table)
    if rows:
        total = len(read_rows(out))
        count = counted(total, "row") if len(rows) == total else f"{len(rows)} of the {counted(total, 'row')}"
        print(f"\n{count} in {out / 'rows.csv'}")
    failed = [row for row in rows if row.status != "ok"]
    if failed:
        print(f"rrbench: {len(failed)} of {len(rows)} cells failed; their rows say why", file=sys.stderr)
        raise typer.Exit(1)


def how_to_type() -> list[str]:
    """Say how to type `rrbench` in this shell if it would not be found, as after `make run`."""
    here = Path(sys.prefix)
    found = shutil.which("rrbench")
    if found and Path(found).parent.resolve() == Path(sys.executable).parent.resolve():
        return []
    place = here.relative_to(Path.cwd()) if here.is_relative_to(Path.cwd()) else here
    if (here / "bin" / "activate").is_file():
        return [f"to type rrbench in this shell: source {shlex.quote(str(place / 'bin' / 'activate'))}"]
    return [f"to type rrbench: {shlex.quote(sys.executable)} -m rrbench"]


def what_next(out: Path, *, is_usual: bool = True) -> list[str]:
    """Suggest commands after the first run in a work folder; a run on the usual data only if these were measured."""
    folder = shlex.quote(str(out))
    stronger = (
        "  rrbench run --rejectors energy,rr --attacks selective-pgd,worst-case   # stronger attacks; takes minutes"
    )
    return [
        "what to try next:",
        f"  rrbench report {folder} --out report.html   # one page: ranking, plots, attacked images",
        f"  rrbench verify {folder}                     # recomputes every number from what is stored",
        *([stronger] if is_usual else []),
        "  rrbench eval my_model.py:build --weights w.safetensors --data images.npz   # a model of your own",
    ]


def _filled(paper: str, dataset: str | None, network: str | None, preset: str | None, out: Path) -> str:
    """Return the table of the paper that was filled, as text."""
    from rrbench.paper.sources import default_folders
    from rrbench.paper.tabulate import Selection, paper_tables

    tables = paper_tables(Selection(paper, dataset, network, preset), default_folders(out))
    return f"{tables.show('text')}\n{tables.summary()}"


def parse_seeds(seed: int | None, seeds: str | None) -> tuple[int, ...]:
    """Read --seed or --seeds."""
    if seed is not None and seeds is not None:
        raise UseError("give --seed or --seeds, not both")
    if seeds is None:
        return (0 if seed is None else seed,)
    try:
        return tuple(dict.fromkeys(read_whole(part) for part in seeds.split(",")))
    except ValueError:
        raise UseError(f"cannot read --seeds {brief(seeds)}; write whole numbers such as 0,1,2") from None


def parse_workers(text: str | None) -> tuple[int, ...]:
    """Read --workers."""
    try:
        counts = tuple(read_whole(part) for part in text.split(",")) if text is not None else ()
    except ValueError:
        counts = (0,)
    if any(count < 1 for count in counts):
        raise UseError(f"cannot read --workers {brief(text)}; write whole numbers from 1 on, such as 1,8,64")
    return counts
