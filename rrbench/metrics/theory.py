"""The statements that Pang et al. (2022, arXiv 2105.14785) prove about coupled rejection, as functions."""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray


def xi_error(rectifier: ArrayLike, ideal: ArrayLike) -> NDArray[np.float64]:
    """Return the smallest xi for which the rectifier A is xi-error at each input: 2 |A - A*|.

    The ideal A* is the label's probability over the largest one. At 1 or above, the input has no admissible xi.
    """
    return 2 * np.abs(np.asarray(rectifier, dtype=np.float64) - np.asarray(ideal, dtype=np.float64))


def passes_coupled_filter(confidence: ArrayLike, xi: ArrayLike) -> NDArray[np.bool_]:
    """Say for which inputs xi < 1 and confidence > 1 / (2 - xi).

    There a rectified confidence A * confidence above 1/2 means a right class, and one below 1/2 a wrong class.
    """
    error = np.asarray(xi, dtype=np.float64)
    # As a product: no division by zero at xi = 2, and for right inputs no more rounding than in A * confidence.
    return (error < 1) & (np.asarray(confidence, dtype=np.float64) * (2 - error) > 1)


def substeps(rho: float, xi: float) -> int:
    """Count the classification tasks that make a xi-error rectifier; all ideals below rho count as one.

    N = ceil(min(log(1 / rho) / log(2 / (2 - xi)) + 1, 2 / xi)).
    """
    if not (0 < rho < 1 and 0 < xi < 1):
        raise ValueError(f"rho and xi must lie strictly between 0 and 1, not be {rho} and {xi}")
    geometric = math.log(1 / rho) / math.log(2 / (2 - xi)) + 1
    uniform = 2 / xi
    return math.ceil(round(min(geometric, uniform), 9))  # rounded, so that 49.00000000000001 does not become 50
