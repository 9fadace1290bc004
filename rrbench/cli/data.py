"""`rrbench data`: get, make, check and list data sets."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rrbench.cli import options
from rrbench.errors import UseError
from rrbench.files.provenance import pip_line

if TYPE_CHECKING:
    from collections.abc import Callable

    from rrbench.datasets.cifar10_c import Corrupted
    from rrbench.datasets.corruptions.making import Result
    from rrbench.datasets.search import Located

MAKEABLE = {"cifar10-c": "cifar10-c-made"}  # what is made, and the data set's name

app = typer.Typer(no_args_is_help=True, help="Get, make, check and list data sets.")

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
def make(
    name: Annotated[str, typer.Argument(help="cifar10-c.")],
    frost: Annotated[
        Path | None,
        typer.Option(help="A folder of photographs of frost; without it a texture is drawn, and is named so."),
    ] = None,
    data_dir: DataDir = None,
    threads: Annotated[
        int | None, typer.Option(help="How many at once; the images are the same. [default: cores]")
    ] = None,
) -> None:
    """Make corruptions like those of CIFAR-10-C from the test images of CIFAR-10.

    Ten corruptions at five severities, 500,000 images, are written to CIFAR-10-C-made in the data folder: 1.5 GB, five
    to ten minutes on two cores. They are not the published files, and their name says so, as in
    cifar10-c-made(fog,severity=3). Needs CIFAR-10 and the extra `corruptions`. What is there already is not made again.

    Example: rrbench data make cifar10-c --frost ~/frost
    """
    from rrbench.datasets.search import roots
    from rrbench.names import unknown
    from rrbench.progress import reporter

    if name not in MAKEABLE:
        raise unknown("data set to make", name, MAKEABLE)
    if threads is not None and threads < 1:
        raise UseError(f"--threads must be at least 1, not {threads}")
    places = roots(data_dir)
    start = time.monotonic()
    result = _maker()(places[0], places, frost, threads or os.cpu_count() or 1, reporter())
    if result.kept:
        print(f"already in {result.folder}: {', '.join(result.kept)}")
    if result.made:
        print(f"made in {result.folder} ({time.monotonic() - start:.0f} s): {', '.join(result.made)}")
    print(f"frost is from {result.frost}; name the data set cifar10-c-made: these are not the published files")


def _maker() -> "Callable[..., Result]":
    """Return the function that makes corruptions; it needs packages that not everybody has."""
    try:
        from rrbench.datasets.corruptions.making import make
    except ImportError as problem:
        if (problem.name or "").partition(".")[0] not in ("scipy", "skimage", "PIL"):
            raise
        raise UseError(f"corruptions are made with scipy, scikit-image and Pillow: {pip_line('corruptions')}") from None
    return make


@app.command()
def check(
    name: Annotated[
        str | None, typer.Argument(help="One data set; of corruptions also how much they change. [default: all]")
    ] = None,
    zoo: Annotated[
        bool, typer.Option("--zoo", help="Of corruptions: the accuracy of the zoo's standard network on each.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="With --zoo: only the first N images.", min=1)] = None,
    out: Annotated[
        Path | None, typer.Option(help="Of corruptions: draw one image under each; a .png, .pdf or .svg.")
    ] = None,
    data_dir: DataDir = None,
    device: options.Device = "auto",
) -> None:
    """Read every data set that is found and verify its sizes and labels; of corruptions, how much they change.

    Example: rrbench data check cifar10-c-made --zoo --limit 1000 --out corruptions.png
    """
    from rrbench.datasets.search import roots

    places, broken = roots(data_dir), []
    if name is not None:
        _check_one(name, places, zoo, limit, out, device)
        return
    if zoo or limit or out:
        raise UseError("--zoo, --limit and --out need the name of a data set, such as cifar10-c-made")
    for each, source in _located().items():
        if source.where(places) is None:
            print(f"{each}: not found")
            continue
        try:
            print(f"{each}: ok, {source.inspect(places)}")
        except UseError as problem:
            broken.append(each)
            print(f"{each}: broken, {problem}")
    if broken:
        raise UseError(f"broken data sets: {', '.join(broken)}")


def _check_one(
    name: str, places: tuple[Path, ...], zoo: bool, limit: int | None, out: Path | None, device: str
) -> None:
    """Check one data set and, if it holds corruptions, print what they do to the images."""
    from rrbench.datasets.cifar10_c import Corrupted
    from rrbench.names import unknown

    sources = _located()
    if name not in sources:
        raise unknown("data set", name, sources)
    source = sources[name]
    is_corrupted = issubclass(source, Corrupted)
    if (zoo or limit or out) and not is_corrupted:
        raise UseError(f"--zoo, --limit and --out are for corruptions, and {name} holds none")
    if limit and not zoo:
        raise UseError("--limit is for --zoo")
    if out:
        from rrbench.figures.style import check_suffix

        check_suffix(out)
    print(f"{name}: ok, {source.inspect(places)}")
    if issubclass(source, Corrupted):
        _show_corruptions(source, places, zoo, limit, out, device)


def _show_corruptions(
    source: "type[Corrupted]", places: tuple[Path, ...], zoo: bool, limit: int | None, out: Path | None, device: str
) -> None:
    from rrbench.datasets.changes import mean_changes
    from rrbench.rows.tables import render

    def show(title: str, values: dict[str, list[float]], digits: int) -> None:
        severities = [f"severity {number}" for number in range(1, 6)]
        cells = [[name, *(f"{value:.{digits}f}" for value in line)] for name, line in values.items()]
        print("\n" + render(["corruption", *severities], cells, "text", title))

    show("Mean absolute change of a pixel, of 255", mean_changes(source, places), 1)
    if zoo:
        from rrbench.compute.devices import find_device
        from rrbench.progress import reporter
        from rrbench.verifying.corruptions import falls, standard_accuracies

        clean, accuracies = standard_accuracies(source, places, limit, find_device(device), reporter())
        inputs = f"the first {limit} images" if limit else "all images"
        show(f"Accuracy of the zoo's standard network in %, {inputs}; {clean:.1f} on clean ones", accuracies, 1)
        print("\n".join(falls(clean, accuracies)))
    if out:
        from rrbench.figures.corruption_sheet import draw_sheet
        from rrbench.figures.style import save

        save(draw_sheet(source, places), out)
        print(out)


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
    if name in AVAILABLE:
        return f"not found, get it with `rrbench data get {name}`"
    made = next((each for each, made in MAKEABLE.items() if made == name), None)
    return f"not found, make it with `rrbench data make {made}`" if made else "not found"
