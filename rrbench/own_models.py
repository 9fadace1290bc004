"""`rrbench.evaluate`: measures users' own networks; a thin front of `rrbench.run`, with its work folder and rows."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from rrbench.api import RunOptions, execute, prepare
from rrbench.datasets.given import EXPECTED
from rrbench.errors import UseError, no_exit
from rrbench.names import parse, split_list
from rrbench.planning.cells import show_budget
from rrbench.planning.plan import CLEAN
from rrbench.plugins.arguments import checked
from rrbench.plugins.own import holding
from rrbench.progress import Silent, reporter
from rrbench.protocols import Attack, Batch, Budget, Outputs, Rejector
from rrbench.rows.row import to_frame

OneRejector = str | Rejector | Callable[[Outputs], Tensor]
OneAttack = str | Attack
Data = Batch | tuple[Any, Any] | Dataset[Any] | DataLoader[Any]  # a pair: of torch tensors or NumPy arrays


@no_exit("the network, the rejector or the attack", UseError)
@checked
def evaluate(
    models: nn.Module | Sequence[nn.Module] | Mapping[str, nn.Module],
    rejectors: OneRejector | Sequence[OneRejector] | Mapping[str, OneRejector],
    attacks: OneAttack | Sequence[OneAttack] | Mapping[str, OneAttack],
    data: Data | Mapping[str, Data],
    *,
    name: str | None = None,
    budget: str | Budget | Sequence[str | Budget] | None = None,
    fit_data: Data | None = None,
    calibration_data: Data | None = None,
    out: str | os.PathLike[str] = "runs",
    limit: int | None = None,
    seed: int = 0,
    preset: str = "quick",
    config: str | os.PathLike[str] | None = None,
    precision: str = "fp32",
    keep: str | Sequence[str] | None = None,
    stop_after: str | None = None,
    progress: bool = True,
) -> pd.DataFrame:
    """Measure your own networks with rejectors under attacks; return one row for each of them together.

    One or several of each; a dict gives names, and so does `name` for a single model. A model takes images in [0, 1]
    and returns logits, (features, logits) or Outputs; it is measured on its own device, and stays as it was. A rejector
    is a name, a Rejector, or a function from Outputs to certainty (higher = keep). An attack is a name or an Attack.
    `data` is (images, labels) of torch or NumPy, bytes too, a Batch, a Dataset or a DataLoader. Attacks with a budget
    need `budget`, such as "linf:8/255".

    Rejectors with a fit, and adaptive attacks on certainties that are no probabilities, need `fit_data` (clean training
    inputs). `calibration_data` (clean held-out inputs) fixes the deployed threshold; without it, the clean inputs of
    `data` fix it by cross-fitting.

    The work folder `out` is that of `rrbench run`: finished work in it is used again, `rrbench table`, `figure`,
    `report` and `verify` read it. It also gets the rows of the clean inputs; the frame has them if "clean" is among the
    attacks. A row that could not be measured has the status "failed" and says why; if none could, that is an error.

    >>> rrbench.evaluate(model, "confidence,energy", "pgd100", (images, labels), budget="linf:8/255")  # doctest: +SKIP
    """
    if name is not None:
        if not isinstance(models, nn.Module):
            raise UseError("name is for a single model: give several models as a dict, {name: model}")
        models = {name: models}
    if data is None:
        raise UseError(f"data must be {EXPECTED}, not None")
    budgets = [budget] if isinstance(budget, str | Budget) else budget
    options = RunOptions(
        rejectors,
        attacks,
        dataset=data,
        network=models,
        budgets=None if budgets is None else [show_budget(b) if isinstance(b, Budget) else b for b in budgets],
        fit_data=fit_data,
        calibration_data=calibration_data,
        preset=preset,
        config=config,
        out=out,
        precision=precision,
        limit=limit,
        seeds=(seed,),
        keep=keep,
        stop_after=stop_after,
        report=reporter() if progress else Silent(),
    )
    with holding():
        job = prepare(options)
        rows = execute(job, ["rrbench.evaluate", *sys.argv[:1]])
    wanted = rows if _asks_for_clean(attacks) else [row for row in rows if row.attack != CLEAN]
    if not wanted and job.plan.dropped:
        raise UseError("nothing to measure: " + "; ".join(job.plan.dropped))
    if wanted and all(row.status != "ok" for row in wanted):
        raise UseError(wanted[0].error)
    return to_frame(wanted)


def _asks_for_clean(attacks: object) -> bool:
    """Tell whether the clean inputs' rows are wanted."""
    listed = (
        attacks.values()
        if isinstance(attacks, Mapping)
        else attacks
        if isinstance(attacks, list | tuple)
        else [attacks]
    )
    return any(parse(part).name == CLEAN for text in listed if isinstance(text, str) for part in split_list(text))
