"""Plans the rows that the paper's tables lack, and estimates the cost. Imports torch."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from shlex import quote

from rrbench import zoo
from rrbench.engines.estimate import known_rates, training_gradients
from rrbench.errors import UseError
from rrbench.measuring.materials import absences, in_large_zoo
from rrbench.names import parse
from rrbench.numbers import counted, duration
from rrbench.paper.matching import Rows
from rrbench.paper.show import superseded_line
from rrbench.paper.tabulate import PaperTables, Selection
from rrbench.paper.wanted import Wanted, is_published, wanted
from rrbench.planning.cells import Cell, Plan, Training
from rrbench.planning.plan import CLEAN, Request, merged, plan_cells
from rrbench.plugins.config import Config, load_preset
from rrbench.plugins.registry import check_names
from rrbench.rows.row import ResultRow
from rrbench.rows.tables import render


def check_alone(given: Mapping[str, object]) -> None:
    """Refuse options that a table of the paper decides itself."""
    named = [f"--{name}" for name, value in given.items() if value is not None]
    if named:
        raise UseError(f"a table of the paper says itself what is run; leave out {', '.join(named)}")


def select(paper: str, datasets: Sequence[str] | None, network: str | None, preset: str | None) -> Selection:
    """Read the request of `run`; a table is laid out for one data set at a time."""
    if datasets is not None and len(datasets) > 1:
        raise UseError("a table of the paper is laid out for one data set at a time")
    return Selection(paper, datasets[0] if datasets else None, network, preset)


def preset_of(selection: Selection) -> str:
    """Return the preset to run: the given one, else `paper`; on other data `quick`."""
    own = any(is_published(cell) for cells in selection.cells().values() for cell in cells)
    return selection.preset or ("paper" if own else "quick")


def missing(
    selection: Selection, rows: Iterable[ResultRow], seeds: Sequence[int], every: int | None = None
) -> dict[int, list[Wanted]]:
    """Return, for each seed, the rows that no folder has, or only from superseded code, or only reduced.

    With `every`, rows on every so many-th input are not missing either.
    """
    found, preset = Rows(rows), preset_of(selection)
    cells = [cell for cells in selection.cells().values() for cell in cells]
    needed = list(dict.fromkeys(each for cell in cells for each in wanted(cell, preset)))
    lacking: dict[int, list[Wanted]] = {seed: [] for seed in seeds}
    for each in needed:
        for seed in seeds:
            if not found.fills(each, seed, every):
                lacking[seed].append(each)
    return lacking


def plan_missing(
    selection: Selection, rows: Iterable[ResultRow], seeds: Sequence[int], every: int | None = None
) -> Plan:
    """Plan exactly the missing rows, without a clean pass that is not asked for."""
    config = load_preset(preset_of(selection))
    check_names(config)
    cells: list[Cell] = []
    dropped: dict[str, None] = {}
    for seed, lacking in missing(selection, rows, seeds, every).items():
        groups: dict[tuple[str, ...], list[str]] = {}
        for each in lacking:
            key = (each.dataset, each.network, each.framework, each.attack, each.budget)
            groups.setdefault(key, []).append(each.rejector)
        for (dataset, network, framework, attack, budget), rejectors in groups.items():
            request = Request(
                rejectors=list(dict.fromkeys(rejectors)),
                attacks=[attack],
                datasets=[dataset],
                network=network,
                frameworks=[framework],
                budgets=[budget] if ":" in budget else None,
                seeds=(seed,),
                every=every,
            )
            planned = _fitting(request, config, dropped)
            cells += [cell for cell in planned if (cell.attack.name == CLEAN) == (parse(attack).name == CLEAN)]
    return dataclasses.replace(merged(cells), dropped=tuple(dropped))


def plan_table(
    selection: Selection,
    rows: Iterable[ResultRow],
    seeds: Sequence[int],
    is_available: Callable[[Training], bool],
    every: int | None = None,
) -> Plan:
    """Plan the missing rows whose checkpoints are available; refuse a table for which none ever will be."""
    plan = _available(plan_missing(selection, rows, seeds, every), is_available)
    if (
        not plan.cells
        and plan.dropped
        and not _available(plan_missing(selection, [], seeds, every), is_available).cells
    ):
        raise UseError("nothing to run: " + "; ".join(plan.dropped))
    return plan


def _available(plan: Plan, is_available: Callable[[Training], bool]) -> Plan:
    """Leave out cells whose checkpoints are not available, with a line for each checkpoint."""
    absent = {training for training in plan.checkpoints() if not is_available(training)}
    cells = tuple(cell for cell in plan.cells if cell.training not in absent)
    lines = absences([training for training in plan.checkpoints() if training in absent], ", by this recipe")
    return dataclasses.replace(plan, cells=cells, dropped=(*plan.dropped, *lines))


def _fitting(request: Request, config: Config, dropped: dict[str, None]) -> list[Cell]:
    """Plan what fits; a rejector whose published settings do not fit other data is left out with a line."""
    try:
        return list(plan_cells(request, config).cells)
    except UseError as error:
        rejectors = list(request.rejectors or ())
        if len(rejectors) < 2:
            dropped[str(error)] = None
            return []
    alone = [dataclasses.replace(request, rejectors=[rejector]) for rejector in rejectors]
    return [cell for each in alone for cell in _fitting(each, config, dropped)]


def describe_missing(selection: Selection, tables: PaperTables, seeds: Sequence[int] = (0,)) -> str:
    """Print what is missing, the command that measures it, and its time on one GPU."""
    plan = plan_missing(selection, tables.rows, seeds)
    absent = [each for each in tables.judged if each.verdict == "missing"]
    never = sorted({each.measured.note for each in absent if not wanted(each.cell, preset_of(selection))})
    are = "is" if len(absent) == 1 else "are"
    of = f"{len(absent)} of {counted(len(tables.judged), 'cell')}"
    reduced = sum(bool(each.measured.reduced) for each in tables.judged)
    only = f", {reduced} {'has' if reduced == 1 else 'have'} only reduced rows" if reduced else ""
    lines = [f"{selection.paper}: {of} {are} missing{only}; {tables.sources}"]
    lines += filter(None, [superseded_line(tables.judged)])
    left_out = [f"left out: {line}" for line in plan.dropped]
    if not plan.cells:
        return "\n".join([*lines, *never, *left_out, "nothing left to run"])
    table, training, attacking = [], 0.0, 0.0
    seen: set[str] = set()
    in_zoo = [in_large_zoo(checkpoint) for checkpoint in plan.checkpoints()]
    for (checkpoint, cells), is_in_zoo in zip(plan.checkpoints().items(), in_zoo, strict=True):
        rates = known_rates(checkpoint.network.name, "cuda")
        where = "ships with rrbench" if zoo.find(checkpoint.key) else f"in {zoo.large_zoo()}" if is_in_zoo else ""
        cost = 0 if where else training_gradients(checkpoint)
        training += cost / rates.training
        name = [str(checkpoint.dataset), str(checkpoint.network), checkpoint.trained_as]
        table.append([*name, "", where or "training", "", duration(cost / rates.training)])
        for cell in cells:
            key = cell.attack_key(checkpoint.key, "fp32")
            seconds = 0.0 if key in seen else rates.seconds(cell)
            seen.add(key)
            attacking += seconds
            what = [str(cell.attack), cell.shown_budget, duration(seconds)]
            table.append([str(cell.dataset), name[1], name[2], str(cell.rejector), *what])
    shown = render(["data set", "network", "trained as", "rejector", "attack", "budget", "GPU time"], table, "text")
    words = ["rrbench run --paper", selection.paper]
    words += [f"--dataset {quote(selection.dataset)}"] if selection.dataset else []
    words += [f"--network {quote(selection.network)}"] if selection.network else []
    words += [f"--preset {selection.preset}"] if selection.preset else []
    words += [f"--seeds {','.join(map(str, seeds))}"] if tuple(seeds) != (0,) else []
    total = f"{counted(len(plan.cells), 'row')} on {counted(len(plan.checkpoints()), 'checkpoint')}: "
    total += f"about {duration(training)} of training"
    total += f" and {duration(attacking)} of attacks on one H200 (its measured rates; preset {preset_of(selection)})"
    command = " ".join(words)
    # First the part with checkpoints in the zoo: a run without --zoo would train them again.
    commands = [f"{command} --zoo"] * any(in_zoo) + [command] * (not all(in_zoo))
    return "\n".join([*lines, shown, *never, *left_out, total, ", then ".join(commands)])
