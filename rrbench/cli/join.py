"""`rrbench join`: brings the results of several work folders into one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from rrbench.cli import options


def join(
    results: Annotated[list[Path], typer.Argument(help="Work folders to join; they stay as they are.")],
    out: options.Out,
    short: Annotated[
        bool,
        typer.Option(
            "--short",
            help="Leave out the logits of all inputs, the largest part, round scores, and pack tightly: a further "
            "rejector needs the attack to be run again, and some numbers of rows move by a trace.",
        ),
    ] = False,
) -> None:
    """Bring the results of several work folders, from one machine or many, into one folder.

    A cell that the folder has already stays as it is, and is named if another folder
    has it from another network or with other answers. A cell that cannot be read, or whose files are
    missing or changed, is named and left out.

    Example: rrbench join here from-the-cluster --out all
    """
    from rrbench.measuring.joining import join as join_folders
    from rrbench.numbers import counted
    from rrbench.progress import reporter

    joined = join_folders([options.results_at(path) for path in results], out, reporter(), is_short=short)
    for reason in joined.unreadable:
        print(f"left out: {reason}")
    for path in joined.harmed:
        print(f"left out, its files are missing or changed: {path}")
    left_out = len(joined.harmed) + len(joined.unreadable)
    if joined.rounded:
        print(f"{counted(joined.rounded, 'row')} computed again from rounded scores: {_moves(joined.moved)}")
    for key in joined.unlike:
        print(f"{out / 'cells' / key}.json stays, but another folder has it from another network or with other answers")
    print(f"{out}: {joined.added} cells added, {joined.there} were there already, {left_out} left out")
    if left_out:
        raise typer.Exit(1)


def _moves(moved: Mapping[str, Sequence[float]]) -> str:
    """Say how many numbers moved, and by how much at most in each column."""
    if not moved:
        return "no number moved"
    most = ", ".join(f"{name} {max(gaps):.2g}" for name, gaps in moved.items())
    return f"{sum(map(len, moved.values()))} numbers moved, at most by: {most}"
