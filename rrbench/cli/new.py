"""`rrbench new`: start a plugin of your own."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, help="Write a small installable plugin package with its tests.")


@app.callback()
def choose() -> None:
    """Write a small installable plugin package with its tests."""


@app.command()
def rejector(
    name: Annotated[str, typer.Argument(help="Its name, such as my-idea.")],
    folder: Annotated[Path, typer.Option(help="Where to put the package's folder.")] = Path(),
) -> None:
    """Write a rejector plugin into a new folder of that name.

    Example: rrbench new rejector my-idea && pip install -e my-idea && rrbench run --rejectors my-idea
    """
    from rrbench.scaffold import write_rejector

    made = write_rejector(name, folder)
    place = shlex.quote(str(made))
    print(f"{made} is ready:\n  pip install -e {place}\n  rrbench run --rejectors {name}\n  python -m pytest {place}")
