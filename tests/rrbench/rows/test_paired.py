"""Paired differences against brute force on hand-made score files."""

import csv
import dataclasses
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rrbench.errors import UseError
from rrbench.measuring.store import Store
from rrbench.metrics.measures import auc, augrc, aurc
from rrbench.metrics.resampling import RESAMPLED, resampled, resampled_share
from rrbench.plugins.config import MetricSettings
from rrbench.rows.paired import (
    PAIRED,
    Difference,
    ScoreFiles,
    against_table,
    all_but_note,
    difference_text,
    differences,
    drawn,
    paired_difference,
    reference_of,
    scored_rows,
)
from rrbench.rows.record import CellRecord
from rrbench.rows.row import ResultRow, read_rows, write_rows
from rrbench.rows.scores import Scores
from stored_scores import save_scores, scores_of

SIZE = 60
BASE = ResultRow(
    "digits", "small-cnn", "pgd-at", "pgd-at", "confidence", "pgd10", "linf", "3/20", 0, "quick", SIZE, precision="fp32"
)


def scores(seed: int) -> Scores:
    rng = np.random.default_rng(seed)
    labels = np.arange(SIZE) % 3
    prediction = np.where(rng.random(SIZE) < 0.7, labels, (labels + 1) % 3)
    certainty = rng.random(SIZE) + 0.3 * (prediction == labels)
    more = {"clean_correct": rng.random(SIZE) < 0.9, "distances": rng.random(SIZE), "reached": rng.random(SIZE) < 0.5}
    return scores_of(prediction, labels, np.round(certainty, 1), 0.4, **more)


def expected(found: Scores, metric: str) -> float:
    correct = found.correct
    accepted = found.certainty >= 0.4
    return float(
        {
            "acc_all": 100 * correct.mean(),
            "auc": auc(found.certainty, correct) or np.nan,
            "deploy_robust": 100 * (~accepted | correct).mean(),
            "deploy_coverage": 100 * accepted.mean(),
            "deploy_acc": 100 * correct[accepted].mean(),
            "deploy_joint": 100 * ((~accepted | correct) & found.clean_correct).mean(),
            "distance": found.distances.mean(),
            "success": found.reached.mean(),
        }[metric]
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A work folder of three rejectors whose rows follow from their scores."""
    rows = []
    for seed, (rejector, trained_as) in enumerate(
        [("confidence", "pgd-at"), ("rr", "pgd-at+rr"), ("ebd", "pgd-at+ebd")]
    ):
        found = scores(seed)
        metrics = {name: expected(found, name) for name in ("acc_all", "auc", "deploy_robust", "deploy_joint")}
        row = dataclasses.replace(BASE, rejector=rejector, trained_as=trained_as, **metrics)  # type: ignore[arg-type]
        files = save_scores(tmp_path, f"key{seed}", found)
        cell = {"checkpoint": "c", "tpr_rule": "quantile", "resamples": 400}
        Store(tmp_path).save_cell(CellRecord(f"key{seed}", "attack", row, cell, files))
        rows.append(dataclasses.replace(row, note="said later"))
    write_rows(tmp_path / "rows.csv", rows)
    return tmp_path


@pytest.mark.parametrize("metric", ["acc_all", "auc", "deploy_robust", "deploy_joint"])
def test_a_difference_and_its_interval_are_those_of_a_plain_bootstrap(folder: Path, metric: str) -> None:
    rows = {row.rejector: row for row in read_rows(folder)}
    found = paired_difference(rows["rr"], rows["confidence"], metric, scored_rows(folder))
    assert found is not None
    assert found.value == pytest.approx(expected(scores(1), metric) - expected(scores(0), metric))
    draws = np.random.default_rng(0).integers(SIZE, size=(400, SIZE))
    differences = []
    for chosen in draws:
        one, other = (Scores._make(part[chosen] if part.size > 1 else part for part in scores(seed)) for seed in (1, 0))
        differences.append(expected(one, metric) - expected(other, metric))
    low, high = np.percentile(differences, (2.5, 97.5))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_a_reference_is_drawn_once_for_all_and_a_metric_once_for_each_row(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def counted(found: Scores, metric: str, scored: ScoreFiles) -> Any:
        asked.append(metric)
        return drawn(found, metric, scored)

    monkeypatch.setattr("rrbench.rows.paired.drawn", counted)
    rows, known = {row.rejector: row for row in read_rows(folder)}, scored_rows(folder)
    found = [
        paired_difference(rows[name], rows["confidence"], metric, known)
        for metric in ("acc_all", "auc", "deploy_robust", "deploy_joint")
        for name in ("rr", "ebd")
    ]
    # One pass over the draws gives all numbers at a deployed threshold.
    assert sorted(asked) == ["acc_all"] * 3 + ["auc"] * 3 + ["deploy_robust"] * 3
    assert found[3] == paired_difference(rows["ebd"], rows["confidence"], "auc", scored_rows(folder))


def test_a_rejector_does_not_differ_from_itself_and_pairing_narrows_the_interval(folder: Path) -> None:
    row = next(row for row in read_rows(folder) if row.rejector == "rr")
    same = paired_difference(row, row, "auc", scored_rows(folder))
    assert same is not None
    assert (same.value, same.low, same.high) == (0, 0, 0)


@pytest.mark.parametrize("metric", PAIRED)
def test_every_paired_metric_has_draws_around_its_value(metric: str) -> None:
    found = scores(5)
    values = drawn(found, metric, ScoreFiles(Path(), (), MetricSettings("quantile", 300)))[metric]
    assert values.shape == (300,)
    assert values.std() > 0
    if metric not in ("acc_tpr95", "aurc", "augrc"):
        assert abs(np.nanmean(values) - expected(found, metric)) < 0.5 * values.std()


@pytest.mark.parametrize(("metric", "function"), [("auc", auc), ("aurc", aurc), ("augrc", augrc)])
def test_resampled_metrics_are_the_metrics_of_the_draws(metric: str, function: Any) -> None:
    certainty, correct = scores(3).certainty, scores(3).correct
    draws = np.random.default_rng(9).integers(SIZE, size=(20, SIZE))
    assert metric in RESAMPLED
    assert resampled(metric, certainty, correct, "quantile", 20, 9).tolist() == pytest.approx(
        [function(certainty[chosen], correct[chosen]) for chosen in draws]
    )


def test_a_share_of_nothing_is_undefined() -> None:
    assert np.isnan(resampled_share(np.zeros(5), np.zeros(5), 3, seed=0)).all()


def test_the_table_shows_differences_and_names_the_reference_once(folder: Path) -> None:
    done: list[float] = []
    rows = read_rows(folder)
    shown, notes = against_table(folder, rows, "attack", "deploy_robust", "confidence", "csv", advance=done.append)
    assert sum(done) == len(rows)
    header, *lines = csv.reader(io.StringIO(shown))
    assert header == ["trained_as", "rejector", "pgd10 linf:3/20"]
    by_rejector = {line[1]: line[2] for line in lines}
    assert by_rejector["confidence"] == f"{expected(scores(0), 'deploy_robust'):.2f}"
    assert by_rejector["rr"].startswith(f"{expected(scores(1), 'deploy_robust'):.2f} (")
    assert by_rejector["rr"].count("[") == 1
    assert by_rejector["rr"].endswith("] to pgd-at)")
    assert notes == [
        "(robust minus that of confidence on the same inputs [95 % interval over examples, paired])",
        "to a network: there confidence is that of another network, so the training differs too",
    ]


def test_without_score_files_one_line_says_so(folder: Path, tmp_path: Path) -> None:
    for path in (folder / "scores").iterdir():
        path.unlink()
    shown, notes = against_table(folder / "rows.csv", read_rows(folder), "attack", "auc", "confidence", "csv")
    assert "[" not in shown
    assert notes[2:] == ["no interval: no score files beside the rows"]


def test_scores_of_other_inputs_are_not_paired(folder: Path) -> None:
    save_scores(folder, "key1", scores(1)._replace(ids=np.arange(SIZE) + 1))
    _, notes = against_table(folder, read_rows(folder), "attack", "auc", "confidence", "text")
    assert notes[2:] == ["no interval: the two were measured on other test inputs"]


def test_of_two_references_on_as_many_inputs_the_one_on_the_same_inputs_counts() -> None:
    first, tenth = (dataclasses.replace(BASE, data_sha256=name) for name in ("first", "every tenth"))
    own = dataclasses.replace(tenth, rejector="rr")
    for rows in ([first, tenth], [tenth, first]):
        assert reference_of(own, rows, "confidence") == tenth
    assert reference_of(own, [first], "confidence") is None, "a difference between other inputs is none of rejectors"


@pytest.mark.parametrize(
    ("metric", "unrejected"),
    [
        ("deploy_joint", lambda found: found.correct & found.clean_correct),
        ("deploy_robust", lambda found: found.correct),
        ("deploy_coverage", lambda found: np.ones(SIZE, dtype=bool)),
        ("acc_all", lambda found: found.correct),
    ],
)
def test_never_rejecting_needs_no_row_it_is_the_same_answers_all_accepted(
    folder: Path, metric: str, unrejected: Callable[[Scores], Any]
) -> None:
    rows, known = {row.rejector: row for row in read_rows(folder)}, scored_rows(folder)
    row = dataclasses.replace(rows["rr"], deploy_coverage=expected(scores(1), "deploy_coverage"))
    known[all_but_note(row)] = known.pop(all_but_note(rows["rr"]))
    found = only(differences([row], [row], "never-reject", metric, known))
    gains = []
    for chosen in [np.arange(SIZE), *np.random.default_rng(0).integers(SIZE, size=(400, SIZE))]:
        drawn_scores = Scores._make(part[chosen] if part.size > 1 else part for part in scores(1))
        gains.append(expected(drawn_scores, metric) - 100 * unrejected(drawn_scores).mean())
    assert (found.value, found.low, found.high) == pytest.approx((gains[0], *np.percentile(gains[1:], (2.5, 97.5))))
    assert found.of == "*"
    elsewhere = only(differences([row], [never(row)], "never-reject", metric, known))
    assert elsewhere == found, "a control on another network has other answers"
    same = only(differences([row], [never(row, row.trained_as)], "never-reject", metric, known))
    assert (same.of, same.value) == ("", getattr(row, metric) - 50), "a control on this network counts"
    named = only(differences([row], [never(row)], "never-reject@pgd-at", metric, known))
    assert (named.of, named.value) == ("pgd-at", getattr(row, metric) - 50), "asked for"


def only(found: list[Difference] | None) -> Difference:
    assert found is not None
    (each,) = found
    return each


def never(row: ResultRow, trained_as: str = "pgd-at") -> ResultRow:
    fifty = dict.fromkeys(("deploy_joint", "deploy_robust", "deploy_coverage", "acc_all"), 50.0)
    return dataclasses.replace(row, rejector="never-reject", trained_as=trained_as, **fifty)  # type: ignore[arg-type]


def test_never_rejecting_has_the_accuracy_of_all_at_tpr95_and_half_an_auc(folder: Path) -> None:
    row, known = next(row for row in read_rows(folder) if row.rejector == "rr"), scored_rows(folder)
    row = dataclasses.replace(row, acc_tpr95=70.0)
    known[all_but_note(row)] = known[all_but_note(dataclasses.replace(row, acc_tpr95=None))]
    found = {metric: only(differences([row], [], "never-reject", metric, known)) for metric in ("acc_tpr95", "auc")}
    assert found["acc_tpr95"].value == pytest.approx(70 - 100 * scores(1).correct.mean())
    assert found["auc"].value == pytest.approx(expected(scores(1), "auc") - 0.5)
    assert differences([row], [], "never-reject", "distance", known) is None, "it is that of the answers"


def test_of_several_seeds_all_are_compared_with_the_same_kind(folder: Path) -> None:
    row, known = next(row for row in read_rows(folder) if row.rejector == "rr"), scored_rows(folder)
    seeds = [row, dataclasses.replace(row, seed=1)]
    controls = [dataclasses.replace(never(each), seed=each.seed) for each in seeds]
    without = differences(seeds, controls, "never-reject", "deploy_joint", known) or []
    assert [(each.of, each.without) for each in without] == [("pgd-at", "")] * 2, "one has no scores"
    known[all_but_note(seeds[1])] = known[all_but_note(row)]
    several = differences(seeds, controls, "never-reject", "deploy_joint", known) or []
    assert [(each.low, each.of, each.without) for each in several] == [(None, "*", "")] * 2
    assert difference_text(several, "deploy_joint").endswith(" \u00b1 0.00*")
    assert differences([row], [], "never-reject", "deploy_joint", {}) is None, "no scores and no row"


def test_another_checkpoint_of_the_same_name_is_called_so(folder: Path) -> None:
    row = next(row for row in read_rows(folder) if row.rejector == "rr")
    other = dataclasses.replace(row, rejector="ebd", checkpoint_sha256="other")
    assert only(differences([row], [other], "ebd", "auc", {})).of == "another pgd-at+rr"


def test_rows_alone_say_that_scores_are_missing(folder: Path) -> None:
    for path in (folder / "cells").iterdir():
        path.unlink()
    shown, notes = against_table(folder, read_rows(folder), "attack", "deploy_joint", "never-reject", "csv")
    assert shown.count("(no never-reject beside it)") == 3
    assert notes[1:] == ["no interval: no score files beside the rows"]


def test_the_table_says_what_the_star_means(folder: Path) -> None:
    shown, notes = against_table(folder, read_rows(folder), "attack", "deploy_joint", "never-reject", "csv")
    assert shown.count("]*)") == 3
    assert notes[1:] == ["* no never-reject beside it on this network: minus its own answers, all accepted"]


def test_the_reference_is_that_of_the_same_framework_else_the_only_one() -> None:
    trades = dataclasses.replace(BASE, framework="trades", trained_as="trades")
    own = dataclasses.replace(BASE, rejector="rr", framework="trades", trained_as="trades+rr")
    carl = dataclasses.replace(BASE, rejector="carl", framework="carl", trained_as="carl")
    assert reference_of(own, [BASE, trades, own], "confidence") == trades
    assert reference_of(own, [BASE, own], "confidence") == BASE
    assert reference_of(carl, [BASE, trades], "confidence") is None
    assert reference_of(carl, [BASE, trades], "confidence@pgd-at") == BASE
    assert reference_of(own, [dataclasses.replace(BASE, attack="clean")], "confidence") is None


def test_of_two_checkpoints_of_one_name_the_reference_is_that_of_the_rows_own() -> None:
    short = dataclasses.replace(BASE, checkpoint_sha256="short")
    whole = dataclasses.replace(BASE, checkpoint_sha256="whole")
    kd = dataclasses.replace(whole, rejector="kd")
    assert reference_of(kd, [short, whole, kd], "confidence") == whole
    rr = dataclasses.replace(BASE, rejector="rr", trained_as="pgd-at+rr", checkpoint_sha256="rr")
    assert reference_of(rr, [short, rr], "confidence") == short
    assert reference_of(rr, [short, whole, rr], "confidence") is None


def two_of_one_name() -> list[ResultRow]:
    """Two functions of one name on one network, as an edited script leaves them, and another rejector."""
    one, other = (
        dataclasses.replace(
            BASE, rejector="mine", framework="", trained_as="net", revisions=f'{{"rejector": "{mark}"}}'
        )
        for mark in ("40367acc", "3eb14e93")
    )
    return [one, other, dataclasses.replace(one, rejector="margin", revisions='{"rejector": 1}')]


def test_of_two_rejectors_of_one_name_none_is_the_reference_and_one_line_says_why(folder: Path) -> None:
    one, other, margin = two_of_one_name()
    for rows in ([one, other], [other, one]):
        assert reference_of(margin, rows, "mine") is None
    assert reference_of(margin, [one, margin], "mine") == one
    for name in ("mine", "mine@net"):
        shown, notes = against_table(folder, [one, other, margin], "attack", "auc", name, "csv")
        assert shown.count(f"(several {name})") == 1
        assert notes[1:] == [
            "2 rejectors or networks have the same name mine@net, so some rows have no difference: "
            "measure each again under a name of its own"
        ]
    _, notes = against_table(folder, [one, other], "attack", "auc", "mine", "csv")
    assert len(notes) == 2, "also if there is nothing else to compare"


def test_other_settings_under_one_name_are_another_rejector() -> None:
    one, other = (dataclasses.replace(BASE, settings=f'{{"rejector": {{"g": {g}}}}}') for g in (1, 2))
    assert reference_of(dataclasses.replace(BASE, rejector="rr"), [one, other], "confidence") is None


def test_one_line_says_which_names_a_shared_name_means(folder: Path) -> None:
    trades = dataclasses.replace(BASE, framework="trades", trained_as="trades")
    carl = dataclasses.replace(BASE, rejector="carl", framework="carl", trained_as="carl")
    line = (
        "confidence means for each row that of its own network or framework; "
        "to compare all rows with one, write --against confidence@pgd-at or --against confidence@trades"
    )
    shown, notes = against_table(folder, [BASE, trades, carl], "attack", "auc", "confidence", "csv")
    assert shown.count("(several confidence)") == 1
    assert notes[1:] == [line]
    assert against_table(folder, [BASE, trades], "attack", "auc", "confidence", "csv")[1][1:] == [line]
    named = against_table(folder, [BASE, trades, carl], "attack", "auc", "confidence@trades", "csv")[1]
    assert not any("--against" in note for note in named)


def test_each_of_a_users_networks_can_be_named(folder: Path) -> None:
    first, second = (
        dataclasses.replace(BASE, framework="", trained_as=name, checkpoint_sha256=name, auc=auc)
        for name, auc in (("first", 0.5), ("second", 0.75))
    )
    rows = [first, second]
    _, notes = against_table(folder, rows, "attack", "auc", "confidence", "csv")
    assert "--against confidence@first or --against confidence@second" in notes[1]
    shown, _ = against_table(folder, rows, "attack", "auc", "confidence@first", "csv")
    assert "0.750 (+0.250 to first)" in shown
    with pytest.raises(UseError, match="unknown rejector in these results: 'confidence@frist'; near: confidence@first"):
        against_table(folder, rows, "attack", "auc", "confidence@frist", "csv")


def test_rows_measured_without_draws_have_differences_without_intervals(folder: Path) -> None:
    for path in (folder / "cells").iterdir():
        path.write_text(path.read_text().replace('"resamples": 400', '"resamples": 0'))
    shown, notes = against_table(folder, read_rows(folder), "attack", "auc", "confidence", "csv")
    assert "[" not in shown
    assert notes[2:] == ["no interval: the rows were measured with resamples = 0"]


def test_wrong_words_are_one_line(folder: Path) -> None:
    rows = read_rows(folder)
    with pytest.raises(UseError, match="unknown rejector in these results: 'konfidence'; near: confidence"):
        against_table(folder, rows, "attack", "auc", "konfidence", "text")
    with pytest.raises(UseError, match="no difference of 'seconds' can be paired; one of acc_all"):
        against_table(folder, rows, "attack", "seconds", "confidence", "text")
    with pytest.raises(UseError, match="unknown column 'auk'; near: auc"):
        against_table(folder, rows, "attack", "auk", "confidence", "text")


def test_a_row_is_known_again_whatever_its_note_says() -> None:
    assert all_but_note(BASE) == all_but_note(dataclasses.replace(BASE, note="weak"))
    assert all_but_note(BASE) != all_but_note(dataclasses.replace(BASE, seed=1))


def test_a_pivot_too_wide_for_a_line_goes_on_below() -> None:
    from rrbench.rows.tables import pivot_table

    rows = [dataclasses.replace(BASE, attack=f"pgd{steps}", auc=0.5) for steps in range(10, 22)]
    shown = pivot_table(rows, "attack", "auc")
    assert max(map(len, shown.splitlines())) <= 100
    assert shown.count("confidence") == 4
    assert all(f"pgd{steps} linf:3/20" in shown for steps in range(10, 22))
