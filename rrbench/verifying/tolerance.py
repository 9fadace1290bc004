"""How far the scores and the row of a repeated attack may be from the stored ones. Imports no torch.

On the row's machine and in its precision nothing may differ: `run` and `verify --rerun` do the same computation.
Elsewhere sums are added in another order, and attacks that climb by signs amplify the difference. Differences between
honest runs of one attack were measured: by how much the certainties of half of the inputs, and of nine in ten, moved as
shares of their spread (the interquartile range), and how many verdicts flipped.

    float32, 1 thread or 2, batches of 16 to 512      ResNet-18 pgd10, small-cnn pgd20    0, 0             0
    float32, weights off by 6e-8: any order of sums   ResNet-18 pgd10, small-cnn pgd100   2e-7, 7e-7       0
    the same                                          small-cnn cw-l2                     6e-6, 1.4e-5     0
    float32, H200 or CPU                              ResNet-18 clean, 7 rejectors        1e-6, 4e-6       0
    bf16 on an H200 or float32 on a CPU               ResNet-18 pgd10 at linf 16/255      0.0034, 0.016    9 of 1000
    bf16 or float32 on a CPU                          small-cnn pgd20, confidence         0.0019, 0.015    0 of 360
    the same                                          small-cnn pgd20, kd, gda            0.012, 0.065     4 of 360
    the same                                          small-cnn pgd20, lid                0.024, 0.14      8 of 360
    no honest run: another seed of the starts         ResNet-18 pgd10                     0.0033, 0.019    1 of 32
    the same                                          small-cnn pgd20, confidence         0.028, 0.16      20 of 360

Flips go both ways, so metrics move far less: by 0.1 points and 0.002 of AUC for those 9 of 1000.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rrbench.rows import notes
from rrbench.rows.row import FRACTIONS, PERCENTAGES, ResultRow, stated
from rrbench.rows.scores import Scores

SIGMAS = 3.0  # of the net effect of verdicts that flip by chance, in both directions equally often
LOGIT_TOLERANCE = 1e-3  # of a replay: share of the largest value; other hardware sums in another order
COST = 0.02  # of gradients and passes: attacks that stop at a success count a few more or fewer


class Tolerance(NamedTuple):
    """What may differ; all zero means nothing."""

    half: float  # half of the inputs may move their certainty by at most this share of the spread
    most: float  # the same for nine inputs in ten
    flips: float  # share of the inputs whose verdict may change

    def slack(self, count: int) -> float:
        """Return by how much a share of `count` inputs may differ; one input may always change sides."""
        return max(1.0, SIGMAS * np.sqrt(self.flips * count)) / max(count, 1) if self.flips else 0.0

    def cost(self, row: ResultRow) -> float:
        """Return by what share gradients and passes may differ.

        Rounding decides when a climb comes back to an image. So only the mean over all inputs is compared.
        """
        if not self.flips:
            return 0.0
        attack = stated(row).get("attack")
        is_until_repeat = isinstance(attack, dict) and attack.get("until") == "repeat"
        return max(COST, SIGMAS / np.sqrt(row.n or 1)) if is_until_repeat else COST

    def __str__(self) -> str:
        if not self.flips:
            return "none: the same machine and precision"
        return (
            f"certainties moved by {self.half:g} (half of the inputs) and {self.most:g} (nine in ten) of their spread, "
            f"accuracies by {100 * self.slack(10_000):.2f} points of 10,000 inputs"
        )


EXACT = Tolerance(0, 0, 0)
# Float32 elsewhere: above all measured differences, and 0.09 points of 10,000 inputs; published effects are larger.
ROUNDED = Tolerance(half=0.001, most=0.01, flips=0.001)
# bf16 and tf32: about twice the largest measured difference, and 0.3 points of 10,000 inputs.
SHORT = Tolerance(half=0.05, most=0.25, flips=0.01)


def disagreements(
    row: ResultRow,
    stored: Scores,
    again: Scores,
    columns: Mapping[str, Any],
    tolerance: Tolerance,
    *,
    is_ensemble: bool,
    is_older: bool,
) -> Iterator[str]:
    """Say where a repeated attack contradicts the stored scores and the row; `columns`: what a run would write now.

    A row that other code has measured (`is_older`) may lack notes which only this code writes.
    """
    yield from _moved(stored, again, tolerance)
    yield from _measured(row, again, columns, tolerance)
    cost = tolerance.cost(row)
    # An ensemble that ran after its members took their answers from the store, at no cost.
    for name in () if is_ensemble else ("gradients", "forwards"):
        there, here = getattr(row, name), columns[name]
        if there is None or abs(there - here) > cost * here:
            yield f"its row says {there} {name} an image, and repeating the attack takes {here}"
    there, here = (_texts(note, tolerance).keys() for note in (row.note, columns["note"]))
    if not (there == here or (is_older and there <= here)):
        yield f"its note is {row.note!r}, and repeating the attack gives {columns['note']!r}"


def new_notes(row: ResultRow, note: str, tolerance: Tolerance) -> list[str]:
    """Return the notes that a run would write now and that a row lacks."""
    there, here = _texts(row.note, tolerance), _texts(note, tolerance)
    return [here[text] for text in here if text not in there]


def _texts(note: str, tolerance: Tolerance) -> dict[str, str]:
    """Return each note by its text for comparison: on another machine its numbers differ a little."""
    each = notes.split(note)
    return {re.sub(r"\d+(\.\d+)?", "#", one) if tolerance.flips else one: one for one in each}


def _moved(stored: Scores, again: Scores, tolerance: Tolerance) -> Iterator[str]:
    """Compare input by input: everything if nothing may differ, else how far certainties have moved."""
    if not tolerance.flips:
        for name in Scores._fields:
            there, here = getattr(stored, name), getattr(again, name)
            if name in ("logits", "head"):  # only of the first inputs, unless other rejectors use them
                here = here[: len(there)]
            if there.shape != here.shape or not np.array_equal(there, here, equal_nan=here.dtype.kind == "f"):
                yield f"repeating the attack gives other {name}, and on this machine nothing may differ"
        return
    for name in ("certainty", "boldest_certainty"):
        here, there = getattr(again, name), getattr(stored, name)
        half, most = np.quantile(_distance(here, there) / _spread(again.certainty), [0.5, 0.9], method="lower")
        if half > tolerance.half or most > tolerance.most:
            yield (
                f"repeating the attack moves its {name} by {half:.2g} (half of the inputs) and {most:.2g} "
                f"(nine in ten) of the spread; {tolerance.half:g} and {tolerance.most:g} may be"
            )


def _distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far apart scores are; two equal infinities are 0 apart."""
    with np.errstate(invalid="ignore"):
        return np.where(one == other, 0.0, np.abs(one - other))


def _spread(certainty: NDArray[np.float64]) -> float:
    low, high = np.quantile(certainty, [0.25, 0.75])
    return float(high - low) or 1.0


def _measured(row: ResultRow, again: Scores, columns: Mapping[str, Any], tolerance: Tolerance) -> Iterator[str]:
    """Compare every metric of the row with that of the repeated attack."""
    right = int(again.correct.sum())
    rarer = min(right, len(again.labels) - right)  # ranks compare each right input with each wrong one
    for name, here in columns.items():
        if name not in PERCENTAGES | FRACTIONS | {"n", "deploy_n", "distance", "distance_success"}:
            continue
        there = getattr(row, name)
        if name in ("n", "deploy_n"):
            slack = 0.0
        elif name.startswith("distance"):
            slack = tolerance.most * abs(here or 0.0)
        else:
            count = len(again.labels) if name in ("acc_all", "ece", "success") or name.startswith("deploy") else rarer
            slack = tolerance.slack(count) * (100 if name in PERCENTAGES else 1)
        if here is None or there is None:
            # Undefined if all inputs are right, or all wrong: a single verdict may decide it.
            if (here is None) != (there is None) and tolerance.slack(1) * rarer < 1:
                yield f"{name} is {here} when the attack is repeated, and the row says {there}"
        elif abs(here - there) > slack + 1e-9 * abs(here):
            why = f"(tolerance {slack:.2g})"
            yield f"{name} is {here:.6g} when the attack is repeated, and the row says {there:.6g} {why}"


def is_near(here: NDArray[np.floating], there: NDArray[np.floating]) -> bool:
    """Tell whether replayed certainties are the stored ones; with the tolerance of logits, from which they come."""
    known = np.abs(there[np.isfinite(there)])
    return np.allclose(here, there, rtol=0, atol=LOGIT_TOLERANCE * max(1.0, float(known.max(initial=0.0))))
