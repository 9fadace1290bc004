"""Reads numbers that other people wrote, within bounds; prints counts and durations for people. Imports no torch.

The exact value of `1e99999999` has a hundred million digits: computing with it or printing it takes hours.
"""

import math
import re
from fractions import Fraction

LONGEST = 200  # letters of a number
LARGEST_EXPONENT = 320  # the smallest float is 5e-324
LARGEST_WHOLE = 2**63 - 1

_EXPONENT = re.compile(r"[eE]\s*([+-]?[\d_]+)")


def read_fraction(text: str | int | Fraction) -> Fraction:
    """Read a number exactly; a number outside the range of floats is a ValueError."""
    if isinstance(text, str):
        _check_text(text)
        exponent = _EXPONENT.search(text)
        if exponent is not None and abs(int(exponent[1])) > LARGEST_EXPONENT:
            raise ValueError(f"an exponent beyond {LARGEST_EXPONENT}")
    try:
        number = Fraction(text)
        is_in_range = math.isfinite(float(number)) and (number == 0 or float(number) != 0)
    except (ZeroDivisionError, OverflowError) as error:
        raise ValueError(str(error)) from None
    if not is_in_range:
        raise ValueError("a number smaller than a float can be")
    return number


def read_whole(text: str | int) -> int:
    """Read a whole number; a number of more than 64 bits is a ValueError."""
    if isinstance(text, str):
        _check_text(text)
    number = int(text)
    if not -LARGEST_WHOLE - 1 <= number <= LARGEST_WHOLE:
        raise ValueError("a whole number of more than 64 bits")
    return number


def counted(number: int, thing: str) -> str:
    """Print a number of things: `1 row`, `2 rows`."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def ordinal(number: int) -> str:
    """Write 2nd, 3rd, 10th."""
    tail = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{tail}"


def duration(seconds: float) -> str:
    """Print a duration as people say it: two digits are enough for an estimate."""
    for unit, size, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 48), ("days", 86_400, 730)):
        amount = seconds / size
        if amount < most:
            return f"{amount:.1f} {unit}" if unit == "h" and amount < 10 else f"{amount:.0f} {unit}"
    return f"{seconds / (365.25 * 86_400):,.0f} years"


def _check_text(text: str) -> None:
    if len(text) > LONGEST:
        raise ValueError(f"a number of {len(text)} letters")
