"""95 % intervals of a share and of a mean, without numpy."""

import math
import statistics
from collections.abc import Sequence

Interval = tuple[float, float]
NORMAL = 1.959963984540054  # the normal distribution's 97.5 % quantile
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # Student's, 1 to 9 degrees of freedom


def share_interval(count: float, total: int) -> Interval:
    """Return the interval of a share of independent inputs (Wilson 1927); it never leaves [0, 1]."""
    if not 0 <= count <= total or total < 1:
        raise ValueError(f"{count} of {total} is no share")
    share, z = count / total, NORMAL
    centre, half = share + z**2 / (2 * total), z * (share * (1 - share) / total + (z / (2 * total)) ** 2) ** 0.5
    scale = 1 + z**2 / total
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def mean_interval(values: Sequence[float]) -> Interval:
    """Return Student's interval of the mean of two or more independent values."""
    mean, half = statistics.fmean(values), student(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean - half, mean + half


def student(degrees: int) -> float:
    """Return the 97.5 % quantile of Student's distribution."""
    if degrees <= len(STUDENT):
        return STUDENT[degrees - 1]
    # Cornish and Fisher's expansion: correct to three digits from ten degrees of freedom on.
    z = NORMAL
    return z + (z**3 + z) / (4 * degrees) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * degrees**2)
