"""`rrbench figure`: draws a figure of the paper, or one of our own, from score files."""

from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options
from rrbench.errors import UseError


def figure(
    folder: Annotated[Path | None, typer.Argument(help="A work folder; runs where none is given.")] = None,
    paper: Annotated[
        str,
        typer.Option(
            help="figure1, figure3 to figure8, label:NAME; or risk-coverage, joint-kept or accuracy-budget (ours)."
        ),
    ] = "",
    results: Annotated[Path | None, typer.Option(help="The same as FOLDER.")] = None,
    dataset: options.Dataset = None,
    network: options.Network = None,
    budget: Annotated[
        str | None, typer.Option(help="Of the attacks, such as linf:8/255; not of accuracy-budget.")
    ] = None,
    rejectors: Annotated[
        str | None, typer.Option(help="Ours: only these rejectors, such as rr,ebd or confidence@trades.")
    ] = None,
    attack: Annotated[
        str | None,
        typer.Option(help="Ours: only this attack; accuracy-budget takes one, the others several."),
    ] = None,
    norm: Annotated[str | None, typer.Option(help="Ours: only budgets of this norm, linf or l2.")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="Only rows of this preset. Without it, figures of CIFAR use rows of paper or official on all test "
            "inputs; figure4 also uses rows on fewer."
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Only rows of this seed; else the smallest.")] = None,
    points: Annotated[
        int, typer.Option(help="Figure 7: at most so many images a panel; t-SNE is slow.", min=10)
    ] = 2000,
    out: Annotated[list[Path] | None, typer.Option(help="A .pdf, .svg or .png; may be given again.")] = None,
) -> None:
    """Draw a figure from the scores in a work folder; accuracy-budget needs only rows.

    Example: rrbench figure runs --paper figure8 --dataset digits --out figure8.pdf --out figure8.png
    """
    if folder and results:
        raise UseError("give the work folder once: as an argument or with --results")
    if not paper:
        raise UseError(
            "which figure? --paper figure1, figure3 to figure8, risk-coverage, joint-kept or accuracy-budget"
        )
    from rrbench.figures import draw, named
    from rrbench.figures.request import FigureOptions
    from rrbench.figures.style import check_suffix, save

    name = named(paper)
    paths = out or [Path(f"{name}.pdf"), Path(f"{name}.png")]
    for path in paths:
        check_suffix(path)
    chosen = FigureOptions(dataset, network, budget, preset, seed, rejectors, attack, norm, points)
    asked = folder or results
    place = options.results_at(asked or Path("runs"))
    if asked and not place.exists():  # a misspelt name; the figure would propose to measure everything there
        raise UseError(f"no results at {asked}")
    drawn = draw(name, place, chosen)
    for path in paths:
        save(drawn, path)
        print(path)
