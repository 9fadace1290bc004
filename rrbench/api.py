"""`rrbench.run`, and what the commands share with it: a request is checked, planned and worked through."""

import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict, Unpack

import pandas as pd

from rrbench.compute.devices import describe, find_device, find_precision, tell_compiling
from rrbench.datasets.search import roots
from rrbench.deadline import read_deadline
from rrbench.engines import find_engine
from rrbench.errors import UseError
from rrbench.files import provenance
from rrbench.frames import to_frame
from rrbench.measuring.materials import Materials
from rrbench.measuring.runner import Engine, Runner
from rrbench.measuring.store import Store
from rrbench.names import split_list
from rrbench.paper.planning import check_alone, plan_table, preset_of, select
from rrbench.paper.sources import default_folders, read_folders
from rrbench.planning.cells import Plan
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import Config, load_file, load_preset
from rrbench.progress import Report, Silent
from rrbench.rows.row import ResultRow

Names = str | Sequence[str] | None
KEEPABLE = frozenset({"images", "features"})


@dataclass(frozen=True)
class Job:
    """A plan, the runner that will work through it, and the engine that says where."""

    plan: Plan
    runner: Runner
    config: Config
    engine: Engine

    @property
    def materials(self) -> Materials:
        """What the runner works with: the work folder, data, checkpoints, the device."""
        return self.runner.materials


def prepare(
    rejectors: Names = None,
    attacks: Names = None,
    *,
    dataset: Names = None,
    network: str | None = None,
    frameworks: Names = None,
    budgets: Names = None,
    paper: str | None = None,
    preset: str | None = None,
    config: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str] = "runs",
    data_dir: str | os.PathLike[str] | None = None,
    device: str = "auto",
    precision: str = "auto",
    engine: str = "local",
    address: str | None = None,
    zoo: bool = False,
    retrain: bool = False,
    limit: int | None = None,
    seeds: Sequence[int] = (0,),
    keep: Names = None,
    stop_after: str | None = None,
    recipe: Mapping[str, object] | None = None,
    report: Report | None = None,
) -> Job:
    """Check every word of a request and return the work it means; nothing is computed or written yet.

    The preset is quick where none is named, and for `paper` (the missing cells of a table) paper.
    """
    deadline = read_deadline(stop_after)
    if paper is not None:
        given = {"rejectors": rejectors, "attacks": attacks, "frameworks": frameworks, "budgets": budgets}
        check_alone({**given, "config": config, "limit": limit, "recipe": recipe or None})
        selection = select(paper, _list(dataset), network, preset)
        preset = preset_of(selection)
    preset = preset or "quick"
    settings = load_preset(preset) if config is None else load_file(Path(config), preset)
    if zoo and retrain:
        raise UseError("--zoo and --retrain exclude each other")
    kept = frozenset(_list(keep) or ())
    if kept - KEEPABLE:
        raise UseError(f"--keep takes images, features; not {', '.join(sorted(kept - KEEPABLE))}")
    request = Request(
        rejectors=_list(rejectors),
        attacks=_list(attacks),
        datasets=_list(dataset),
        network=network,
        frameworks=_list(frameworks),
        budgets=_list(budgets),
        seeds=tuple(seeds),
        limit=limit,
        recipe=recipe or {},
    )
    worked_by = find_engine(engine, address)
    found = find_device(device, is_here=engine == "local")
    materials = Materials(
        Store(Path(out)),
        found,
        find_precision(precision, found),
        roots(Path(data_dir) if data_dir else None),
        use_large_zoo=zoo,
        retrain=retrain,
        report=report or Silent(),
        deadline=deadline,
    )
    tell_compiling(found, materials.report)
    if paper is None:
        plan = make_plan(request, settings)
    else:
        rows, _ = read_folders(default_folders(Path(out)))
        plan = plan_table(selection, rows, tuple(seeds), materials.can_supply)
    return Job(plan, Runner(materials, kept), settings, worked_by)


def _list(names: Names) -> list[str] | None:
    if names is None:
        return None
    listed = split_list(names) if isinstance(names, str) else [name for text in names for name in split_list(text)]
    if not listed:
        raise UseError(f"an empty list of names: {names!r}")
    return listed


def execute(job: Job, command: Sequence[str]) -> list[ResultRow]:
    """Work through a job and note it in the folder's manifest."""
    materials, begin = job.materials, time.time()
    record: dict[str, object] = {
        "command": shlex.join(command),
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
    """Say what an interrupted command leaves in the work folder."""
    begun = [text for training in plan.trainings() if (text := materials.begun(training))]
    materials.report.line(f"kept in {materials.store.root}: {', '.join([finished, *begun])}")


class Options(TypedDict, total=False):
    """What `run` takes beside rejectors and attacks: the options of `rrbench run`, with its defaults."""

    dataset: Names
    network: str | None
    frameworks: Names
    budgets: Names
    paper: str | None
    preset: str | None
    config: str | os.PathLike[str] | None
    out: str | os.PathLike[str]
    data_dir: str | os.PathLike[str] | None
    device: str
    precision: str
    engine: str
    address: str | None
    zoo: bool
    retrain: bool
    limit: int | None
    seeds: Sequence[int]
    keep: Names
    stop_after: str | None
    recipe: Mapping[str, object] | None
    report: Report | None


def run(rejectors: Names = None, attacks: Names = None, **options: Unpack[Options]) -> pd.DataFrame:
    """Run a benchmark as `rrbench run` does and return its rows.

    >>> rrbench.run("rr,ebd", "pgd100,adaptive", limit=100)  # doctest: +SKIP
    """
    job = prepare(rejectors, attacks, **options)
    return to_frame(execute(job, ["rrbench.run", *sys.argv[:1]]))
