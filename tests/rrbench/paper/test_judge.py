"""Verdicts against hand-made measurements: tolerances, order, and footnotes, which explain and never turn a cell."""

import pytest

from rrbench.paper.cells import PaperCell, cells_of, table_names, toml
from rrbench.paper.fill import Filled
from rrbench.paper.judge import Judged, footnotes, is_failing, judge, summary, tolerance, tolerances_line
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
AT_16 = {"at": "pgd-at", "budget": "linf:16", "metric": "acc_tpr95"}
RR_AT_16 = cell("table2", rejector="rr", **AT_16)  # 35.32
KD_AT_16 = cell("table2", rejector="kd", **AT_16)  # 31.97


@pytest.mark.parametrize(
    ("own", "value", "expected"),
    [
        (RR, 86.91, "within"),
        (RR, 88.41, "within"),
        (RR, 88.42, "unexplained"),
        (RR, 85.41, "within"),
        (RR, 85.40, "unexplained"),
        (RR, None, "missing"),
        (RR_AUC, 0.881, "within"),
        (RR_AUC, 0.8811, "unexplained"),
        (RR_AUC, 0.8409, "unexplained"),
        (CCAT, 92.12, "within"),
        (CCAT, 92.11, "unexplained"),
        (CW, 0.95, "within"),
        (CW, 0.96, "unexplained"),
        (CW, 0.78, "unexplained"),
        (KD_AT_16, 31.97 - 1.5, "within"),
        (KD_AT_16, 31.97 - 1.51, "explained"),
        (KD_AT_16, 31.97 - 15.58, "explained"),
        (RR_AT_16, 35.32 - 1.5, "within"),
        (RR_AT_16, 35.32 - 17.29, "explained"),
        (RR_AT_16, 35.32 + 15.00, "unexplained"),
    ],
)
def test_a_verdict_follows_the_tolerance_and_a_footnote_only_explains(
    own: PaperCell, value: float | None, expected: str
) -> None:
    judged = verdict(own, value)
    assert judged.verdict == expected
    assert is_failing([judged]) == (expected == "unexplained")


@pytest.mark.parametrize("at", ["pgd-at", "trades", "ccat", "carl", "atro"])
def test_pooling_explains_the_fog_of_two_frameworks_where_rows_are_not_pooled_and_of_no_other(at: str) -> None:
    foggy = [own for own in cells_of("table3") if (own.at, own.attack) == (at, "corruption:fog")]
    for preset, explained in (("paper", at in ("pgd-at", "trades")), ("official", False)):
        judged = judge([(own, Filled((own.published or 0) - 3, preset=preset)) for own in foggy])
        assert {each.verdict for each in judged} == {"explained" if explained else "unexplained"}
        judged = judge([(own, Filled((own.published or 0) + 3, preset=preset)) for own in foggy])
        assert {each.verdict for each in judged} == {"unexplained"}


POINTS = {"acc_all": 1.0, "acc_tpr95": 1.0, "fraction_passing_pct_approx": 1.0, "auc": 0.01}  # one point in each metric


@pytest.mark.parametrize("name", table_names())
def test_no_tolerance_and_no_footnote_puts_a_cell_within_that_is_15_points_off(name: str) -> None:
    published = [own for own in cells_of(name) if own.published is not None]
    assert all(tolerance(own) > 0 for own in published)
    for sign in (-1, 1):
        # All at once: a whole column that is off keeps its order.
        off = [(own, (own.published or 0) + sign * 15 * POINTS.get(own.metric, 1)) for own in published]
        for each in judge([(own, Filled(value)) for own, value in off]):
            assert each.verdict in ("explained", "unexplained") or each.cell.metric not in POINTS
    # Seconds, megabytes and distances are no percentages: at most a fifth.
    assert all(tolerance(own) <= 0.2 * (own.published or 0) for own in published if own.metric not in POINTS)


def column(values: dict[str, float], **words: str) -> dict[str, str]:
    """Judge GDA, GDA* and GMM; their clean AUC is 0.453, 0.664 and 0.703 in the paper."""
    own = {"attack": "clean", "metric": "auc"} | words
    cells = [(cell("table2", at="pgd-at", rejector=name, **own), Filled(value)) for name, value in values.items()]
    return {each.cell.rejector: each.verdict for each in judge(cells)}


def test_the_papers_order_explains_the_gaussian_rejectors_and_a_broken_one_does_not() -> None:
    assert set(column({"gda": 0.1, "gda*": 0.2, "gmm": 0.3}).values()) == {"explained"}
    assert set(column({"gda": 0.9, "gda*": 0.2, "gmm": 0.3}).values()) == {"unexplained"}
    # GDA is below both, as in the paper, but these two have changed places.
    assert set(column({"gda": 0.1, "gda*": 0.3, "gmm": 0.2}).values()) == {"unexplained"}
    assert column({"gda": 0.46, "gda*": 0.2, "gmm": 0.3}) == {
        "gda": "within",
        "gda*": "unexplained",
        "gmm": "unexplained",
    }
    assert column({"gda": 0.453, "gda*": 0.664, "gmm": 0.8}) == {"gda": "within", "gda*": "within", "gmm": "explained"}


def test_an_order_that_nothing_tests_explains_nothing() -> None:
    assert column({"gda": 0.9}) == {"gda": "unexplained"}
    # 31.89, 31.94 and 31.96 in the paper: hardly an order.
    at_16 = {"attack": "pgd-100x10", "budget": "linf:16", "metric": "acc_tpr95"}
    assert set(column({"gda": 60.0, "gda*": 61.0, "gmm": 62.0}, **at_16).values()) == {"unexplained"}


@pytest.mark.parametrize(
    ("own", "footnote", "verdicts"),
    [
        # Another version of AutoAttack moves TPR-95 by less than a point.
        (
            cell("text", dataset="cifar10", attack="autoattack", metric="acc_tpr95"),
            "autoattack-mixture",
            ["unexplained", "unexplained"],
        ),
        # The column looks like a weaker attack: ours may be below it for that.
        (
            cell("table4", at="pgd-at", rejector="rr", attack="gama-pgd-100"),
            "gama-pgd",
            ["explained", "unexplained"],
        ),
        (
            cell("table11", arch="resnet18", rejector="gda*", attack="clean", metric="auc"),
            "singular-covariance",
            ["explained", "explained"],
        ),
        (
            cell("table7", dataset="cifar10", rejector="rr", attack="cw-l2-adaptive"),
            "cw-released-l2",
            ["unexplained", "unexplained"],
        ),
        (
            cell("table7", dataset="cifar10", rejector="ebd", attack="cw-linf-adaptive"),
            "cw-released-linf",
            ["explained", "unexplained"],
        ),
    ],
)
def test_a_footnote_explains_a_cell_only_on_the_sides_that_its_evidence_does(
    own: PaperCell, footnote: str, verdicts: list[str]
) -> None:
    assert footnote in [note.id for note in footnotes(own)]
    assert own.published is not None
    assert [verdict(own, own.published * factor).verdict for factor in (0.1, 3)] == verdicts


def test_no_weaker_attack_explains_the_auc_of_kd_which_is_as_low_on_clean_inputs() -> None:
    at_l2 = {"at": "pgd-at", "attack": "pgd-100x10", "norm": "l2", "eps": "128", "metric": "auc"}
    below = {name: cell("table2", rejector=name, **at_l2) for name in ("kd", "rr")}
    found = {name: verdict(own, (own.published or 0) - 0.03).verdict for name, own in below.items()}
    assert found == {"kd": "unexplained", "rr": "explained"}


@pytest.mark.parametrize(
    "own",
    [RR, RR_AUC, CCAT, CW, cell("table7", dataset="cifar10", rejector="rr", attack="cw-linf-adaptive")]
    + [cell("table2", rejector=rejector, attack="clean", metric="auc") for rejector in ("kd", "lid", "carl")],
)
def test_nothing_else_is_explained(own: PaperCell) -> None:
    assert [verdict(own, value).verdict for value in (0.0, 99.0)] == ["unexplained", "unexplained"]


@pytest.mark.parametrize(
    "own",
    [
        RR_AT_16,
        cell("table2", at="pgd-at", rejector="rr", budget="linf:8", metric="acc_tpr95"),
        cell("table2", at="pgd-at", rejector="lid", budget="l2:128", metric="acc_tpr95"),
    ],
)
def test_a_stronger_attack_explains_what_lies_below_alone(own: PaperCell) -> None:
    assert own.published is not None
    assert [verdict(own, own.published + by).verdict for by in (-15, 15)] == ["explained", "unexplained"]


def test_the_tolerances_of_a_table_are_stated_as_our_choice() -> None:
    said = tolerances_line(judge([(RR, Filled(86.0)), (CCAT, Filled())]))
    assert said.startswith(
        "The tolerances are our choice, the paper gives none: 2 points and 0.05 of AUC for CCAT, CARL and ATRO ("
    )
    assert "; 1.5 points and 0.02 of AUC for everything else (two trainings" in said
    assert "CCAT" not in tolerances_line(judge([(RR, Filled(86.0)), (KD_AT_16, Filled())]))
    assert tolerances_line(judge([(CW, Filled(0.9))])).endswith(
        ": 10 % for distances and megabytes (the paper gives one run)."
    )
    assert tolerances_line([]) == ""


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
    assert all(set(entry["explains"]) <= {"above", "below"} for entry in entries)
    assert all(len(entry["text"]) > 10 and len(entry["evidence"]) > 10 for entry in entries)
    assert all(len(entry["reason"]) > 10 and entry["of"] for entry in toml("tolerances.toml")["tolerance"])


def test_the_summary_counts_within_explained_and_unexplained_apart() -> None:
    overflow = next(own for own in cells_of("table12") if own.value == "nan")
    cells = [(RR, 86.0), (RR_AUC, 0.9), (CCAT, 0.0), (CW, None), (overflow, 80.0), (RR_AT_16, 18.03)]
    judged = judge([(own, Filled(value)) for own, value in cells])
    assert summary("table0", judged) == (
        "table0: 6 cells: 1 within, 1 explained, 2 unexplained, 1 missing; 1 measured without a published value"
    )
    assert is_failing(judged)
    assert not is_failing([each for each in judged if each.verdict != "unexplained"])
    undefined = judge([(RR, Filled(is_undefined=True)), (RR_AUC, Filled())])
    assert [each.verdict for each in undefined] == ["undefined", "missing"]
    assert not is_failing(undefined)
    assert (
        summary("table0", undefined) == "table0: 2 cells: 0 within, 0 explained, 0 unexplained, 1 missing, 1 undefined"
    )
