"""One victim under one attack: outputs, attack, certainty, metrics. Used by the runner and by `rrbench.evaluate`."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rrbench import probes
from rrbench.batching import batch_size, forward, in_batches
from rrbench.calibration import Border, find_border, scale_of
from rrbench.config import MetricSettings
from rrbench.datasets.check import fingerprint
from rrbench.deployment import Clean, fold_of, fold_thresholds
from rrbench.devices import Instrumented, Precision, make_twin, tf32
from rrbench.draws import HashedDraws, derive
from rrbench.errors import CellError, first_line
from rrbench.guards import certainties as certainties
from rrbench.guards import check_alone, check_returned, checked, fit, lend_rejector
from rrbench.lending import kept
from rrbench.looking import without_looks
from rrbench.metrics import Metrics, measure
from rrbench.modes import frozen
from rrbench.names import Choice
from rrbench.probes import Doubt
from rrbench.protocols import (
    Attack,
    Batch,
    Budget,
    Calibration,
    Ensemble,
    Member,
    Moved,
    Norm,
    Outputs,
    Rejector,
    Split,
    Victim,
)
from rrbench.registry import build
from rrbench.scores import Scores

KEPT_IMAGES = 16  # of each attack, for the gallery and for replay
VANISHED, STILL = 0.1, 0.1  # shares above which an attack looks broken
LARGE = Fraction(1, 2)  # of linf: with such a budget every image can be made grey
SLACK = 1e-6  # how far rounding may carry an image out of its budget


@dataclass
class Subject:
    """A network with its data on one device; what it says of clean inputs is computed once."""

    network: nn.Module
    load: Callable[[Split], Batch | None]  # None: the user gave no such data
    device: torch.device
    precision: Precision
    limit: int | None = None
    _outputs: dict[tuple[Split, int | None], Outputs] = field(default_factory=dict)
    _borders: dict[Split, Border | None] = field(default_factory=dict)
    _twins: dict[tuple[Precision, bool], nn.Module | None] = field(default_factory=dict)
    _doubts: dict[str, list[Doubt]] = field(default_factory=dict)

    def batch(self, split: Split) -> Batch | None:
        """Return a split; the test split cut to the limit."""
        batch = self.load(split)
        return batch.at(slice(self.limit)) if batch and split == "test" and self.limit else batch

    def apart(self) -> Batch | None:
        """Return the calibration inputs, where none of them is measured."""
        calibration = self.batch("calibration")
        if calibration is None or bool(torch.isin(calibration.ids, self.test().ids).any()):
            return None
        return calibration

    def test(self) -> Batch:
        """Return the inputs that are measured."""
        batch = self.batch("test")
        assert batch is not None
        return batch

    @cached_property
    def data_sha256(self) -> str:
        """What tells the inputs that are measured from others."""
        return fingerprint(self.test())

    def outputs(self, split: Split, count: int | None = None) -> Outputs:
        """Return the outputs on a clean split, or on its first inputs, in exact float32."""
        if count is not None and (split, None) in self._outputs:
            return self._outputs[split, None].at(slice(count))
        if (split, count) not in self._outputs:
            batch = self.batch(split)
            assert batch is not None
            self._outputs[split, count] = self.judge(batch.images[:count])
        return self._outputs[split, count]

    def judge(self, images: Tensor) -> Outputs:
        """Return what the network says in exact float32: every printed number comes from such a pass."""
        with frozen(self.network), kept(self.network, changes_itself), tf32(False):
            outputs = forward(self.network, images, batch_size(self.device))
        if not all(bool(part.isfinite().all()) for part in outputs):
            raise CellError("the network gives NaN or infinite outputs")
        return outputs

    def attackable(self, precision: Precision, *, is_blind: bool = False) -> nn.Module:
        """Return the network as attacks see it: its twin, where there is one, and without a rejector's looks."""
        network = without_looks(self.network) if is_blind else self.network
        if (precision, is_blind) not in self._twins:
            self._twins[precision, is_blind] = make_twin(network, precision, self.device)
        return self._twins[precision, is_blind] or network

    def doubts(self, rejector: Rejector | None = None) -> list[Doubt]:
        """Return what makes the network and its data look wrong or, given a fitted rejector, that one; asked once."""
        about = "" if rejector is None else f"{type(rejector).__name__} {rejector!r}"
        if about not in self._doubts:
            test, outputs = self.test(), self.outputs("test")
            if rejector is not None:
                self._doubts[about] = probes.of_rejector(rejector, outputs, test.labels)
                return self._doubts[about]
            with frozen(self.network), kept(self.network, changes_itself), tf32(False):
                found = probes.of_network(self.network, test, outputs)
            self._doubts[about] = found + probes.of_data(test, self.apart())
        return self._doubts[about]

    def victim(self, rejector: Rejector, *, is_attacked: bool) -> Victim:
        """Fit and calibrate a rejector; `is_attacked`: an adaptive attack will want the scale of its certainty."""
        train = self.batch("train") if rejector.has_fit() or is_attacked else None
        if is_attacked and train is None and not rejector.is_probability:
            raise CellError(
                f"an adaptive attack on {rejector} needs training data (fit_data): its certainty has no scale"
            )
        if rejector.has_fit() and not rejector.fitted:
            if train is None:
                raise CellError(f"{rejector} must be fitted: give training data (fit_data)")
            rejector = fit(rejector, self.outputs("train"), train.labels)
        check_alone(rejector, self.outputs("test"), self.test().labels)
        return Victim(self.network, rejector, self.calibrate(rejector, train if is_attacked else None))

    def calibrate(self, rejector: Rejector, train: Batch | None) -> Calibration:
        """Fix a rejector's thresholds on clean inputs and, given training inputs, its certainty's scale."""
        folds = [math.nan if each is None else each for each in fold_thresholds(self.clean(rejector))]
        calibration = self.batch("calibration")
        median, scale = float("nan"), float("nan")
        # Differs from the paper: a rejector fitted on the training inputs meets itself there (lid at distance 0), and
        # an attack on that scale would be weak; held-out inputs show the certainty that an attacker must reach.
        split: Split = "calibration" if rejector.has_fit() and calibration is not None else "train"
        scaling = calibration if split == "calibration" else train
        if train is not None and scaling is not None:
            certainty, correct = self._clean_scores(rejector, split, scaling)
            median, scale = scale_of(certainty[correct], self._at_border(rejector, split, scaling))
        return Calibration(max(folds), median, scale, tuple(folds))

    def clean(self, rejector: Rejector, count: int | None = None) -> Clean:
        """Return what a fitted rejector says of clean inputs, of the measured ones perhaps only of the first.

        Calibration inputs fix thresholds where they are kept apart. Those of CIFAR are test images: all of them do it.
        """
        test, apart = self.test(), self.apart()
        certainty, correct = self._clean_scores(rejector, "test", test, count)
        others: tuple[NDArray[np.float64], NDArray[np.bool_]] = np.empty(0), np.empty(0, dtype=np.bool_)
        if apart is not None:
            others = self._clean_scores(rejector, "calibration", apart)
        return Clean(certainty, correct, fold_of(to_numpy(test.ids[:count])), *others, rejector.own_threshold)

    def _at_border(self, rejector: Rejector, split: Split, batch: Batch) -> NDArray[np.float64]:
        """Return the certainty on the border between classes; nobody asks for that of a probability."""
        if rejector.is_probability:
            return np.empty(0)
        if split not in self._borders:
            self._borders[split] = find_border(self.judge, self.outputs(split), batch)
        border = self._borders[split]
        return certainties(rejector, border.outputs, border.labels) if border else np.empty(0)

    def _clean_scores(
        self, rejector: Rejector, split: Split, batch: Batch, count: int | None = None
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        outputs, labels = self.outputs(split, count), batch.labels[:count]
        return certainties(rejector, outputs, labels), to_numpy(outputs.logits.argmax(1) == labels)


def to_numpy(tensor: Tensor) -> NDArray[Any]:
    """Bring a tensor to the host."""
    return tensor.detach().cpu().numpy()


def notes(subject: Subject, rejector: Rejector, attack: Attack, budget: Budget, attacked: "Attacked") -> str:
    """Say what a reader of the row must know, and what makes the attack look broken."""
    found = ["oracle: knows the labels"] if rejector.is_oracle else []
    concerned = {"all"} | ({"certainty", "head", *rejector.needs} if attack.is_adaptive else set())
    # An ensemble counts no gradients of its own where its members' answers were stored.
    if attacked.gradients > 0 or isinstance(attack, Ensemble):
        concerned.add("gradients")
    doubts = [*subject.doubts(), *subject.doubts(rejector)]
    found += [doubt.text for doubt in doubts if doubt.concerns in concerned]
    if attack.is_mixture:
        found.append("mixture: clean images wherever the attack failed")
    if attacked.reached is not None and not bool(attacked.reached.any()):
        found.append("the goal was never reached: the distance says nothing")
    if attacked.lost:
        found.append(f"goes without {', '.join(attacked.lost)}")
    if attacked.vanished > VANISHED and not (rejector.is_constant and attack.is_adaptive):  # half its goals are flat
        found.append(f"{100 * attacked.vanished:.0f} % of the gradients are zero")
    labels = subject.test().labels
    is_right = attacked.outputs.logits.argmax(1) == labels
    if attack.needs_budget and budget.radius and not attack.is_mixture:
        still = float((attacked.is_still & is_right).double().mean())
        if still > STILL:
            found.append(f"{100 * still:.0f} % of the inputs were not moved and stay right")
        if budget.norm == "linf" and budget.radius >= LARGE and bool(is_right.any()):
            found.append(f"a budget of {budget.radius} leaves {int(is_right.sum())} inputs right")
    return "; ".join(found)


class Attacked(NamedTuple):
    """What the network says of an attack's answers, and what the attack cost."""

    outputs: Outputs
    boldest: Outputs
    images: Tensor
    boldest_images: Tensor
    seconds: float
    gradients: float  # per image, as are forwards
    forwards: float
    vanished: float  # share of gradients that were zero everywhere
    is_still: Tensor  # (N,): the answer is the clean image
    distances: Tensor | None = None  # of minimal distortion only
    reached: Tensor | None = None
    lost: tuple[str, ...] = ()  # of an ensemble: the attacks that failed, and why


def fresh_member(attack: Choice, budget: Budget, seed: int) -> Member:
    """Return an attack of an ensemble, to be run when it is its turn."""

    def run(victim: Victim, batch: Batch) -> Moved:
        own, draws = build(Attack, attack), HashedDraws(derive(seed, "attack", attack.name))
        with kept(victim.network, partial(_changed_by, own)):
            return checked(own, own(victim.seen_by(own), batch.copied(), budget, draws), batch, budget)

    return run


def run_attack(
    subject: Subject,
    victim: Victim,
    attack: Attack,
    name: str,
    budget: Budget,
    seed: int,
    done: Callable[[int], None],
    members: Sequence[tuple[str, Member]] = (),
) -> Attacked:
    """Attack every test input in the subject's precision, check the budget, judge the answers in float32."""
    test = subject.test()
    subject.doubts()  # before any work: a network that writes into its images or itself is refused
    # An answer of minimal distortion lies on the boundary: in short precision it would end on the wrong side.
    # An ensemble compares verdicts, and those are fp32's.
    is_exact = not attack.needs_budget or isinstance(attack, Ensemble)
    precision: Precision = "fp32" if is_exact else subject.precision
    is_blind = not attack.is_adaptive
    exact = without_looks(subject.network) if is_blind else subject.network
    counted = Instrumented(subject.attackable(precision, is_blind=is_blind), precision, exact=exact, watch=True)
    lent = lend_rejector(victim.rejector)
    watched = victim._replace(network=counted, rejector=lent).seen_by(attack)
    draws = HashedDraws(derive(seed, "attack", name))
    lost: dict[str, str] = {}
    trying = [_noted(label, member, lost) for label, member in members]
    begin = time.perf_counter()

    def attacked(piece: slice) -> tuple[Tensor | None, ...]:
        batch = test.at(piece)
        if isinstance(attack, Ensemble):
            return checked(attack, attack.combine(watched, batch.copied(), trying), batch, budget)
        return checked(attack, attack(watched, batch.copied(), budget, draws), batch, budget)

    # Where only the answers must be exact, the way back may be fast.
    with (
        frozen(counted),
        kept(counted, partial(_changed_by, attack)),
        tf32(precision == "tf32" or subject.precision != "fp32"),
    ):
        images, boldest, reached = in_batches(test.size, batch_size(subject.device), attacked, done)
    check_returned(attack, lent, victim.rejector)
    assert images is not None
    if counted.has_seen_nan():
        raise CellError("NaN gradients: some images could not be attacked and would look robust")
    for candidate in (images, boldest):
        if candidate is not None:
            check_budget(candidate, test.images, budget)
    outputs = subject.judge(images)
    return Attacked(
        outputs=outputs,
        boldest=outputs if boldest is None else subject.judge(boldest),
        images=images,
        boldest_images=images if boldest is None else boldest,
        seconds=time.perf_counter() - begin,
        gradients=counted.gradients / test.size,
        forwards=counted.forwards / test.size,
        vanished=counted.vanished(),
        is_still=(images == test.images).flatten(1).all(1),
        distances=distance(images, test.images, budget.norm) if budget.radius is None else None,
        reached=reached,
        lost=tuple(f"{name} ({reason})" for name, reason in lost.items()),
    )


def _changed_by(attack: Attack, what: str) -> str:
    return f"{type(attack).__name__} changes the network's {what}: work on a copy"


def changes_itself(what: str) -> str:
    """Say that a network writes into itself."""
    return f"the network changes its own {what} when it answers: its rows would depend on what was asked before"


def _noted(name: str, member: Member, lost: dict[str, str]) -> Member:
    """Note why a member of an ensemble failed, which may go on without it."""

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


def check_budget(moved: Tensor, images: Tensor, budget: Budget) -> None:
    """Refuse images outside the budget or outside [0, 1]: no attack is believed without a look."""
    if moved.shape != images.shape or not bool(moved.isfinite().all()):
        raise CellError("the attack returned NaN, infinite or misshapen images")
    if float(moved.min()) < 0 or float(moved.max()) > 1:
        raise CellError("the attack left the range [0, 1]")
    if budget.radius is None:
        return
    delta = (moved - images).flatten(1)
    size = delta.abs().amax(1) if budget.norm == "linf" else torch.linalg.vector_norm(delta, dim=1)
    if float(size.max()) > budget.eps + SLACK * max(1.0, budget.eps):
        raise CellError(f"the attack left its budget: {budget.norm} {float(size.max()):.6g} > {budget.eps:.6g}")


def score(subject: Subject, victim: Victim, attacked: Attacked, clean: Clean) -> Scores:
    """Let a rejector judge an attack's answers; `clean` is what it says of clean inputs."""
    test = subject.test()
    outputs = attacked.outputs
    certainty = certainties(victim.rejector, outputs, test.labels)
    boldest = np.where(to_numpy(outputs.logits.argmax(1) != test.labels), certainty, -np.inf)
    if attacked.boldest is not outputs:
        bold = certainties(victim.rejector, attacked.boldest, test.labels)
        is_wrong = to_numpy(attacked.boldest.logits.argmax(1) != test.labels)
        boldest = np.maximum(boldest, np.where(is_wrong, bold, -np.inf))
    own = math.nan if clean.own_threshold is None else clean.own_threshold
    return Scores(
        ids=to_numpy(test.ids),
        labels=to_numpy(test.labels),
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
    """Average stored distances over all inputs and over those where the goal was reached."""
    if not scores.distances.size:
        return Distances()
    reached = scores.distances[scores.reached]
    mean_reached = float(reached.mean()) if reached.size else None
    return Distances(float(scores.distances.mean()), mean_reached, float(scores.reached.mean()))


def metrics_of(scores: Scores, rule: str, resamples: int, seed: int) -> Metrics:
    """Compute every metric from stored scores alone; `verify` calls this again."""
    return measure(
        scores.labels,
        scores.logits,
        scores.certainty,
        rule="official" if rule == "official" else "quantile",
        clean=scores.clean,
        resamples=resamples,
        seed=derive(seed, "bootstrap"),
    )


def measured(
    subject: Subject,
    victim: Victim,
    attack: Attack,
    budget: Budget,
    attacked: Attacked,
    metrics: MetricSettings,
    seed: int,
    clean: Clean,
) -> tuple[Scores, dict[str, Any]]:
    """Score an attack's answers, and return the columns of the row that come of it; a rerun compares the same ones."""
    scores = score(subject, victim, attacked, clean)
    found = metrics_of(scores, metrics.tpr_rule, metrics.resamples, seed)
    return scores, {
        "n": len(scores.labels),
        **found._asdict(),
        **distances_of(scores)._asdict(),
        "note": notes(subject, victim.rejector, attack, budget, attacked),
        **{name: round(getattr(attacked, name), 3) for name in ("seconds", "gradients", "forwards")},
        "data_sha256": subject.data_sha256,
    }
