"""The contracts of frameworks, networks and data sets, for all that come with rrbench."""

import pytest

from rrbench.testing import Check, installed_checks
from tested_plugins import TESTED

LARGE = {"wrn34-10"}  # seconds a pass
OF_FILES = {"file", "npz", "folder"}  # users' own: tests/rrbench/cli/test_eval.py, datasets/test_own_files.py
NAMES = [name for kind in ("framework", "network", "dataset") for name in TESTED[kind] if name not in LARGE | OF_FILES]
TEXTS = {"cifar10-c": "cifar10-c(fog)", "cifar10-c-made": "cifar10-c-made(fog)"}


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{what}: {check}")
        for name in dict.fromkeys(NAMES)
        for what, checks in installed_checks(TEXTS.get(name, name))
        if not what.startswith("rejector")
        for check in checks
    ],
)
def test_it_keeps_the_contract(check: Check) -> None:
    check()
