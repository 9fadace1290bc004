"""Settings out of range: one line when the choice is read, before any work."""

import json
from pathlib import Path
from typing import Any

import pytest

from plan_parts import plan
from rrbench.errors import UseError
from rrbench.plugins.config import load_preset
from rrbench.plugins.contract import BASES
from rrbench.plugins.registry import build, choose, restore
from rrbench.ranges import above, at_least, at_most, below

RESULTS = Path(__file__).resolve().parents[3] / "results"


def test_each_bound_is_where_it_says() -> None:
    at_least(0, a=0, b=None)
    above(0, a=1e-9)
    at_most(1, a=1)
    below(1, a=0.999)
    for check, value, words in (
        (at_least, -1e-9, "a must be at least 0, not -1e-09"),
        (above, 0.0, "a must be above 0, not 0"),
        (at_most, 1.5, "a must be at most 0, not 1.5"),
        (below, 0.0, "a must be below 0, not 0"),
        (at_least, float("nan"), "a must be at least 0, not nan"),
    ):
        with pytest.raises(ValueError, match=f"^{words}$"):
            check(0, a=value)


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("rejector", "snet(coverage=2)", "coverage must be at most 1, not 2"),
        ("rejector", "snet(coverage=0)", "coverage must be above 0, not 0"),
        ("rejector", "snet(weight=-1)", "weight must be at least 0, not -1"),
        ("rejector", "ebd(weight=-1)", "weight must be at least 0, not -1"),
        ("rejector", "ebd(m_out=7)", "m_out must be at most 6, not 7"),
        ("rejector", "rr(weight=-3)", "weight must be at least 0, not -3"),
        ("rejector", "rr(tau=0)", "tau must be above 0"),
        ("rejector", "coupled(gamma=5)", "gamma must be below 1, not 5"),
        ("rejector", "coupled(gamma=-0.1)", "gamma must be at least 0, not -0.1"),
        ("rejector", "coupled(tau=-1)", "tau must be above 0"),
        ("rejector", "lid(k=1)", "k must be at least 2, and at most the number of references"),
        ("rejector", "kd(g=0)", "g must be above 0, and references at least 1"),
        ("network", "small-cnn(width=0)", "width must be at least 1, not 0"),
        ("framework", "pgd-at(steps=-1)", "steps must be at least 0, not -1"),
        ("framework", "pgd-at(eps=0)", "eps must be above 0, not 0"),
        ("framework", "trades(beta=-6)", "beta must be at least 0, not -6"),
        ("framework", "trades(step=0)", "step must be above 0, not 0"),
        ("framework", "trades(eps=8)", "eps must be at most 1, not 8"),
        ("framework", "ccat(rho=0)", "rho must be above 0, not 0"),
        ("framework", "ccat(scale=0)", "scale must be above 0, not 0"),
        ("framework", "ccat(steps=-2)", "steps must be at least 0, not -2"),
        ("framework", "carl(penalty=-1)", "penalty must be at least 0, not -1"),
        ("framework", "atro(alpha=0)", "alpha must be above 0, not 0"),
        ("framework", "atro(eps=2)", "eps must be at most 1, not 2"),
        ("attack", "rejection-loss(weight=-1)", "weight must be at least 0, not -1"),
        ("attack", "apgd-reject(eta=-1)", "eta must hold at least one number, and none below 0"),
        ("attack", "orthogonal-pgd(remainder=2)", "remainder must be at most 1, not 2"),
        ("attack", "orthogonal-pgd(every=0)", "every must be at least 1, not 0"),
        ("attack", "gama-pgd(weight=-50)", "weight must be at least 0, not -50"),
        ("attack", "gama-fw(steps=0)", "steps must be at least 1, not 0"),
    ],
)
def test_a_setting_out_of_range_is_refused_when_the_plan_is_made(kind: str, text: str, line: str) -> None:
    asked: dict[str, Any] = {"network": text} if kind == "network" else {f"{kind}s": [text]}
    if kind == "framework":
        name = text.partition("(")[0]
        asked["rejectors"] = [name if name in ("carl", "atro") else "confidence"]
    with pytest.raises(UseError) as refused:
        plan(**asked)
    assert str(refused.value).startswith(f"{kind} ")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_plugin_that_breaks_on_its_settings_is_one_line_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from rrbench_baselines.confidence import Confidence

    def broken(self: Confidence) -> None:
        raise ZeroDivisionError("by tau\nand more")

    monkeypatch.setattr(Confidence, "__post_init__", broken)
    with pytest.raises(UseError, match=r"^rejector confidence: ZeroDivisionError: by tau$"):
        choose("rejector", "confidence", load_preset("quick"), "digits")


def test_every_setting_that_was_published_is_in_range() -> None:
    saved = [json.loads(path.read_text())["cell"] for path in sorted(RESULTS.glob("*/cells/*.json"))]
    assert len(saved) > 100
    choices = {(kind, json.dumps(cell[kind])) for cell in saved for kind in BASES}
    for kind, text in choices:
        build(BASES[kind], restore(kind, json.loads(text)))
