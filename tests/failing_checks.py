"""Runs checks of the plugin contract, for tests of these checks."""

from collections.abc import Iterable

from rrbench.testing import Check


def failures(checks: Iterable[Check]) -> dict[str, str]:
    """Return {sentence: why} of the checks that fail."""
    found = {}
    for check in checks:
        try:
            check()
        except Exception as error:
            found[str(check)] = str(error)
    return found
