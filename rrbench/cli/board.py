"""`rrbench board`: ranks the victims of one or several folders on an HTML page."""

from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options


def board(
    results: Annotated[
        list[Path] | None, typer.Argument(help="Work folders or results files; one or several. [default: runs]")
    ] = None,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("board.html"),
) -> None:
    """Write one HTML file that ranks every rejector on every network by its worst case; it needs no network.

    Lines can be sorted and chosen: one network and its rejectors, or one rejector and its networks. A line opens to
    its attacks, commands and settings. Those that were not attacked to the worst case stand below those that were.

    Example: rrbench board results/cifar10 results/cifar100 --out board.html
    """
    from rrbench.board import write_board

    options.check_html(out, "a board")
    asked = list(dict.fromkeys(results or [Path("runs")]))
    says = write_board([(path.as_posix(), options.results_at(path)) for path in asked], out)
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MB): {says}")
