"""Measures one victim under one attack: attack, outputs, certainty, metrics. For the runner and `rrbench.evaluate`."""

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import starmap
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rrbench.compute.batching import batch_size, in_batches
from rrbench.compute.devices import Precision, describe, tf32
from rrbench.compute.draws import HashedDraws, derive
from rrbench.compute.eval_mode import frozen
from rrbench.compute.instrumented import Instrumented
from rrbench.compute.looking import without_looks
from rrbench.errors import CellError, first_line
from rrbench.files import provenance
from rrbench.lending import kept, surroundings_kept
from rrbench.measuring import probes
from rrbench.measuring.measured_network import MeasuredNetwork, to_numpy
from rrbench.metrics.columns import Metrics
from rrbench.metrics.deployment import CleanScores
from rrbench.metrics.measures import classes_of, measure
from rrbench.names import Choice
from rrbench.plugins import signs
from rrbench.plugins.config import MetricSettings
from rrbench.plugins.guards import (
    PROBED,
    check_budget,
    check_returned,
    check_steady,
    checked,
    class_kept,
    lend_rejector,
    sizes,
    watch,
)
from rrbench.plugins.guards import certainties as certainties
from rrbench.plugins.registry import build, is_ours
from rrbench.plugins.revisions import write
from rrbench.protocols import (
    Attack,
    Batch,
    Budget,
    Ensemble,
    Member,
    Moved,
    MovedElsewhere,
    Norm,
    Outputs,
    Rejector,
    Victim,
)
from rrbench.rows import notes
from rrbench.rows.row import ResultRow
from rrbench.rows.scores import Scores, where_wrong

KEPT_IMAGES = 16  # of each attack, for the gallery and for replay
VANISHED, STILL = 0.1, 0.1  # shares above which an attack looks broken
CLAIMED = 0.01  # share of the inputs: a few answers at the border turn with the batch that they are judged in
LARGE = Fraction(1, 2)  # in linf: from this budget on an attack can make every image grey


def find_notes(
    measured: MeasuredNetwork, rejector: Rejector, attack: Attack, budget: Budget, attacked: "Attacked"
) -> list[str]:
    """Return the notes of a row: facts that its reader must know, and signs that the attack is broken."""
    found = [notes.ORACLE] if rejector.is_oracle else []
    concerned = {"all"} | ({"certainty", "head", *rejector.needs} if attack.is_adaptive else set())
    # An ensemble counts no gradients if its members' answers were stored. A transfer's gradients are those of another
    # network.
    if isinstance(attack, Ensemble) or (attacked.gradients > 0 and not isinstance(attack, MovedElsewhere)):
        concerned.add("gradients")
    doubts = [*measured.doubts(), *measured.doubts(rejector)]
    found += [doubt.text for doubt in doubts if doubt.concerns in concerned]
    if attack.is_mixture:
        found.append(notes.MIXTURE)
    if attacked.reached is not None and not bool(attacked.reached.any()):
        found.append(notes.NEVER_REACHED)
    found += map(notes.without, attacked.lost)
    if attacked.vanished > VANISHED and not (rejector.is_constant and attack.is_adaptive):  # half its goals are flat
        found.append(f"{100 * attacked.vanished:.0f}{notes.FLAT}")
    found += attacked.signs
    labels = measured.test().labels
    is_right = attacked.outputs.logits.argmax(1) == labels
    if not attack.keeps_answers:
        found.append(signs.helping(measured.outputs("test").logits.argmax(1) == labels, is_right))
    if attacked.reached is not None and not attack.keeps_answers:
        untrue = int((attacked.reached & is_right).sum())
        if untrue > CLAIMED * len(labels):
            found.append(f"{untrue} inputs that the attack says to have fooled are answered right")
    if attack.needs_budget and budget.radius and not attack.is_mixture:
        still = float((attacked.is_still & is_right).double().mean())
        if still > STILL:
            found.append(f"{100 * still:.0f} % of the inputs were not moved and stay right")
        if budget.norm == "linf" and budget.radius >= LARGE and bool(is_right.any()):
            found.append(f"a budget of {budget.radius} leaves {int(is_right.sum())} inputs right")
    return found


class Attacked(NamedTuple):
    """The network's outputs on an attack's answers, and the cost of the attack."""

    outputs: Outputs
    boldest: Outputs
    images: Tensor
    boldest_images: Tensor
    seconds: float
    gradients: float  # per image, as are forwards
    forwards: float
    vanished: float  # share of gradients that were zero everywhere
    is_still: Tensor  # (N,): the answer is the clean image
    distances: Tensor | None = None  # only of attacks of minimal distortion
    reached: Tensor | None = None
    lost: tuple[str, ...] = ()  # an ensemble's members that failed, and why
    signs: tuple[str, ...] = ()  # that the attack is broken, as notes


def fresh_member(attack: Choice, budget: Budget, seed: int) -> Member:
    """Return a member of an ensemble that runs its attack when it is called."""

    def run(victim: Victim, batch: Batch) -> Moved:
        own, draws = build(Attack, attack), HashedDraws(derive(seed, "attack", attack.name))
        with surroundings_kept(), kept(victim.network, partial(_changed_by, own)), class_kept(own):
            return checked(own, own(victim.seen_by(own), batch.copied(), budget, draws), batch, budget)

    return run


def fresh_members(choices: Sequence[Choice], budget: Budget, seed: int) -> list[tuple[str, Member]]:
    """Return the members of an ensemble with their names; each runs its attack, without stored answers."""
    return [(str(choice), fresh_member(choice, budget, seed)) for choice in choices]


def run_attack(
    measured: MeasuredNetwork,
    victim: Victim,
    attack: Attack,
    name: str,
    budget: Budget,
    seed: int,
    done: Callable[[int], None],
    members: Sequence[tuple[str, Member]] = (),
) -> Attacked:
    """Attack every test input in the precision of the network, check the budget, judge the answers in float32."""
    test = measured.test()
    measured.doubts()  # first, since this refuses a network that writes into its images or itself
    # An answer of minimal distortion lies on the boundary: short precision could put it on the wrong side.
    # An ensemble compares verdicts, and verdicts are made in fp32.
    is_exact = (not attack.needs_budget and not attack.certifies) or isinstance(attack, Ensemble)
    precision: Precision = "fp32" if is_exact else measured.precision
    is_blind = not attack.is_adaptive
    exact = without_looks(measured.network) if is_blind else measured.network
    counted = Instrumented(measured.attackable(precision, is_blind=is_blind), precision, exact=exact, watch=True)
    lent = lend_rejector(victim.rejector)
    shown = victim._replace(network=counted, rejector=lent).seen_by(attack)
    watched, looks = watch(shown) if attack.is_adaptive else (shown, set())
    draws = HashedDraws(derive(seed, "attack", name))
    lost: dict[str, str] = {}
    trying = [_noted(label, member, lost) for label, member in members]
    begin = time.perf_counter()

    def attacked(piece: slice) -> tuple[Tensor | None, ...]:
        batch = test.at(piece)
        if isinstance(attack, Ensemble):
            return checked(attack, attack.combine(watched, batch.copied(), trying), batch, budget)
        return checked(attack, attack(watched, batch.copied(), budget, draws), batch, budget)

    # Ours restore what they draw from, as tests check: another thread may have drawn.
    chance = None if is_ours("attack", name) else signs.Chance(measured.device)
    # If only the forward pass must be exact, the backward pass may use tf32.
    with (
        surroundings_kept(),
        frozen(counted),
        kept(counted, partial(_changed_by, attack)),
        class_kept(attack),
        tf32(precision == "tf32" or measured.precision != "fp32"),
    ):
        images, boldest, reached = in_batches(
            test.size, batch_size(measured.device, test.images.shape[1:]), attacked, done
        )
    asked = victim.rejector if attack.is_adaptive else None
    ask = partial(probes.ask_once, measured.network, asked, measured.test().at(slice(1)))
    taken = chance.taken(ask) if chance else ""
    check_returned(attack, lent, victim.rejector)
    assert images is not None
    if counted.has_seen_nan():
        raise CellError("NaN gradients: some images could not be attacked and would look robust")
    for candidate in (images, boldest):
        if candidate is not None:
            check_budget(candidate, test.images, budget)
    # If no image moved, as on clean inputs, the answers are known: a CPU would take minutes to give them again.
    outputs = measured.outputs("test") if torch.equal(images, test.images) else measured.judge(images)
    seen = [taken]
    if attack.is_adaptive and not looks and not victim.rejector.is_constant:
        seen.append(signs.NEVER_LOOKED)
    if attack.needs_budget and budget.radius and not attack.is_mixture:
        is_right = outputs.logits.argmax(1) == test.labels
        seen.append(signs.hardly_moving(sizes(images, test.images, budget.norm), budget.eps, is_right))
    return Attacked(
        outputs=outputs,
        boldest=outputs if boldest is None else measured.judge(boldest),
        images=images,
        boldest_images=images if boldest is None else boldest,
        seconds=time.perf_counter() - begin,
        gradients=counted.gradients / test.size,
        forwards=counted.forwards / test.size,
        vanished=counted.vanished(),
        is_still=(images == test.images).flatten(1).all(1),
        distances=distance(images, test.images, budget.norm) if budget.radius is None else None,
        reached=reached,
        lost=tuple(starmap(notes.failure, lost.items())),
        signs=tuple(filter(None, seen)),
    )


def take_over(measured: MeasuredNetwork, elsewhere: Attacked, budget: Budget) -> Attacked:
    """Judge on this network the images that an attack moved on another; the costs are those of the attack."""
    for candidate in (elsewhere.images, elsewhere.boldest_images):
        check_budget(candidate, measured.test().images, budget)
    outputs, boldest = measured.judge(elsewhere.images), measured.judge(elsewhere.boldest_images)
    return elsewhere._replace(outputs=outputs, boldest=boldest)


def _changed_by(attack: Attack, what: str) -> str:
    return f"{type(attack).__name__} changes the network's {what}: work on a copy"


def _noted(name: str, member: Member, lost: dict[str, str]) -> Member:
    """Note why a member of an ensemble failed; the ensemble may go on without it."""

    def run(victim: Victim, batch: Batch) -> Moved:
        try:
            return member(victim, batch)
        except CellError as error:
            lost.setdefault(name, first_line(error))
            raise

    return run


def distance(moved: Tensor, images: Tensor, norm: Norm) -> Tensor:
    """Return each image's distortion in the paper's units: 255 times linf, or l2 squared."""
    delta = (moved - images).flatten(1).double()
    return 255 * delta.abs().amax(1) if norm == "linf" else delta.square().sum(1)


def score(measured: MeasuredNetwork, victim: Victim, attacked: Attacked, clean: CleanScores) -> Scores:
    """Let a rejector judge an attack's answers; `clean` holds its certainties on clean inputs."""
    test = measured.test()
    outputs = attacked.outputs
    certainty = certainties(victim.rejector, outputs, test.labels)
    boldest = where_wrong(certainty, to_numpy(outputs.logits.argmax(1) == test.labels))
    if attacked.boldest is not outputs:
        bold = certainties(victim.rejector, attacked.boldest, test.labels)
        is_right = to_numpy(attacked.boldest.logits.argmax(1) == test.labels)
        boldest = np.maximum(boldest, where_wrong(bold, is_right))
    few = min(PROBED, test.size)
    check_steady(victim.rejector, measured.outputs("test", few), test.labels[:few], clean.certainty)
    own = math.nan if clean.own_threshold is None else clean.own_threshold
    prediction, confidence = classes_of(to_numpy(outputs.logits))
    return Scores(
        ids=to_numpy(test.ids),
        labels=to_numpy(test.labels),
        prediction=prediction,
        confidence=confidence,
        logits=to_numpy(outputs.logits),
        head=to_numpy(outputs.head),
        distances=_or_empty(attacked.distances, np.float64),
        reached=_or_empty(attacked.reached, np.bool_),
        certainty=certainty,
        boldest_certainty=boldest,
        clean_certainty=np.asarray(clean.certainty, dtype=np.float64),
        clean_correct=clean.correct,
        apart_certainty=np.asarray(clean.apart_certainty, dtype=np.float64),
        apart_correct=clean.apart_correct,
        own_threshold=np.asarray(own, dtype=np.float64),
    )


def _or_empty(tensor: Tensor | None, kind: type[np.generic]) -> NDArray[Any]:
    return np.empty(0, kind) if tensor is None else to_numpy(tensor)


class Distances(NamedTuple):
    """The columns of minimal-distortion attacks."""

    distance: float | None = None
    distance_success: float | None = None
    success: float | None = None


def distances_of(scores: Scores) -> Distances:
    """Average stored distances over all inputs, and over the inputs whose goal was reached."""
    if not scores.distances.size:
        return Distances()
    reached = scores.distances[scores.reached]
    mean_reached = float(reached.mean()) if reached.size else None
    return Distances(float(scores.distances.mean()), mean_reached, float(scores.reached.mean()))


def metrics_of(scores: Scores, metrics: MetricSettings, seed: int) -> Metrics:
    """Compute every metric from stored scores alone."""
    return measure(
        scores.correct,
        scores.confidence,
        scores.certainty,
        rule=metrics.tpr_rule,
        clean=scores.clean,
        resamples=metrics.resamples,
        seed=derive(seed, "bootstrap"),
    )


def columns_of(scores: Scores, metrics: MetricSettings, seed: int) -> dict[str, Any]:
    """Compute every column of a row that follows from stored scores alone; `verify` calls this too."""
    found = metrics_of(scores, metrics, seed)
    return {"n": len(scores.labels), **vars(found), **distances_of(scores)._asdict()}


def begin_row(
    *,
    dataset: str,
    network: str,
    framework: str = "",
    trained_as: str = "",
    rejector: str,
    attack: str,
    budget: Budget | None,
    seed: int,
    preset: str,
    settings: Mapping[str, object],
    members: Sequence[Choice],
    revisions: Mapping[str, object],
    device: torch.device,
    precision: str,
) -> ResultRow:
    """Return a row with everything known before measuring; `scores_and_columns` returns the other columns."""
    named = {"members": [str(member) for member in members]} if members else {}
    return ResultRow(
        dataset=dataset,
        network=network,
        framework=framework,
        trained_as=trained_as,
        rejector=rejector,
        attack=attack,
        norm=budget.norm if budget else "",
        eps=str(budget.radius) if budget and budget.radius is not None else "",
        seed=seed,
        preset=preset,
        n=None,
        settings=json.dumps({**settings, **named}, sort_keys=True),
        device=describe(device),
        precision=precision,
        version=provenance.version(),
        commit=provenance.commit(),
        revisions=write(revisions),
    )


def _why_no_threshold(clean: CleanScores) -> str:
    if clean.apart_correct.size:
        return notes.NONE_RIGHT_APART
    return notes.NO_THRESHOLD if clean.correct.any() else notes.NONE_RIGHT


def scores_and_columns(
    measured: MeasuredNetwork,
    victim: Victim,
    attack: Attack,
    budget: Budget,
    attacked: Attacked,
    metrics: MetricSettings,
    seed: int,
    clean: CleanScores,
) -> tuple[Scores, dict[str, Any]]:
    """Score an attack's answers; return the scores and the row's measured columns. `verify --rerun` compares both."""
    scores = score(measured, victim, attacked, clean)
    said = find_notes(measured, victim.rejector, attack, budget, attacked)
    is_attacked = not bool(attacked.is_still.all())
    said += signs.doubtful_scores(victim.rejector, clean, scores.certainty, is_attacked=is_attacked)
    found = columns_of(scores, metrics, seed)
    lacking = "" if found["deploy_n"] is not None else _why_no_threshold(clean)
    return scores, {
        **found,
        "note": notes.joined([measured.sample.note, *said, lacking]),
        **{name: round(getattr(attacked, name), 3) for name in ("seconds", "gradients", "forwards")},
        "data_sha256": measured.data_sha256,
    }
