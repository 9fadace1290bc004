"""`rrbench new`: start a plugin of your own."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

import typer

app = typer.Typer(no_args_is_help=True, help="Write a small installable plugin package with its tests.")


@app.callback()
def choose() -> None:
    """Write a small installable plugin package with its tests."""


Name = Annotated[str, typer.Argument(help="Its name, such as my-idea.")]
Folder = Annotated[Path, typer.Option(help="Where to put the package's folder.")]


@app.command()
def rejector(name: Name, folder: Folder = Path()) -> None:
    """Write a rejector plugin into a new folder of that name.

    Example: rrbench new rejector my-idea && pip install -e my-idea && rrbench run --rejectors my-idea
    """
    _write("rejector", name, folder)


@app.command()
def attack(name: Name, folder: Folder = Path()) -> None:
    """Write an attack plugin into a new folder of that name.

    Example: rrbench new attack my-push && pip install -e my-push && rrbench run --attacks my-push
    """
    _write("attack", name, folder)


def _write(kind: Literal["rejector", "attack"], name: str, folder: Path) -> None:
    from rrbench.scaffold import write_plugin

    made = write_plugin(kind, name, folder)
    place = shlex.quote(str(made))
    steps = [
        f"pip install -e {place}",
        f"rrbench check {name}",
        f"rrbench run --{kind}s {name}",
        f"python -m pytest {place}",
    ]
    print("\n  ".join([f"{made} is ready:", *steps]))
