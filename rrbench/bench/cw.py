"""CW in l2, of rrbench and of foolbox, on the same images: how fast, how often it ends wrong, and how far away."""

import math
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor, nn

from rrbench.ascent import norms, wide
from rrbench.bench.attacks import Arena, Run, foolbox_model, usual_precision
from rrbench.bench.measurement import OURS, Measurement
from rrbench.compute.devices import Precision, tf32
from rrbench.protocols import Batch, Budget

IMAGES = 200  # unless the user says how many
# Of all implementations; foolbox says initial_const, steps and binary_search_steps. The confidence is 0.
C0, STEPS, SEARCHES = 1.0, 100, 5
FASTEST, STEP = 0.1, 0.8  # the largest learning rate; and the l2 length of a step, which sets the rate of larger images
# Two implementations agree if no more than these shares lie between them: of the images, in who ends wrong, and of the
# mean distance. Not 0: they stop by different rules, and rounding decides at the border, where the answers lie.
IMAGES_APART, DISTANCE_APART = 0.01, 0.02


class Answer(NamedTuple):
    """The images of one implementation, judged in float32."""

    is_wrong: Tensor  # (N,)
    distances: Tensor  # (N,), in l2


def cw(arena: Arena, peers: frozenset[str], count: int) -> Iterator[Measurement | str]:
    """Measure CW on the first `count` images; then say of each one in float32 whether ours agrees with it."""
    arena = replace(arena, budget=Budget("l2", None))
    part = arena.measured.test().at(slice(count))
    exact: dict[str, Answer] = {}
    ours: Answer | None = None
    for name, precision, run in _runs(arena, part, peers):
        answer = _judge(arena, part, run)
        line = arena.line(f"cw-l2 of {part.size}", name, precision, part, run, None)
        yield replace(
            line,
            robust_accuracy=None,  # without a budget it says nothing
            images_per_second=part.size / run.seconds,
            success=float(answer.is_wrong.double().mean()),
            l2_distance=_mean(answer.distances, answer.is_wrong),
        )
        if ours is None:
            ours = answer
        elif precision == "fp32":
            exact[name] = answer
    assert ours is not None
    yield from (compare_answers(ours, answer, name) for name, answer in exact.items())
    if "foolbox" not in peers:
        yield "cw: no foolbox to compare with; it is not installed, or --peers leaves it out"


def _runs(arena: Arena, part: Batch, peers: frozenset[str]) -> Iterator[tuple[str, Precision, Run]]:
    """Run ours in the precision of a run, then as it would be in float32; foolbox as people use it, then in float32.

    In lower precision foolbox's answers lie at another border than the verdict's, and many end right.
    """
    precision, usual = arena.measured.precision, usual_precision(arena.measured.device)
    yield OURS, precision, _ours(arena, part, precision)
    if precision != "fp32":
        yield f"{OURS} in fp32, back in tf32", "fp32", _ours(arena, part, "fp32")
    if "foolbox" in peers:
        yield "foolbox", usual, _foolbox(arena, part, is_exact=False)
        if usual != "fp32":
            yield "foolbox in fp32", "fp32", _foolbox(arena, part, is_exact=True)


def learning_rate(images: Tensor) -> float:
    """Return the rate for images of this size: Adam moves every pixel by it, so more pixels make a longer step."""
    return min(FASTEST, STEP / math.sqrt(images[0].numel()))


def _ours(arena: Arena, part: Batch, precision: Precision) -> Run:
    short_back = arena.measured.precision != "fp32"  # as in a run

    def run(steps: int, searches: int) -> Run:
        settings = f"c0={C0},learning_rate={learning_rate(part.images)},steps={steps},searches={searches},stop=image"
        return arena.ours(f"cw-l2(normal,{settings})", part, precision, short_back=short_back, is_warmed=False)

    run(2, 1)  # not timed: it compiles kernels
    return run(STEPS, SEARCHES)


def _foolbox(arena: Arena, part: Batch, *, is_exact: bool) -> Run:
    from foolbox.attacks.carlini_wagner import L2CarliniWagnerAttack

    def run(steps: int, searches: int) -> Run:
        attack = L2CarliniWagnerAttack(
            initial_const=C0,
            stepsize=learning_rate(part.images),
            steps=steps,
            binary_search_steps=searches,
            confidence=0,
        )

        def move(logits: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
            with tf32(False) if is_exact else nullcontext():
                moved: Tensor = attack(foolbox_model(logits, images), images, labels, epsilons=None)[1]
            # Where foolbox finds nothing it answers with black, which may be wrong too.
            is_black = moved.flatten(1).amax(1) == 0
            return images.where(wide(is_black, images), moved)

        return arena.theirs(move, part, arena.large, is_warmed=False)

    run(2, 1)
    return run(STEPS, SEARCHES)


def _judge(arena: Arena, part: Batch, run: Run) -> Answer:
    is_wrong = arena.measured.judge(run.images).logits.argmax(1) != part.labels
    return Answer(is_wrong, norms(run.images - part.images).flatten().double())


def _mean(distances: Tensor, chosen: Tensor) -> float | None:
    return float(distances[chosen].mean()) if bool(chosen.any()) else None


def compare_answers(ours: Answer, other: Answer, name: str) -> str:
    """Say in words whether another implementation got the same images wrong, and equally near on average."""
    apart = int((ours.is_wrong ^ other.is_wrong).sum())
    both = ours.is_wrong & other.is_wrong
    count, mine, theirs = len(both), _mean(ours.distances, both), _mean(other.distances, both)
    success = f"{int(ours.is_wrong.sum())} and {int(other.is_wrong.sum())} of {count} images end wrong"
    if not mine or not theirs:
        return f"{OURS} and {name} cannot be compared: {success}, and none was moved there by both"
    ratio = mine / theirs
    agree = apart <= IMAGES_APART * count and abs(ratio - 1) <= DISTANCE_APART
    return (
        f"{OURS} and {name} {'agree' if agree else 'disagree'}: {success}, {apart} in one of them only "
        f"(allowed: {IMAGES_APART:.0%}); mean l2 distance where both do: {mine:.4f} and {theirs:.4f}, "
        f"{ratio - 1:+.2%} (allowed: {DISTANCE_APART:.0%})"
    )
