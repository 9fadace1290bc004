"""`rrbench.run`, and the steps that commands share with it: check a request, plan it, do the work."""

import inspect
import os
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rrbench.compute.devices import describe, find_device, find_precision, tell_compiling
from rrbench.datasets.search import roots
from rrbench.engines import find_engine
from rrbench.errors import UseError
from rrbench.files import provenance
from rrbench.measuring.materials import Materials
from rrbench.measuring.runner import Engine, Runner
from rrbench.measuring.store import Store
from rrbench.objects import Names, Things, device_of, read_datasets, read_names, read_networks, read_things
from rrbench.paper.planning import check_alone, plan_table, preset_of, select
from rrbench.paper.sources import default_folders, read_folders
from rrbench.paper.tabulate import Selection
from rrbench.planning.cells import Cell, Given, Plan
from rrbench.planning.deadline import Deadline, read_deadline
from rrbench.planning.plan import Request, make_plan
from rrbench.planning.sample import Sample
from rrbench.plugins.arguments import Arguments, Result, check_call
from rrbench.plugins.config import Config, load_file, load_preset
from rrbench.plugins.objects import choose_attack, choose_rejector
from rrbench.plugins.own import OWN, holding
from rrbench.progress import Report, Silent
from rrbench.rows.row import ResultRow, to_frame
from rrbench.zoo import zoo_prefix

if TYPE_CHECKING:
    import pandas as pd

KEEPABLE = frozenset({"images", "features"})


@dataclass(frozen=True)
class Job:
    """A plan, the runner that will do its work, and the engine that chooses the processes for it."""

    plan: Plan
    runner: Runner
    config: Config
    engine: Engine

    @property
    def materials(self) -> Materials:
        """The runner's work folder, data, checkpoints and device."""
        return self.runner.materials


@dataclass(frozen=True)
class RunOptions:
    """The options of `rrbench run`, with their defaults; `rrbench run --help` explains each option.

    Names are one text, such as "rr,ebd", or a list of texts. Objects may stand beside or instead of names.
    """

    rejectors: Things = None
    attacks: Things = None
    _: KW_ONLY
    dataset: Things = None
    network: Things = None
    frameworks: Names = None
    budgets: Names = None
    paper: str | None = None
    preset: str | None = None  # None: quick, or paper if the option `paper` is given
    config: str | os.PathLike[str] | None = None
    out: str | os.PathLike[str] = "runs"
    data_dir: str | os.PathLike[str] | None = None
    device: str = "auto"
    precision: str = "auto"
    engine: str = "local"
    address: str | None = None
    zoo: bool = False
    retrain: bool = False
    limit: int | None = None
    every: int | None = None
    seeds: Sequence[int] = (0,)
    keep: Names = None
    stop_after: str | None = None
    fit_data: object = None  # for a `dataset` that is an object: clean training inputs
    calibration_data: object = None  # and clean held-out inputs, which fix the deployed threshold
    recipe: Mapping[str, object] | None = None  # training settings that overrule the preset's
    report: Report | None = None  # gets progress and warnings; None: silent


def prepare(options: RunOptions) -> Job:
    """Check every option of a request and return the work to do; nothing is computed or written yet."""
    deadline = read_deadline(options.stop_after)
    selection = _selection(options)
    preset = (options.preset if selection is None else preset_of(selection)) or "quick"
    config = load_preset(preset) if options.config is None else load_file(Path(options.config), preset)
    Sample.asked(options.limit, options.every)
    if options.zoo and options.retrain:
        raise UseError("--zoo and --retrain exclude each other")
    kept = frozenset(read_names(options.keep) or ())
    if kept - KEEPABLE:
        raise UseError(f"--keep takes images, features; not {', '.join(sorted(kept - KEEPABLE))}")
    request = _request(options, config)
    engine = find_engine(options.engine, options.address)
    materials = _materials(options, deadline, device_of(options.network))
    if selection is None:
        plan = make_plan(request, config)
        if options.engine != "local" and any(OWN in _own_names(cell) for cell in plan.cells):
            raise UseError("objects that are given in Python cannot be sent to other machines: leave out the engine")
        if plan.cells and all(isinstance(cell.training, Given) for cell in plan.cells):
            for option in ("zoo", "retrain", "recipe"):
                if getattr(options, option):
                    raise UseError(f"{option} is for networks that rrbench trains, and these are given: leave it out")
        materials.check_given(plan)
    else:
        rows, _ = read_folders(default_folders(Path(options.out)))
        plan = plan_table(selection, rows, tuple(options.seeds), materials.is_available, request.every)
    return Job(plan, Runner(materials, kept), config, engine)


def _selection(options: RunOptions) -> Selection | None:
    """Return the table of the paper to fill; None if the request names none."""
    if options.paper is None:
        return None
    alone = ("rejectors", "attacks", "frameworks", "budgets", "config", "limit")
    check_alone({name: getattr(options, name) for name in alone} | {"recipe": options.recipe or None})
    if not isinstance(options.network, str | None):
        raise UseError("a table of the paper has one network: give its name")
    return select(options.paper, read_names(options.dataset), options.network, options.preset)


def _request(options: RunOptions, config: Config) -> Request:
    """Turn the options into a request; objects become choices, which are held until the call ends."""
    refit = options.fit_data is not None
    return Request(
        rejectors=read_things(options.rejectors, lambda given, name: choose_rejector(given, config, name, refit=refit)),
        attacks=read_things(options.attacks, lambda given, name: choose_attack(given, config, name)),
        datasets=read_datasets(options.dataset, options.fit_data, options.calibration_data),
        network=read_networks(options.network),
        frameworks=read_names(options.frameworks),
        budgets=read_names(options.budgets),
        seeds=tuple(options.seeds),
        limit=options.limit,
        every=options.every,
        recipe=options.recipe or {},
    )


def _own_names(cell: Cell) -> set[str]:
    return {choice.name for choice in (cell.dataset, cell.training.network, cell.rejector, cell.attack)}


def _materials(options: RunOptions, deadline: Deadline, own: torch.device | None) -> Materials:
    if not str(options.out).strip():  # it would mean the current folder
        raise UseError("out is empty: give a folder")
    device = own or find_device(options.device, is_here=options.engine == "local")
    materials = Materials(
        Store(Path(options.out)),
        device,
        find_precision(options.precision, device),
        roots(Path(options.data_dir) if options.data_dir else None),
        use_large_zoo=options.zoo,
        retrain=options.retrain,
        report=options.report or Silent(),
        deadline=deadline,
    )
    tell_compiling(device, materials.report)
    return materials


def execute(job: Job, command: Sequence[str]) -> list[ResultRow]:
    """Do the work of a job and add the run to the folder's manifest."""
    materials, begin = job.materials, time.time()
    record: dict[str, object] = {
        "command": (zoo_prefix() if materials.use_large_zoo else "") + shlex.join(command),
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(begin)),
        "preset": job.config.preset,
        "device": describe(materials.device),
        "precision": materials.precision,
        "version": provenance.version(),
        "commit": provenance.commit(),
        "packages": provenance.packages(),
        "machine": provenance.machine(),
    }
    for line in job.plan.dropped:
        materials.report.line(f"left out: {line}")
    materials.store.set_damaged_aside(materials.report)
    try:
        rows = job.runner.run(job.plan, job.engine)
    except KeyboardInterrupt:
        there = materials.store.rebuild_rows(materials.report)
        keys = materials.keys(job.plan.cells)
        tell_kept(materials, job.plan, f"{sum(key in there for key in keys)} of {len(keys)} cells")
        raise
    record |= {
        "seconds": round(time.time() - begin, 1),
        "cells": len(rows),
        "failed": sum(row.status != "ok" for row in rows),
    }
    materials.store.add_to_manifest(record, materials.report)
    return rows


def tell_kept(materials: Materials, plan: Plan, finished: str) -> None:
    """Report what an interrupted command leaves in the work folder."""
    begun = [text for training in plan.trainings() if (text := materials.begun(training))]
    materials.report.line(f"kept in {materials.store.root}: {', '.join([finished, *begun])}")


def spelled_out(
    make: Callable[Arguments, RunOptions],
) -> Callable[[Callable[[RunOptions], Result]], Callable[Arguments, Result]]:
    """Let a function of RunOptions take each option as an argument, with the types and defaults of `make`."""
    signature = inspect.signature(make)

    def decorate(function: Callable[[RunOptions], Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def called(*given: Arguments.args, **named: Arguments.kwargs) -> Result:
            bound = check_call(function.__name__, signature, given, named)
            return function(make(*bound.args, **bound.kwargs))

        returned = inspect.signature(function).return_annotation
        vars(called)["__signature__"] = signature.replace(return_annotation=returned)
        return called

    return decorate


@spelled_out(RunOptions)
def run(options: RunOptions) -> "pd.DataFrame":
    """Run a benchmark as `rrbench run` does and return its rows.

    `rrbench run --help` explains each option. Names are one text, such as "rr,ebd", or a list of texts. Objects may
    stand beside names: a Rejector or a function from Outputs to certainty, an Attack, an nn.Module that is trained
    (`network`), inputs (`dataset`); a dict gives them names. Four options exist only in Python: `fit_data` and
    `calibration_data` (of inputs that are given), `recipe` (training settings) and `report` (gets progress and
    warnings; None: silent).

    >>> rrbench.run("rr,ebd", "pgd100,adaptive", limit=100)  # doctest: +SKIP
    """
    with holding():
        return to_frame(execute(prepare(options), ["rrbench.run", *sys.argv[:1]]))
