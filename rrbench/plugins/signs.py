"""Finds signs that an attack or a rejector is broken, from what it does in a run; each sign is the text of a note."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rrbench.metrics.deployment import CleanScores, whole_threshold
from rrbench.metrics.measures import auc
from rrbench.protocols import Rejector

NEVER_LOOKED = "the attack never looks at the rejector, though it is called adaptive"
HARDLY = 0.01  # of the budget: who moves no image farther has not used it
SIGMAS = 3.0  # of chance: what differs by less says nothing
ENOUGH = 20  # right answers: of fewer, a threshold that keeps 95 % keeps all
UPRIGHT = 0.15  # AUC: a weak idea may stay below one half; only a good one with the wrong sign stays below this


def hardly_moving(sizes: Tensor, radius: float, is_right: Tensor) -> str:
    """Say if no image was moved by more than a hundredth of the budget, and answers are left to attack.

    Empty also if none was moved at all: `find_notes` counts such images.
    """
    share = float(sizes.max()) / radius
    if not 0 < share < HARDLY or not bool(is_right.any()):
        return ""
    return f"the attack hardly moves: by at most {100 * share:.2g} % of its budget, and inputs stay right"


def helping(was_right: Tensor, is_right: Tensor) -> str:
    """Say if more answers became right than wrong, by more than chance: the attack descends where it should climb."""
    better, worse = int((is_right & ~was_right).sum()), int((was_right & ~is_right).sum())
    if better - worse <= SIGMAS * math.sqrt(better + worse):
        return ""
    return f"the attack helps: {better} wrong answers became right, {worse} right ones wrong"


def doubtful_scores(
    rejector: Rejector, clean: CleanScores, certainty: NDArray[np.float64], *, is_attacked: bool
) -> list[str]:
    """Say what is odd in a rejector's certainties on clean inputs and, if `is_attacked`, on attacked ones."""
    if rejector.is_constant or len(clean.certainty) < 2:
        return []
    low, high = float(clean.certainty.min()), float(clean.certainty.max())
    if low == high:
        return ["all clean inputs have the same certainty"]
    found = []
    area = auc(clean.certainty, clean.correct)
    right, wrong = int(clean.correct.sum()), int((~clean.correct).sum())
    # If most answers are wrong, as before any training, the network may be surer of these, and not the rejector is odd.
    if area is not None and right > wrong and area < UPRIGHT and 0.5 - area > SIGMAS * _chance(right, wrong):
        found.append(
            "the certainty is upside down: clean, a right answer has more of it than a wrong one "
            f"{100 * area:.0f} times in 100"
        )
    is_apart = bool(clean.apart_certainty.size)
    fixing = clean.apart_certainty[clean.apart_correct] if is_apart else clean.certainty[clean.correct]
    threshold = None if clean.own_threshold is not None or len(fixing) < ENOUGH else whole_threshold(clean)
    if threshold is not None and threshold == float(fixing.min()) and threshold <= low:
        found.append(
            f"the threshold {threshold:.3g} refuses no clean input: "
            "more than 5 % of the right ones that fix it share it"
        )
    own, lowest = clean.own_threshold, min(low, float(certainty.min()))
    if own is not None and own > high:
        found.append(f"own_threshold {own:.3g} rejects every clean input: their certainty ends at {high:.3g}")
    # A threshold may well keep all clean inputs: only together with attacked ones it says something.
    if own is not None and is_attacked and own <= lowest:
        found.append(f"own_threshold {own:.3g} rejects no input, clean or attacked: certainty begins at {lowest:.3g}")
    return found


def _chance(right: int, wrong: int) -> float:
    """Return the standard deviation of the AUC if scores say nothing (Mann and Whitney 1947)."""
    return math.sqrt((right + wrong + 1) / (12 * right * wrong))


class Chance:
    """Remembers the states of the random numbers that belong to the whole process, and says which have moved on.

    Not of Python's own: threads of other libraries draw from it.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.origin = random_states(device)
        # One number on: an attack that seeds them itself leaves them where it left them in the cell before.
        torch.rand(1)
        if device.type == "cuda":
            torch.rand(1, device=device)
        np.random.random()
        self.before = random_states(device)

    def taken(self, victim: Callable[[], object]) -> str:
        """Say from where random numbers were taken since; `victim` asks the victim, which may draw some itself."""
        moved = self._moved()
        if not moved:
            return ""
        again = Chance(self.device)
        victim()
        others = again._moved()
        blamed = [name for name in moved if name not in others]
        if not blamed:
            return ""
        return (
            f"the attack takes random numbers from {' and '.join(blamed)}, not from draws: "
            "its images may change from run to run, or with the batch size"
        )

    def _moved(self) -> list[str]:
        """Return whose state has moved on; put the other back to where it was at first."""
        moved = moved_since(self.before, self.device)
        if "torch" not in moved:
            torch.set_rng_state(self.origin["torch"][0])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(self.origin["torch"][1], self.device)
        if "numpy" not in moved:
            np.random.set_state(self.origin["numpy"])
        return moved


def random_states(device: torch.device) -> dict[str, Any]:
    """Return the states of the random numbers that belong to the whole process, by library."""
    drawn = [torch.get_rng_state()]
    if device.type == "cuda":
        drawn.append(torch.cuda.get_rng_state(device))
    return {"torch": drawn, "numpy": np.random.get_state(legacy=True)}


def moved_since(before: Mapping[str, Any], device: torch.device) -> list[str]:
    """Return the libraries whose random numbers have moved on since `before`."""
    now = random_states(device)
    return [name for name, state in before.items() if _bytes(now[name]) != _bytes(state)]


def _bytes(state: Iterable[Any]) -> list[object]:
    """Return a generator's state in a form that can be compared."""
    return [np.asarray(part).tobytes() for part in state]
