"""A time limit, such as a cluster sets: work stops cleanly when the time is over, and a later run goes on."""

import math
import re
import time
from dataclasses import dataclass

from rrbench.errors import UseError

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_PART = r"[0-9]{1,9}(?:\.[0-9]{1,9})?[smhd]"


@dataclass(frozen=True)
class Deadline:
    """The time when work must stop; by default never."""

    text: str = ""  # as typed
    ends: float = math.inf  # as time.time(), which other machines share

    def is_over(self) -> bool:
        """Tell whether the time is up."""
        return time.time() >= self.ends


def read_deadline(text: str | None) -> Deadline:
    """Read a time limit such as 90s, 25m or 1h30m, counted from now."""
    if text is None:
        return Deadline()
    if not re.fullmatch(f"(?:{_PART})+", text):
        raise UseError(f"cannot read --stop-after {text[:40]!r}; write a time such as 90s, 25m or 1h30m")
    seconds = sum(float(part[:-1]) * SECONDS[part[-1]] for part in re.findall(_PART, text))
    if seconds <= 0:
        raise UseError(f"--stop-after {text} leaves no time at all")
    return Deadline(text, time.time() + seconds)
