"""What the documents say, and the published rows and gains that they speak of."""

from functools import cache
from typing import Any

import numpy as np

from published import ROOT, Files, rows, scores, victims_at
from rrbench.metrics.resampling import resampled_share
from rrbench.rows.paired import Difference, all_but_note, differences, paired_difference
from rrbench.rows.row import ResultRow

NAMES = {"RR": "rr", "EBD": "ebd", "SNet": "snet"}  # others are called as in the rows, but for capitals
NETWORKS = {
    "rr": "pgd-at+rr",
    "rr(score=con)": "pgd-at+rr",
    "coupled": "pgd-at+rr",
    "ebd": "pgd-at+ebd",
    "snet": "pgd-at+snet",
    "atro": "atro",
    "carl": "carl",
}


@cache
def text(file: str) -> str:
    return " ".join((ROOT / file).read_text(encoding="utf-8").split())


def findings() -> str:
    return text("results/FINDINGS.md")


def victim(name: str) -> tuple[str, str]:
    rejector = NAMES.get(name, name.lower())
    return NETWORKS.get(rejector, "pgd-at"), rejector


def at(name: str, attack: str = "worst-case", eps: str = "8/255") -> ResultRow:
    return victims_at(attack, eps)[victim(name)]


def joint(name: str, attack: str = "worst-case", eps: str = "8/255") -> str:
    return f"{at(name, attack, eps).deploy_joint:.2f}"


def own_gain(row: ResultRow) -> float:
    """Return joint less the accuracy that the same images leave if nothing is rejected."""
    assert row.deploy_joint is not None
    assert row.acc_all is not None
    return row.deploy_joint - row.acc_all


@cache
def less(one: str, other: str) -> tuple[str, str, str]:
    """Return the paired difference at the worst case and its interval, each with a sign."""
    found = paired_difference(at(one), at(other), "deploy_joint", scores())
    assert found is not None
    return f"{found.value:+.2f}", f"{found.low:+.2f}", f"{found.high:+.2f}"


def shown(one: str, other: str) -> str:
    value, low, high = less(one, other)
    return f"{value} [{low}, {high}]"


@cache
def gain_of(row: ResultRow) -> Difference:
    """Return what a rejector gains over never rejecting on its own network."""
    (found,) = differences([row], rows(), "never-reject", "deploy_joint", scores()) or ()  # type: ignore[misc]
    return found


def gain(name: str) -> str:
    found = gain_of(at(name))
    return f"{found.value:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def gain_draws(row: ResultRow, files: Files | None = None) -> Any:
    """Return the gain in each draw of examples."""
    file = (files or scores())[all_but_note(row)]
    own = file.scores()
    both = (own.correct & own.clean_correct).astype(float)
    never = resampled_share(both, np.ones_like(both), file.metrics.resamples, 0)
    return file.drawn(own, "deploy_joint", file) - 100 * never


def gains_apart(one: ResultRow, other: ResultRow, files: Files | None = None) -> str:
    """Return one gain less another, with its paired interval."""
    low, high = np.percentile(gain_draws(one, files) - gain_draws(other, files), (2.5, 97.5))
    return f"{own_gain(one) - own_gain(other):+.2f} [{low:+.2f}, {high:+.2f}]"


def under(attack: str, eps: str) -> dict[str, ResultRow]:
    """Return the rows of preset `paper` on plain PGD-AT under a blind attack, by rejector."""
    found = [row for row in rows() if (row.trained_as, row.preset, row.norm) == ("pgd-at", "paper", "linf")]
    return {row.rejector: row for row in found if (row.attack, row.eps) == (attack, eps)}


def on_all(trained_as: str, norm: str, eps: str, attack: str) -> ResultRow:
    (row,) = [
        row
        for row in rows()
        if (row.trained_as, row.norm, row.eps, row.attack, row.preset) == (trained_as, norm, eps, attack, "paper")
        and row.rejector == {"trades+rr": "rr", "carl": "carl"}.get(trained_as, "confidence")
    ]
    return row


def under_pgd100x10(trained_as: str, rejector: str) -> ResultRow:
    wanted = (trained_as, rejector, "pgd100x10", "8/255", "paper")
    (row,) = [row for row in rows() if (row.trained_as, row.rejector, row.attack, row.eps, row.preset) == wanted]
    return row
