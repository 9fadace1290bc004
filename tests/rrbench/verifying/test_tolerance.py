"""How far a repeated attack may differ: not at all on the same machine; elsewhere as far as honest runs do."""

from typing import Any

import numpy as np
import pytest

from rrbench.measuring.evaluation import metrics_of
from rrbench.plugins.config import MetricSettings
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import Scores
from rrbench.verifying.tolerance import EXACT, ROUNDED, SHORT, Tolerance, disagreements, new_notes
from stored_scores import scores_of

COUNT = 1000


def honest() -> Scores:
    """Of 1,000 inputs 600 right, their certainties evenly spread over [0, 1]: an interquartile range of 0.5."""
    certainty = np.linspace(0, 1, COUNT)
    labels = np.zeros(COUNT, dtype=np.int64)
    prediction = (np.arange(COUNT) % 5 >= 3).astype(np.int64)
    return scores_of(prediction, labels, certainty, 0.3)


def columns_of(scores: Scores, **more: Any) -> dict[str, Any]:
    costs = {"note": "", "gradients": 10.0, "forwards": 11.0, "seconds": 1.0}
    return {"n": COUNT, **vars(metrics_of(scores, MetricSettings("quantile", 0), 0)), **costs, **more}


def row_of(scores: Scores, **more: Any) -> ResultRow:
    names = ("digits", "small-cnn", "pgd-at", "pgd-at", "kd", "pgd3", "linf", "3/20", 0, "quick")
    return ResultRow(*names, **columns_of(scores, **more))


def said(
    stored: Scores, again: Scores, tolerance: Tolerance, row: Any = None, *, is_older: bool = False, **more: Any
) -> list[str]:
    columns, own = columns_of(again, **more), row or row_of(stored)
    return list(disagreements(own, stored, again, columns, tolerance, is_ensemble=False, is_older=is_older))


@pytest.mark.parametrize("tolerance", [EXACT, ROUNDED, SHORT])
def test_the_same_again_is_no_disagreement_and_seconds_do_not_count(tolerance: Tolerance) -> None:
    assert said(honest(), honest(), tolerance, seconds=900.0) == []


def test_on_the_same_machine_one_bit_is_too_much() -> None:
    certainty = honest().certainty.copy()
    certainty[7] = np.nextafter(certainty[7], 2)
    (problem,) = said(honest(), honest()._replace(certainty=certainty), EXACT)
    assert problem == "repeating the attack gives other certainty, and on this machine nothing may differ"
    assert said(honest(), honest()._replace(certainty=certainty), ROUNDED) == []


@pytest.mark.parametrize("tolerance", [ROUNDED, SHORT])
def test_certainties_may_move_by_a_share_of_their_spread(tolerance: Tolerance) -> None:
    """The spread is 0.5: every input moves by a shade less, then by a shade more, than half of them may."""
    for share, count in ((0.9, 0), (1.1, 1)):
        moved = honest()._replace(certainty=honest().certainty + share * tolerance.half * 0.5)
        found = [text for text in said(honest(), moved, tolerance) if "moves its certainty" in text]
        assert len(found) == count
    few = honest().certainty.copy()
    few[::8] += 1.1 * tolerance.most * 0.5  # 125 of 1,000: more than one in ten
    assert any("moves its certainty" in text for text in said(honest(), honest()._replace(certainty=few), tolerance))


def test_an_accuracy_may_differ_by_three_deviations_of_flips_to_either_side() -> None:
    """With a share f of n verdicts flipped at random the net effect has the deviation sqrt(f n) inputs."""
    assert SHORT.slack(10_000) == pytest.approx(3 * (0.01 * 10_000) ** 0.5 / 10_000) == pytest.approx(0.003)
    assert ROUNDED.slack(10_000) == pytest.approx(0.00095, abs=1e-5)
    assert ROUNDED.slack(60) == 1 / 60, "one input may always fall on the other side"
    assert EXACT.slack(60) == 0
    for more, is_wrong in ((9, False), (10, True)):  # of 1,000 inputs 3 * sqrt(10) = 9.49 may
        row = row_of(honest(), acc_all=60 + more / 10)
        assert any(text.startswith("acc_all is 60 ") for text in said(honest(), honest(), SHORT, row)) is is_wrong


def test_half_a_point_of_ten_thousand_is_more_than_any_tolerance() -> None:
    assert max(tolerance.slack(10_000) for tolerance in (EXACT, ROUNDED, SHORT)) < 0.005


def test_reordered_certainties_are_noticed_though_no_verdict_changes() -> None:
    """The right ones of the accepted take the highest scores: AUC grows, acceptance and accuracy stay."""
    scores = honest()
    (accepted,) = np.nonzero(scores.certainty >= 0.3)
    ordered = accepted[np.argsort(~scores.correct[accepted], kind="stable")]
    certainty = scores.certainty.copy()
    certainty[ordered] = np.sort(certainty[accepted])[::-1]
    forged = scores._replace(certainty=certainty)
    for tolerance in (EXACT, ROUNDED, SHORT):
        found = said(forged, scores, tolerance)
        assert any(text.startswith("auc is 0.49") for text in found)
        assert any("certainty" in text for text in found)
        assert not any(text.startswith(("acc_all", "deploy_coverage", "deploy_robust")) for text in found)


@pytest.mark.parametrize(
    ("stated", "tolerance", "words"),
    [
        ({"gradients": 10.1}, EXACT, "its row says 10.1 gradients an image, and repeating the attack takes 10.0"),
        ({"gradients": 10.1}, SHORT, ""),
        ({"gradients": 11.0}, SHORT, "its row says 11.0 gradients an image, and repeating the attack takes 10.0"),
        ({"forwards": None}, SHORT, "its row says None forwards an image, and repeating the attack takes 11.0"),
        ({"note": "12 % of them"}, SHORT, ""),
        ({"note": "12 % of them"}, EXACT, "its note is '12 % of them', and repeating the attack gives '13 % of them'"),
        ({"note": ""}, SHORT, "its note is '', and repeating the attack gives '13 % of them'"),
        ({"auc": None}, EXACT, "auc is 0.49"),
        ({"n": 999}, SHORT, "n is 1000 when the attack is repeated, and the row says 999 (tolerance 0)"),
    ],
)
def test_costs_notes_and_counts_are_compared_too(stated: dict[str, Any], tolerance: Tolerance, words: str) -> None:
    scores, note = honest(), "13 % of them"
    row = row_of(scores, **({"note": note} | stated))
    found = said(scores, scores, tolerance, row, note=note)
    assert [text.startswith(words) for text in found] == ([True] if words else [])


@pytest.mark.parametrize(
    ("before", "now", "lacking"),
    [
        ("", "a; b", ["a", "b"]),
        ("b", "a; b", ["a"]),
        ("13 % of them", "a; 12 % of them", ["a"]),
        ("a", "a", []),
    ],
)
def test_a_row_of_other_code_may_lack_notes_that_only_this_code_writes(
    before: str, now: str, lacking: list[str]
) -> None:
    scores = honest()
    row = row_of(scores, note=before)
    assert said(scores, scores, SHORT, row, is_older=True, note=now) == []
    assert new_notes(row, now, SHORT) == lacking
    assert len(said(scores, scores, SHORT, row, note=now)) == bool(lacking)


@pytest.mark.parametrize(("before", "now"), [("a", ""), ("a; b", "b"), ("a", "b")])
def test_a_note_that_a_row_has_and_a_rerun_does_not_give_is_a_disagreement_in_any_row(before: str, now: str) -> None:
    scores = honest()
    for is_older in (False, True):
        (problem,) = said(scores, scores, SHORT, row_of(scores, note=before), is_older=is_older, note=now)
        assert problem == f"its note is {before!r}, and repeating the attack gives {now!r}"


def test_a_metric_may_become_undefined_where_one_verdict_decides_it() -> None:
    scores = honest()
    one_wrong = scores_of((np.arange(COUNT) == 0).astype(np.int64), scores.labels, scores.certainty, 0.3)
    assert said(scores, one_wrong, SHORT, row_of(one_wrong, auc=None, fpr95=None)) == []
    assert any(text.startswith("auc is") for text in said(scores, one_wrong, EXACT, row_of(one_wrong, auc=None)))


@pytest.mark.parametrize(
    ("settings", "tolerance", "share"),
    [
        ("", ROUNDED, 0.02),
        ('{"attack": {"until": "end"}}', ROUNDED, 0.02),
        ('{"attack": {"until": "repeat"}}', ROUNDED, 3 / 1000**0.5),
        ('{"attack": {"until": "repeat"}}', SHORT, 3 / 1000**0.5),
        ('{"attack": {"until": "repeat"}}', EXACT, 0.0),
        ('{"attack": ["until"]}', SHORT, 0.02),
    ],
)
def test_climbs_that_end_when_they_repeat_themselves_may_cost_more_elsewhere(
    settings: str, tolerance: Tolerance, share: float
) -> None:
    for by, is_wrong in ((0.99 * share, False), (1.01 * share + 1e-9, True)):
        row = row_of(honest(), settings=settings, gradients=10.0 * (1 + by))
        found = [text for text in said(honest(), honest(), tolerance, row) if "gradients" in text]
        assert bool(found) is is_wrong
