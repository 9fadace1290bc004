"""`rrbench data`: get, check and list data sets."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rrbench.errors import UseError

if TYPE_CHECKING:
    from rrbench.datasets.search import Located

app = typer.Typer(no_args_is_help=True, help="Get, check and list data sets.")

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Folder of data sets; before $RRBENCH_DATA and ~/.cache/rrbench/data."),
]


@app.command()
def get(
    name: Annotated[str, typer.Argument(help="cifar10 or cifar100.")],
    data_dir: DataDir = None,
) -> None:
    """Download a data set, verify its checksums and put it into the data folder.

    Example: rrbench data get cifar10
    """
    from rrbench.datasets import download
    from rrbench.datasets.search import roots

    source, root = _gettable(name), roots(data_dir)[0]
    if there := source.where((root,)):
        try:
            print(f"{name} is already in {there}: {source.inspect((root,))}")
        except UseError as problem:
            raise UseError(f"{problem}; move it away, then get {name} again") from None
        return
    start = time.monotonic()
    folder = download.get(name, root, lambda line: typer.echo(line, err=True))
    print(f"{name} is now in {folder} ({time.monotonic() - start:.0f} s)")


@app.command()
def check(data_dir: DataDir = None) -> None:
    """Read every data set that is found and verify its sizes and labels.

    Example: rrbench data check --data-dir ~/data
    """
    from rrbench.datasets.search import roots

    places, broken = roots(data_dir), []
    for name, source in _located().items():
        if source.where(places) is None:
            print(f"{name}: not found")
            continue
        try:
            print(f"{name}: ok, {source.inspect(places)}")
        except UseError as problem:
            broken.append(name)
            print(f"{name}: broken, {problem}")
    if broken:
        raise UseError(f"broken data sets: {', '.join(broken)}")


@app.command("list")
def list_(data_dir: DataDir = None) -> None:
    """List the data sets, and where each is found.

    Example: rrbench data list
    """
    from rrbench.datasets.search import roots

    places, sources = roots(data_dir), _located()
    width = max(map(len, sources))
    for name, source in sources.items():
        print(f"{name:{width}}  {source.about}; {_place(name, source.where(places))}")


def _located() -> "dict[str, type[Located]]":
    from rrbench.datasets import DATASETS
    from rrbench.datasets.search import Located

    return {name: kind for name, kind in DATASETS.items() if isinstance(kind, type) and issubclass(kind, Located)}


def _gettable(name: str) -> "type[Located]":
    from rrbench.datasets.download import AVAILABLE
    from rrbench.names import unknown

    sources = _located()
    if name not in sources:
        raise unknown("data set", name, AVAILABLE)
    if name not in AVAILABLE:
        raise UseError(f"{name} is not downloaded ({sources[name].about}); these are: {', '.join(AVAILABLE)}")
    return sources[name]


def _place(name: str, where: str | None) -> str:
    from rrbench.datasets.download import AVAILABLE

    if where is not None:
        return f"found in {where}"
    return f"not found, get it with `rrbench data get {name}`" if name in AVAILABLE else "not found"
