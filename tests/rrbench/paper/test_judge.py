"""Verdicts against hand-made measurements: tolerances, order, footnotes, and a mutated number."""

import pytest

from rrbench.paper.cells import PaperCell, cells_of, table_names, toml
from rrbench.paper.fill import Filled
from rrbench.paper.judge import Judged, footnotes, is_failing, judge, summary, tolerance
from rrbench.paper.wanted import stand_ins


def cell(table: str, **words: str) -> PaperCell:
    (found,) = [cell for cell in cells_of(table) if all(cell.part(key) == value for key, value in words.items())]
    return found


def verdict(own: PaperCell, value: float | None) -> Judged:
    (judged,) = judge([(own, Filled(value))])
    return judged


RR = cell("table2", at="pgd-at", rejector="rr", attack="clean", metric="acc_tpr95")  # 86.91
RR_AUC = cell("table2", at="pgd-at", rejector="rr", attack="clean", metric="auc")  # 0.861
CCAT = cell("table2", at="ccat", rejector="rr", attack="clean", metric="acc_tpr95")  # 94.12
CW = cell("table7", dataset="cifar10", rejector="rr", attack="cw-l2-normal")  # 0.87


@pytest.mark.parametrize(
    ("own", "value", "expected"),
    [
        (RR, 86.91, "within"),
        (RR, 88.41, "within"),
        (RR, 88.42, "above"),
        (RR, 85.41, "within"),
        (RR, 85.40, "below"),
        (RR, None, "missing"),
        (RR_AUC, 0.881, "within"),
        (RR_AUC, 0.8811, "above"),
        (RR_AUC, 0.8409, "below"),
        (CCAT, 92.12, "within"),
        (CCAT, 92.11, "below"),
        (CW, 0.95, "within"),
        (CW, 0.96, "above"),
        (CW, 0.78, "below"),
    ],
)
def test_a_verdict_follows_the_tolerance(own: PaperCell, value: float | None, expected: str) -> None:
    assert verdict(own, value).verdict == expected


def test_every_cell_has_a_tolerance() -> None:
    for name in table_names():
        for own in cells_of(name):
            allowed, _ = tolerance(own)
            assert allowed > 0 or own.published is None


def column(values: dict[str, float]) -> dict[str, str]:
    """Judge the clean AUC of GDA, GDA* and GMM: 0.453, 0.664 and 0.703 in the paper."""
    cells = [
        (cell("table2", at="pgd-at", rejector=name, attack="clean", metric="auc"), Filled(value))
        for name, value in values.items()
    ]
    return {each.cell.rejector: each.verdict for each in judge(cells)}


def test_only_the_order_of_the_gaussian_rejectors_is_held_to() -> None:
    assert set(column({"gda": 0.1, "gda*": 0.2, "gmm": 0.3}).values()) == {"within"}
    assert column({"gda": 0.9, "gda*": 0.2, "gmm": 0.3}) == {"gda": "above", "gda*": "below", "gmm": "below"}
    assert column({"gda": 0.9}) == {"gda": "within"}


def test_an_order_that_the_paper_hardly_makes_is_not_held_to() -> None:
    own = {
        name: cell("table2", at="pgd-at", rejector=name, budget="linf:16", metric="acc_tpr95")
        for name in ("gda", "gda*", "gmm")
    }  # 31.89, 31.94, 31.96
    judged = judge([(own["gda"], Filled(40.0)), (own["gda*"], Filled(30.0)), (own["gmm"], Filled(20.0))])
    assert {each.verdict for each in judged} == {"within"}


@pytest.mark.parametrize(
    ("own", "footnote"),
    [
        (cell("text", dataset="cifar10", attack="autoattack", metric="acc_tpr95"), "autoattack-mixture"),
        (cell("table4", at="pgd-at", rejector="rr", attack="gama-pgd-100"), "gama-pgd"),
        (cell("table2", at="pgd-at", rejector="rr", budget="linf:16", metric="acc_tpr95"), "16-255"),
        (cell("table9", rejector="kd(sigma=0.1)", attack="clean"), "kd-kernel"),
        (cell("table2", at="carl", attack="clean", metric="auc"), "carl-sign"),
        (cell("table11", arch="resnet18", rejector="gda*", attack="clean", metric="auc"), "singular-covariance"),
        (cell("table7", dataset="cifar10", rejector="rr", attack="cw-linf-adaptive"), "cw-adaptive-start"),
    ],
)
def test_a_cell_that_cannot_be_compared_carries_its_footnote_and_is_excused(own: PaperCell, footnote: str) -> None:
    assert footnote in [note.id for note in footnotes(own) if note.excuses]
    judged = verdict(own, (own.published or 0) * 3)
    assert judged.is_excused or not judged.is_out
    assert not is_failing([judged])


@pytest.mark.parametrize("own", [RR, RR_AUC, CCAT, CW, cell("table2", rejector="lid", attack="clean", metric="auc")])
def test_nothing_else_is_excused(own: PaperCell) -> None:
    judged = verdict(own, 99.0)
    assert judged.is_out
    assert not judged.is_excused
    assert is_failing([judged])


@pytest.mark.parametrize(
    "own",
    [
        cell("table2", at="pgd-at", rejector="rr", budget="linf:8", metric="acc_tpr95"),
        cell("table2", at="pgd-at", rejector="lid", budget="l2:128", metric="acc_tpr95"),
    ],
)
def test_a_stronger_attack_excuses_what_lies_below_alone(own: PaperCell) -> None:
    assert own.published is not None
    below, above = verdict(own, own.published - 10), verdict(own, own.published + 10)
    assert (below.verdict, above.verdict) == ("below", "above")
    assert below.is_excused
    assert not above.is_excused


def test_the_gaussian_star_is_no_wildcard() -> None:
    gda = cell("table11", arch="resnet18", rejector="gda", attack="clean", metric="auc")
    assert "singular-covariance" not in [note.id for note in footnotes(gda)]


def test_every_footnote_is_used_once_named_and_has_its_evidence() -> None:
    entries = toml("footnotes.toml")["footnote"]
    used = {
        note.id
        for name in table_names()
        for own in cells_of(name)
        for stand_in in ("", *stand_ins(own.dataset))
        for note in footnotes(own, stand_in)
    }
    assert sorted(used) == sorted(entry["id"] for entry in entries)
    assert all(set(entry["excuses"]) <= {"above", "below"} for entry in entries)
    assert all(len(entry["text"]) > 10 and len(entry["evidence"]) > 10 for entry in entries)
    assert all(len(entry["evidence"]) > 10 for entry in toml("tolerances.toml")["tolerance"])


def test_the_summary_counts_every_cell() -> None:
    overflow = next(own for own in cells_of("table12") if own.value == "nan")
    excused = cell("table9", rejector="kd(sigma=0.1)", attack="clean")
    cells = [(RR, 86.0), (RR_AUC, 0.9), (CCAT, 0.0), (CW, None), (overflow, 80.0), (excused, 0.9)]
    judged = judge([(own, Filled(value)) for own, value in cells])
    assert summary("table0", judged) == (
        "table0: 6 cells: 1 within, 2 above, 1 below, 1 missing; 1 of those out of tolerance have a footnote that "
        "excuses them; 1 measured without a published value"
    )
    undefined = judge([(RR, Filled(is_undefined=True)), (RR_AUC, Filled())])
    assert [each.verdict for each in undefined] == ["undefined", "missing"]
    assert not any(each.is_out for each in undefined)
    assert summary("table0", undefined) == "table0: 2 cells: 0 within, 0 above, 0 below, 1 missing, 1 undefined"
