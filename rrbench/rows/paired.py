"""Differences from a reference rejector on the same inputs, with paired intervals. Imports no torch.

A difference's interval is the 95 % percentile bootstrap over examples: each draw takes the same examples for both rows.
It needs the per-example scores of a work folder; without them the difference has no interval.

A difference between networks mixes the rejector with the training, so it names the other network. Never rejecting needs
no row: on a network without one it is the row's own answers, all accepted.
"""

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rrbench.errors import UseError
from rrbench.metrics.columns import LABELS
from rrbench.metrics.deployment import Deployed, deployed_draws
from rrbench.metrics.measures import measure
from rrbench.metrics.resampling import RESAMPLED, interval, resampled, resampled_share
from rrbench.names import unknown
from rrbench.plugins.config import MetricSettings
from rrbench.progress import Advance
from rrbench.rows.currency import is_current
from rrbench.rows.published import where_scores_are
from rrbench.rows.record import read_cells
from rrbench.rows.row import (
    COLUMNS,
    PERCENTAGES,
    ResultRow,
    check_rejectors,
    full_name,
    goes_by,
    revisions_of,
    stated,
)
from rrbench.rows.scores import Scores, read_scores
from rrbench.rows.tables import pivot_table, spread_text, summed_up

NEVER = "never-reject"  # the control that answers everything
SHARES = ("deploy_acc", "deploy_coverage", "deploy_robust", "deploy_joint", "distance", "success")
PAIRED = (*RESAMPLED, *SHARES)
SEED = 0
NO_SCORES = "no score files beside the rows"
OWN_ANSWERS = "*"  # after a difference whose reference is the row's own answers


@dataclass(frozen=True)
class ScoreFiles:
    """Where a cell's per-example scores are, and how its row was computed from them."""

    folder: Path
    files: tuple[tuple[str, str], ...]
    metrics: MetricSettings
    draws: dict[tuple[str, MetricSettings], NDArray[np.float64]] = field(default_factory=dict, compare=False)

    @property
    def is_there(self) -> bool:
        """Whether all the files exist."""
        return all((self.folder / name).is_file() for name, _ in self.files)

    def scores(self) -> Scores:
        """Read the files."""
        return read_scores(self.folder, dict(self.files))

    def drawn(self, scores: Scores, metric: str, like: "ScoreFiles") -> NDArray[np.float64]:
        """Draw with another cell's settings, and keep the draws: every rejector compares with the same reference."""
        if (metric, like.metrics) not in self.draws:
            self.draws.update(((name, like.metrics), values) for name, values in drawn(scores, metric, like).items())
        return self.draws[metric, like.metrics]


@dataclass(frozen=True)
class Difference:
    """A row's metric minus that of its reference."""

    value: float
    low: float | None = None
    high: float | None = None
    without: str = ""  # why there is no interval
    of: str = ""  # what the reference is, if not a row on the same network: OWN_ANSWERS, or how it was trained


def against_table(
    path: Path,
    rows: Sequence[ResultRow],
    by: str,
    metric: str,
    against: str,
    layout: str,
    references: Sequence[ResultRow] | None = None,
    advance: Advance = lambda done: None,
) -> tuple[str, list[str]]:
    """Pivot one metric, each value with its paired difference from a rejector; return the table and its notes.

    The rejector's rows are looked for among `references`, by default among `rows`. `advance` is told how many rows
    are done.
    """
    references = rows if references is None else references
    if metric not in COLUMNS:
        raise unknown("column", metric, COLUMNS)
    if metric not in PAIRED:
        raise UseError(f"no difference of {metric!r} can be paired; one of {', '.join(PAIRED)}")
    if against != NEVER:
        check_rejectors([against], references)
    scores = scored_rows(path if path.is_dir() else path.parent)
    lacking: dict[str, None] = {}
    kinds: set[str] = set()
    unclear: list[ResultRow] = []

    def field(group: Sequence[ResultRow]) -> str:
        advance(len(group))
        value = summed_up(group, metric)
        if goes_by(group[0], against):
            unclear.extend(group)
            return value
        found = differences(group, references, against, metric, scores)
        if found is None:
            if against == NEVER and not all(all_but_note(row) in scores for row in group):
                lacking[NO_SCORES] = None
            unclear.extend(group)
            is_shared = bool(sharing(group, references, against))
            return f"{value} ({f'several {against}' if is_shared else f'no {against} beside it'})"
        lacking.update(dict.fromkeys(each.without for each in found if each.without))
        kinds.update(each.of for each in found if each.of)
        return f"{value} ({difference_text(found, metric)})"

    shown = pivot_table(rows, by, metric, layout, field)
    name = LABELS.get(metric, metric)
    legend = f"({name} minus that of {against} on the same inputs [95 % interval over examples, paired])"
    if "\u00b1" in shown:
        legend += "; of several seeds: mean \u00b1 standard deviation over seeds"
    remarks = []
    if kinds - {OWN_ANSWERS}:
        remarks.append(f"to a network: there {against} is that of another network, so the training differs too")
    if OWN_ANSWERS in kinds:
        remarks.append(f"{OWN_ANSWERS} no {against} beside it on this network: minus its own answers, all accepted")
    where = where_scores_are(path)
    return shown, [
        legend,
        *remarks,
        *_sharing_notes(against, sharing(unclear, references, against)),
        *(f"no interval: {reason}{where if reason == NO_SCORES else ''}" for reason in lacking),
    ]


def differences(
    group: Sequence[ResultRow],
    references: Sequence[ResultRow],
    against: str,
    metric: str,
    scores: dict[tuple[object, ...], ScoreFiles],
) -> list[Difference] | None:
    """Return the defined differences of rows, one for each seed, from the reference of that seed; None if it has none.

    Only a single seed gets an interval: several show their spread.
    """
    is_single, pairs = len(group) == 1, [(row, reference_of(row, references, against)) for row in group]
    own: dict[ResultRow, Difference | None] = {}
    if against == NEVER:
        away = [row for row, found in pairs if found is None or _network(found) != _network(row)]
        own = {row: _gain(row, metric, scores, is_drawn=is_single) for row in away}
    if not all(own.values()):  # a mean of two kinds of differences would be of neither
        own = {}
    if not own and all(found is None for _, found in pairs):
        return None
    compared = [
        own.get(row) or (found and _from_row(row, found, metric, scores if is_single else {})) for row, found in pairs
    ]
    return [each if is_single else dataclasses.replace(each, without="") for each in compared if each]


def _from_row(
    row: ResultRow, reference: ResultRow, metric: str, scores: dict[tuple[object, ...], ScoreFiles]
) -> Difference | None:
    """Return the paired difference from another row; it names that row's network if it is another one."""
    found = paired_difference(row, reference, metric, scores)
    if found is None:
        return None
    another = "another " if row.trained_as == reference.trained_as else ""
    is_same = _network(row) == _network(reference)
    return dataclasses.replace(found, of="" if is_same else f"{another}{reference.trained_as}")


def _network(row: ResultRow) -> tuple[str, str]:
    return row.trained_as, row.checkpoint_sha256


def difference_text(found: Sequence[Difference], metric: str) -> str:
    """Print a difference with its interval; of several seeds the mean and the standard deviation."""
    places = 2 if metric in PERCENTAGES else 3
    text = spread_text([each.value for each in found], places, "+")
    if len(found) == 1 and found[0].low is not None and found[0].high is not None:
        text += f" [{found[0].low:+.{places}f}, {found[0].high:+.{places}f}]"
    named = [each.of for each in found if each.of]
    if OWN_ANSWERS in named:
        return f"{text}{OWN_ANSWERS}"
    return f"{text} to {named[0]}" if named else text


def reference_of(row: ResultRow, rows: Sequence[ResultRow], against: str) -> ResultRow | None:
    """Find the reference on the same inputs under the same attack, if possible of its framework and checkpoint.

    None also if several victims fit as well: to take the first would compare rows now with this one, now with that.
    """
    found = _on_same_inputs(row, rows, against)
    for name in ("framework", "checkpoint_sha256", "precision"):
        nearer = [other for other in found if getattr(other, name) == getattr(row, name)]
        found = nearer or found
    found = [other for other in found if is_current(other)] or found
    return found[0] if len({_victim(other) for other in found}) == 1 else None


def _on_same_inputs(row: ResultRow, rows: Sequence[ResultRow], against: str) -> list[ResultRow]:
    same = ("dataset", "data_sha256", "network", "attack", "norm", "eps", "seed", "preset", "n")
    return [
        other
        for other in rows
        if goes_by(other, against)
        and other.status == "ok"
        and all(getattr(row, name) == getattr(other, name) for name in same)
    ]


def _victim(row: ResultRow) -> tuple[str, ...]:
    """Return what tells a row's network and rejector from others, also from those with the same names."""
    rejector = revisions_of(row).get("rejector", 1), stated(row).get("rejector")
    return *_network(row), json.dumps(rejector, sort_keys=True)


def sharing(group: Sequence[ResultRow], rows: Sequence[ResultRow], against: str) -> Counter[str]:
    """Count, for each full name that `against` may mean beside these rows, its victims; empty if it means only one.

    Superseded rows count only if there are no others.
    """
    counts: Counter[str] = Counter()
    for row in group:
        found = _on_same_inputs(row, rows, against)
        found = [other for other in found if is_current(other)] or found
        victims = {(full_name(other), _victim(other)) for other in found}
        if len(victims) > 1:
            counts |= Counter(name for name, _ in victims)
    return counts


def _sharing_notes(against: str, counts: Counter[str]) -> list[str]:
    """Say what a name means that several victims have, and how to write each."""
    notes = [
        f"{count} rejectors or networks have the same name {name}, so some rows have no difference: "
        "measure each again under a name of its own"
        for name, count in sorted(counts.items())
        if count > 1
    ]
    if len(counts) > 1:
        notes.append(
            f"{against} means for each row that of its own network or framework; "
            f"to compare all rows with one, write --against {' or --against '.join(sorted(counts))}"
        )
    return notes


def paired_difference(
    row: ResultRow, reference: ResultRow, metric: str, scores: dict[tuple[object, ...], ScoreFiles]
) -> Difference | None:
    """Return the difference with its interval; None if the metric is undefined for one of the two rows."""
    ours, theirs = getattr(row, metric), getattr(reference, metric)
    if ours is None or theirs is None:
        return None
    found = [scores.get(all_but_note(each)) for each in (row, reference)]
    if found[0] is None or found[1] is None or not all(each and each.is_there for each in found):
        return Difference(ours - theirs, without=NO_SCORES)
    one, other = found[0].scores(), found[1].scores()
    if not np.array_equal(one.ids, other.ids) or not np.array_equal(one.labels, other.labels):
        return Difference(ours - theirs, without="the two were measured on other test inputs")
    return _with_interval(
        ours - theirs, found[0].drawn(one, metric, found[0]) - found[1].drawn(other, metric, found[0])
    )


def _with_interval(value: float, draws: NDArray[np.float64]) -> Difference:
    if not draws.size:
        return Difference(value, without="the rows were measured with resamples = 0")
    found = interval(draws)
    return Difference(value, *found) if found else Difference(value, without="undefined in most of the draws")


def _gain(
    row: ResultRow, metric: str, scores: dict[tuple[object, ...], ScoreFiles], *, is_drawn: bool
) -> Difference | None:
    """Return the difference from the row's own answers, all accepted; None if its scores do not tell it."""
    scored, ours = scores.get(all_but_note(row)), getattr(row, metric)
    is_of_answers = metric in RESAMPLED or metric.removeprefix("deploy_") in Deployed._fields
    if scored is None or not scored.is_there or ours is None or not is_of_answers:
        return None
    own = scored.scores()
    never = _all_accepted(own)
    found = measure(
        never.correct,
        never.confidence,
        never.certainty,
        rule=scored.metrics.tpr_rule,
        clean=never.clean,
        resamples=0,
        seed=SEED,
    )
    theirs = getattr(found, metric)
    if theirs is None:
        return None
    draws = scored.drawn(own, metric, scored) - drawn(never, metric, scored)[metric] if is_drawn else np.empty(0)
    return dataclasses.replace(_with_interval(ours - theirs, draws), of=OWN_ANSWERS)


def _all_accepted(scores: Scores) -> Scores:
    """Return the scores of never rejecting: the same answers, each with the same certainty."""
    sure = {name: np.ones_like(getattr(scores, name)) for name in ("certainty", "clean_certainty", "apart_certainty")}
    return scores._replace(**sure, own_threshold=np.array(0.0))


def drawn(scores: Scores, metric: str, scored: ScoreFiles) -> dict[str, NDArray[np.float64]]:
    """Return a metric for every bootstrap draw, and what comes with it; sets of equal size draw the same examples."""
    correct, certainty = scores.correct, scores.certainty
    if metric in RESAMPLED:
        return {metric: resampled(metric, certainty, correct, scored.metrics.tpr_rule, scored.metrics.resamples, SEED)}
    if metric in ("distance", "success"):
        values = (scores.distances if metric == "distance" else scores.reached).astype(np.float64)
        return {metric: resampled_share(values, np.ones_like(values), scored.metrics.resamples, SEED)}
    found = deployed_draws(scores.clean, certainty, correct, scored.metrics.resamples, SEED)
    return {f"deploy_{name}": values for name, values in found.items()}


def all_but_note(row: ResultRow) -> tuple[object, ...]:
    """Return all of a row but its note, which may change later because of other rows."""
    return tuple(value for name, value in dataclasses.asdict(row).items() if name != "note")


def scored_rows(folder: Path) -> dict[tuple[object, ...], ScoreFiles]:
    """Find the score files of every measured row of a work folder."""
    found: dict[tuple[object, ...], ScoreFiles] = {}
    for record, _ in read_cells(folder):
        if record.row.status == "ok":
            found[all_but_note(record.row)] = ScoreFiles(folder, tuple(record.files.items()), record.metrics)
    return found
