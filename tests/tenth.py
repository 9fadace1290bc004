"""The scores on every tenth image, and what results/README.md and FINDINGS.md say of them."""

from functools import cache
from pathlib import Path

from published import ROOT, cells_in
from rrbench.metrics.measures import accept_at_tpr95
from rrbench.rows.scores import Scores, read_scores

TENTH = ROOT / "results" / "tenth"
Victim = tuple[str, str]
RR, EBD, TRADES = ("pgd-at+rr", "rr"), ("pgd-at+ebd", "ebd"), ("trades", "confidence")
SHOWN = {
    ("pgd-at+snet", "snet"): "PGD-AT+SNet, SNet",
    ("pgd-at+ebd", "ebd"): "PGD-AT+EBD, EBD",
    ("pgd-at+rr", "rr"): "PGD-AT+RR, R-Con",
    ("trades", "confidence"): "TRADES, confidence",
    ("trades+rr", "rr"): "TRADES+RR, R-Con",
    ("carl", "carl"): "CARL, margin",
    ("atro", "atro"): "ATRO, margin",
}


@cache
def text() -> str:
    section = (ROOT / "results" / "README.md").read_text(encoding="utf-8").split("### On every tenth image")[1]
    return section.split("\n### ")[0]


@cache
def flat() -> str:
    return " ".join(text().split())


@cache
def findings() -> str:
    return " ".join((ROOT / "results" / "FINDINGS.md").read_text(encoding="utf-8").split())


@cache
def scores(folder: Path, victim: Victim, attack: str, dataset: str = "cifar10", preset: str = "paper") -> Scores:
    (found,) = [
        record
        for record, _ in cells_in(folder)
        if (record.row.trained_as, record.row.rejector, record.row.attack) == (*victim, attack)
        and (record.row.dataset, record.row.preset, record.row.eps) == (dataset, preset, "8/255")
    ]
    return read_scores(folder, found.files)


def tpr95(given: Scores, chosen: slice) -> float:
    correct = given.correct[chosen]
    accepted = accept_at_tpr95(given.certainty[chosen], correct, "quantile")
    assert accepted is not None
    return float(100 * correct[accepted].mean())
