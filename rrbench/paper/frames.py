"""`rrbench.table`: rows, or a table of the paper, as a pandas DataFrame."""

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from rrbench.errors import UseError
from rrbench.paper.cells import FIELDS, is_paper_name
from rrbench.paper.show import MEASURED_FIELDS, record_of
from rrbench.paper.tabulate import Selection, paper_tables
from rrbench.plugins.arguments import checked
from rrbench.rows.currency import noted
from rrbench.rows.published import find_results, remark
from rrbench.rows.row import read_rows, to_frame
from rrbench.rows.weak_attacks import with_weak_notes

NUMBERS = ("value", "measured", "published", "difference", "low", "high")


@checked
def table(
    results: str | os.PathLike[str] = "runs",
    *,
    folders: Sequence[str | os.PathLike[str]] | None = None,
    dataset: str | None = None,
    network: str | None = None,
    preset: str | None = None,
) -> pd.DataFrame:
    """Return the rows of a results CSV or of a work folder; or a table of the paper by name, one line for each cell.

    The rest is for a table of the paper: where its rows are, and which data set, network and preset to show.

    >>> rrbench.table("runs").pivot_table(index="rejector", columns="attack", values="auc")  # doctest: +SKIP
    >>> rrbench.table("table2")[["at", "rejector", "metric", "measured", "published"]]  # doctest: +SKIP
    """
    if not is_paper_name(os.fspath(results)):
        if folders is not None or dataset or network or preset:
            raise UseError("folders, dataset, network and preset are for a table of the paper, such as 'table2'")
        path = find_results(Path(results))
        if path != Path(results):
            warnings.warn(remark(Path(results), path), stacklevel=3)
        return to_frame(noted(with_weak_notes(read_rows(path), is_whole=False)))
    selection = Selection(os.fspath(results), dataset, network, preset)
    tables = paper_tables(selection, None if folders is None else [Path(folder) for folder in folders])
    frame = pd.DataFrame([record_of(each) for each in tables.judged], columns=[*FIELDS, *MEASURED_FIELDS])
    return frame.assign(**{name: pd.to_numeric(frame[name]) for name in NUMBERS})
