"""Options that several commands share."""

import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

from rrbench.errors import UseError


class Command(TyperCommand):
    """A command that refuses an option given twice: the last would win, and the first be lost without a word."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Count the options that take one value, then parse as usual."""
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for param, count in Counter(given).items():
            if count > 1 and isinstance(param, TyperOption) and not (param.multiple or param.is_flag):
                raise UseError(f"{param.opts[0]} is given {count} times: give it once (a list has commas: a,b)")
        return super().parse_args(ctx, args)


def _folder(text: str | Path) -> Path:
    """Read a folder's name; refuse an empty name, as an unset variable gives: it would mean the current folder."""
    if not str(text).strip():
        raise UseError("--out is empty: give a folder")
    return Path(text)


Rejectors = Annotated[str | None, typer.Option(help="Rejectors, such as rr,ebd or rr(tau=0.5); or all.")]
Attacks = Annotated[str | None, typer.Option(help="Attacks, such as pgd100,adaptive; or all. Clean is always run.")]
Dataset = Annotated[str | None, typer.Option(help="Data set, such as digits or cifar10.")]
Network = Annotated[str | None, typer.Option(help="Network, such as small-cnn or resnet18.")]
Preset = Annotated[str, typer.Option(help="Settings: quick, paper, official or strong.")]
Config = Annotated[Path | None, typer.Option(help="A TOML file of settings on top of the preset.")]
Out = Annotated[
    Path, typer.Option(parser=_folder, metavar="<path>", help="Work folder; finished work in it is used again.")
]
DataDir = Annotated[Path | None, typer.Option(help="Folder of data sets; before $RRBENCH_DATA and the cache.")]
Limit = Annotated[int | None, typer.Option(help="Only the first N test inputs.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Precision = Annotated[str, typer.Option(help="Of training and attacks: auto, fp32, tf32 or bf16. Verdicts are fp32.")]
StopAfter = Annotated[
    str | None,
    typer.Option(help="Stop cleanly after a time such as 25m or 1h30m; the same command goes on later."),
]


def results_at(path: Path) -> Path:
    """Find results that were asked for; say on stderr if they are published ones that are not here but elsewhere."""
    from rrbench.rows.published import find_results, remark

    found = find_results(path)
    if found != path:
        print(f"rrbench: {remark(path, found)}", file=sys.stderr)
    return found


def check_html(out: Path, what: str) -> None:
    """Refuse a name that is not one of a page."""
    if out.suffix not in (".html", ".htm"):
        raise UseError(f"cannot write {out}: {what} is HTML, end the name in .html")


def some_of(option: str, text: str, known: Iterable[str]) -> list[str]:
    """Read a list of words that must all be known."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    wrong = [word for word in found if word not in known]
    if wrong or not found:
        raise UseError(f"{option} takes {', '.join(known)}; not {', '.join(wrong) or 'nothing'}")
    return found
