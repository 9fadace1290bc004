"""What a figure shows, and which cells of a folder it uses."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from shlex import quote
from typing import Any

from rrbench.errors import UseError
from rrbench.figures.scored import PRESETS, Scored, preference
from rrbench.names import parse_budget, split_list
from rrbench.plugins.config import load_preset
from rrbench.rows.row import ResultRow, goes_by

PAPER_DATASETS = ("cifar10", "cifar100")  # every figure uses the first


@dataclass(frozen=True)
class FigureOptions:
    """The options of the command line; None if not given."""

    dataset: str | None = None
    network: str | None = None
    budget: str | None = None
    preset: str | None = None
    seed: int | None = None
    rejectors: str | None = None
    attack: str | None = None
    norm: str | None = None
    points: int = 2000  # in each panel of Figure 7

    def admits(self, row: ResultRow) -> bool:
        """Tell whether a row fits the options, apart from its attack."""
        pairs = (
            (self.dataset, row.dataset),
            (self.network, row.network),
            (self.preset, row.preset),
            (self.seed, row.seed),
        )
        is_named = self.rejectors is None or any(goes_by(row, name) for name in split_list(self.rejectors))
        has_norm = self.norm is None or row.norm in ("", self.norm)
        has_budget = not (self.budget and row.eps) or (row.norm, Fraction(row.eps)) == parse_budget(self.budget)
        return is_named and has_norm and has_budget and all(wanted in (None, found) for wanted, found in pairs)


@dataclass(frozen=True)
class Need:
    """A cell of a figure. Any rejector serves: a checkpoint's outputs and blind attacks are the same for all."""

    framework: str
    rejector: str  # the rejector to run if the cell is missing
    attack: str  # clean, or an attack with the figure's budget
    trained_as: str

    @property
    def label(self) -> str:
        """The cell in words."""
        return f"{self.trained_as} under {self.attack}"


@dataclass(frozen=True)
class PaperRequest:
    """A figure of the paper: where its cells are, and their data set, network and budget."""

    name: str
    folder: Path
    cells: Sequence[Scored]  # clean ones and those with the budget; preferred ones first
    short: Sequence[Scored]  # the same kind of cells, on fewer inputs than the paper's; only Figure 4 takes them
    dataset: str
    network: str
    budget: str
    options: FigureOptions

    def find(self, *needs: Need) -> list[Scored]:
        """Return a cell for each need; if one is missing, the error says which, and the command that measures it."""
        found = [self._first(need) for need in needs]
        missing = [need for need, cell in zip(needs, found, strict=True) if cell is None]
        if missing:
            raise self.missing(
                [need.label for need in missing],
                frameworks=[need.framework for need in missing],
                rejectors=[need.rejector for need in missing],
                attacks=[need.attack for need in missing],
            )
        return [cell for cell in found if cell is not None]

    def _first(self, need: Need) -> Scored | None:
        wanted = (need.trained_as, need.attack)
        return next((cell for cell in self.cells if (cell.row.trained_as, cell.row.attack) == wanted), None)

    def missing(
        self,
        labels: Sequence[str],
        *,
        frameworks: Sequence[str],
        rejectors: Sequence[str],
        attacks: Sequence[str],
        more: str = "",
    ) -> UseError:
        """Say what is missing, and the command that measures it."""
        preset = self.options.preset or ("paper" if self.dataset in PAPER_DATASETS else "quick")
        seed = f" --seed {self.options.seed}" if self.options.seed else ""
        command = (
            f"rrbench run --preset {preset} --dataset {quote(self.dataset)} --network {quote(self.network)} "
            f"--frameworks {_listed(frameworks)} --rejectors {_listed(rejectors)} --attacks {_listed(attacks)} "
            f"--budgets {self.budget}{seed}{more} --out {quote(str(self.folder))}"
        )
        place = f"{self.dataset} {self.network} {self.budget}"
        return UseError(f"{self.name} lacks {', '.join(labels)} ({place}) in {self.folder}; to measure: {command}")


def _listed(texts: Sequence[str]) -> str:
    """Join names as an option takes them."""
    return quote(",".join(dict.fromkeys(texts)))


def paper_request(name: str, folder: Path, cells: Sequence[Scored], options: FigureOptions) -> PaperRequest:
    """Choose the cells; data set, network and budget come from the options, else from the preset `paper`."""
    if options.rejectors or options.attack or options.norm:
        raise UseError(
            f"{name} has its own rejectors, attacks and budget: --rejectors, --attack and --norm do not go with it"
        )
    dataset = options.dataset or PAPER_DATASETS[0]
    defaults = load_preset("paper").dataset(dataset)
    network, budget = options.network or defaults.network, options.budget or next(iter(defaults.budgets), "")
    if not network or not budget:
        raise UseError(f"preset 'paper' says too little of data set {dataset!r}: give --network and --budget")
    norm, radius = parse_budget(budget)

    def fits(cell: Scored) -> bool:
        row = cell.row
        has_budget = row.norm == norm and bool(row.eps) and Fraction(row.eps) == radius
        is_here = (row.dataset, row.network) == (dataset, network)
        return (
            is_here
            and (is_free or row.preset in PRESETS)
            and options.admits(row)
            and (row.attack == "clean" or has_budget)
        )

    # A figure of the paper uses cells measured as the paper measured, unless a preset is given.
    is_free = dataset not in PAPER_DATASETS or options.preset is not None
    fitting = sorted(filter(fits, cells), key=lambda cell: preference(cell.row))
    used = [cell for cell in fitting if is_free or cell.has_all_inputs]
    short = [cell for cell in fitting if not (is_free or cell.has_all_inputs)]
    return PaperRequest(name, folder, used, short, dataset, network, budget, options)


def paper_settings(attack: str) -> dict[str, Any]:
    """Return the settings that the preset `paper` gives an attack."""
    return load_preset("paper").settings("attack", attack, PAPER_DATASETS[0])
