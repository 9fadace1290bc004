"""Translates a published cell into the rows that would fill it, in rrbench's own names. Imports no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rrbench.names import parse
from rrbench.paper.cells import PaperCell, toml

PUBLISHED_PRESETS = ("paper", "official")  # quick attacks keep the best image, so they never give the paper's numbers
OTHER_PRESETS = ("paper", "official", "quick")


@dataclass(frozen=True)
class Wanted:
    """What a row must be to fill a cell; names are as typed on the command line, so that they can be run."""

    dataset: str
    network: str
    framework: str
    rejector: str
    trained_as: str
    attack: str
    norm: str
    eps: str  # an exact fraction; empty if there is no radius
    preset: str
    n: int | None  # number of test images; None: the largest of any row on this data set

    @property
    def home(self) -> str:
        """The data set of the training."""
        name = parse(self.dataset).name
        return str(_entry("dataset", name).get("uses_networks_of", name))

    @property
    def budget(self) -> str:
        """The budget as the command line takes it."""
        return f"{self.norm}:{self.eps}" if self.eps else self.norm


def _entry(kind: str, published: str) -> Mapping[str, Any]:
    """Return the entry of names.toml for a published word; a user's own data set or network keeps its name."""
    own: Mapping[str, Any] = {"name": published, "shown": published}
    found: Mapping[str, Any] = toml("names.toml")[kind].get(published, own)
    return found


def shown(kind: str, published: str) -> str:
    """Return how tables print a published word."""
    return str(_entry(kind, published)["shown"])


def input_count(dataset: str) -> int:
    """Return how many test inputs a data set has; 0 for one that no published table needs."""
    return int(_entry("dataset", dataset).get("test", 0))


def column(cell: PaperCell) -> str:
    """Return the row's column with a cell's metric; empty if rows have none."""
    return str(_entry("metric", cell.metric).get("column", ""))


def digits(cell: PaperCell) -> int:
    """Return how many decimals the paper prints."""
    return int(_entry("metric", cell.metric)["digits"])


def never(cell: PaperCell) -> str:
    """Say why no row can fill a cell; empty if one can."""
    if not column(cell):
        return str(_entry("metric", cell.metric)["why"])
    if _corruption(cell) and "parts" not in _entry("dataset", cell.dataset):
        return f"{cell.dataset} has no corrupted form"
    return ""


def presets_for(cell: PaperCell) -> tuple[str, ...]:
    """Return the presets whose rows may fill a cell, the preferred one first."""
    return PUBLISHED_PRESETS if is_published(cell) else OTHER_PRESETS


def stand_ins(dataset: str) -> tuple[str, ...]:
    """Return the data sets that may fill a data set's cells if it has no row of its own."""
    return tuple(_entry("dataset", dataset).get("stand_ins", ()))


def is_published(cell: PaperCell) -> bool:
    """Tell whether a cell is the paper's own, including those that it prints as overflow."""
    return cell.value != ""


def wanted(cell: PaperCell, preset: str) -> tuple[Wanted, ...]:
    """Return the rows whose mean fills a cell under a preset; empty if no row can."""
    if never(cell):
        return ()
    at = _entry("at", cell.at)
    published = at["none"] if cell.rejector == "none" else cell.rejector
    rejector = _entry("rejector", published)
    training_key = rejector.get("training_key", "")
    norm, eps = _budget(cell)
    names, size = _datasets(cell, preset)
    return tuple(
        Wanted(
            dataset=name,
            network=str(_entry("arch", cell.arch)["name"]),
            framework=str(at["name"]),
            rejector=str(rejector["name"]),
            trained_as=f"{at['name']}+{training_key}" if training_key else str(at["name"]),
            attack=str(_entry("attack", cell.attack)["name"]),
            norm=norm,
            eps=eps,
            preset=preset,
            n=size,
        )
        for name in names
    )


def _corruption(cell: PaperCell) -> str:
    """Return the name of a cell's corruption in its data set; empty for other inputs."""
    name = str(_entry("attack", cell.attack).get("corruption", ""))
    return str(_entry("dataset", cell.dataset).get("corruptions", {}).get(name, name))


def _datasets(cell: PaperCell, preset: str) -> tuple[list[str], int | None]:
    """Return the data sets whose mean is a cell, and how many test images each has."""
    entry = _entry("dataset", cell.dataset)
    if "parts" not in entry:
        return [cell.dataset], entry.get("test")
    parts = entry["parts"].get(preset, entry["parts"]["paper"])
    return [name.format(_corruption(cell)) for name in parts["names"]], parts["test"]


def radius(cell: PaperCell) -> str:
    """Return a cell's radius as people write it: the paper's over 255, another data set's own."""
    other = _entry("dataset", cell.dataset).get("budgets", {}).get(cell.budget)
    return f"{cell.eps}/255" if other is None and cell.eps else _budget(cell)[1]


def _budget(cell: PaperCell) -> tuple[str, str]:
    """Return norm and exact radius; another data set may have its own radii."""
    other = _entry("dataset", cell.dataset).get("budgets", {}).get(cell.budget)
    if other is not None:
        norm, _, radius = other.partition(":")
        return norm, str(Fraction(radius))
    return cell.norm, str(Fraction(cell.eps) / 255) if cell.eps else ""
