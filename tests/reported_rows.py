"""Rows for tests of the report, and the text of what it writes."""

import re
from typing import Any

from rrbench.rows.row import ResultRow


def row(rejector: str, attack: str, robust: float, **more: Any) -> ResultRow:
    eps = more.pop("eps", "" if attack == "clean" else "3/20")
    given = {"n": 400, "deploy_n": 400, "deploy_coverage": 90.0, "deploy_robust": robust, "acc_all": robust}
    names = ("digits", "small-cnn", "pgd-at", "pgd-at", rejector, attack, "linf" if eps else "", eps)
    return ResultRow(*names, more.pop("seed", 0), "quick", **(given | more))


def text_of(page: str) -> str:
    return re.sub(r"<[^>]*>", "", page)
