"""`rrbench new`: start a plugin of your own."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rrbench.scaffold import Kind

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


@app.command()
def framework(name: Name, folder: Folder = Path()) -> None:
    """Write a plugin of a training framework into a new folder of that name.

    Example: rrbench new framework my-way && pip install -e my-way && rrbench run --frameworks my-way
    """
    _write("framework", name, folder)


@app.command()
def dataset(name: Name, folder: Folder = Path()) -> None:
    """Write a data set plugin into a new folder of that name.

    Example: rrbench new dataset my-data && pip install -e my-data && rrbench check my-data
    """
    _write("dataset", name, folder)


@app.command()
def network(name: Name, folder: Folder = Path()) -> None:
    """Write a network plugin into a new folder of that name.

    Example: rrbench new network my-net && pip install -e my-net && rrbench run --network my-net
    """
    _write("network", name, folder)


def _write(kind: "Kind", name: str, folder: Path) -> None:
    from rrbench.scaffold import trial, write_plugin

    made = write_plugin(kind, name, folder)
    place = shlex.quote(str(made))
    steps = [
        f"pip install -e {place}",
        f"rrbench check {name}",
        trial(kind, name),
        f"python -m pytest {place}",
    ]
    print("\n  ".join([f"{made} is ready:", *steps]))
