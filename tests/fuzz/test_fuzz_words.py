"""Names, budgets and configurations: any is accepted, or refused in one line."""

import json
import math
from dataclasses import MISSING
from fractions import Fraction
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from fuzz_box import Box, mostly, tries
from hostile_values import changed_bytes, numbers, texts
from rrbench import cli
from rrbench.names import parse_budget, radius_text, settings_of, show
from rrbench.planning.plan import Request, make_plan
from rrbench.plugins.config import load_file, load_preset
from rrbench.plugins.registry import choose, expand, table

QUICK = load_preset("quick")
KINDS = ("attack", "rejector", "framework", "network", "dataset")


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, str]:
    """A kind of plugin and a text that is nearly one of its names."""
    kind = draw(st.sampled_from(KINDS))
    name = draw(mostly(st.sampled_from(list(table(kind))), texts()))
    known = settings_of(table(kind).classes[name]) if name in table(kind).classes else {}
    defaults = [f"{key}={show(default)}" for key, (_, default) in known.items() if default is not MISSING]
    pairs = st.tuples(st.sampled_from([*known, "steps"]), numbers()).map("=".join)
    strange = pairs | st.tuples(texts(), texts()).map("=".join) | texts()
    arguments = draw(st.lists(mostly(st.sampled_from(defaults or ["ce+rcon"]), strange), max_size=2, unique=True))
    name += draw(mostly(st.sampled_from(("", "", "5", "5x2")), numbers()))
    text = f"{name}({','.join(arguments)})" if arguments else name
    garbled = changed_bytes(text.encode(errors="replace")).map(lambda raw: raw.decode("latin"))
    return kind, draw(mostly(st.just(text), garbled))


@given(call=calls())
@tries(0.25)
def test_names(box: Box, call: tuple[str, str]) -> None:
    kind, text = call
    with box.trying("names"):
        choice = choose(kind, expand(kind, text), QUICK, "digits")
        assert choose(kind, str(choice), QUICK, "digits") == choice
        for _, value in choice.settings:
            for part in value if isinstance(value, tuple) else (value,):
                assert not isinstance(part, float | Fraction) or math.isfinite(float(part))


@given(
    norm=mostly(st.sampled_from(("linf", "l2")), texts()),
    colon=mostly(st.just(":"), st.sampled_from(("", "::"))),
    radius=numbers() | st.fractions(0, 8).map(str),
)
@tries(0.2)
def test_budgets(box: Box, norm: str, colon: str, radius: str) -> None:
    with box.trying("budgets"):
        read = parse_budget(norm + colon + radius, (1, 8, 8))
        assert 0 <= float(read[1]) <= {"linf": 1, "l2": 8}[read[0]]
        assert read[1] == Fraction(radius)
        assert parse_budget(f"{read[0]}:{radius_text(read[1])}") == read


PRESET = (Path(cli.__file__).parents[1] / "plugins" / "presets" / "quick.toml").read_text()
SECTIONS = (
    *("run", "metrics", "recipe", "attack", "attack.pgd", "rejector.rr", "framework.pgd-at", "nonsense", "dataset"),
    *("dataset.digits", "dataset.digits.step", "dataset.digits.recipe", "dataset.digits.framework.pgd-at"),
)
KEYS = (
    *("optimizer", "drop_factor"),
    *("epochs", "batch", "learning_rate", "drops", "choose_by", "choose_on", "resamples", "tpr_rule", "steps", "step"),
    *("rejectors", "attacks", "dataset", "budgets", "network", "tau", "linf", "l2", "eps", "extends", "about"),
)
SOUND = ("3", "0.1", '"1/9"', '"pgd1"', '"calibration"', '["linf:1/9"]', '["rr"]', '"digits"', '"none"')


def literals() -> st.SearchStrategy[str]:
    """What may stand at the right of a TOML key."""
    plain = (
        numbers() | texts().map(json.dumps) | numbers().map(json.dumps) | st.sampled_from(("[]", "{}", "1979-05-27"))
    )
    listed = st.lists(plain, max_size=3).map(lambda items: f"[{', '.join(items)}]")
    deep = st.integers(30, 3000).map(lambda depth: "[" * depth + "]" * depth)
    return mostly(st.sampled_from(SOUND), plain | listed | deep)


@st.composite
def configurations(draw: st.DrawFn) -> bytes:
    """A preset with lines changed or added, or bytes changed."""
    lines = PRESET.splitlines()
    for _ in range(draw(st.integers(1, 2))):
        index = draw(st.integers(0, len(lines) - 1))
        key, equals, _ = lines[index].partition(" = ")
        if equals and draw(st.booleans()):
            lines[index] = f"{key} = {draw(literals())}"
        else:
            keys = st.sampled_from(KEYS) | texts().map(json.dumps) | st.integers(2, 3000).map(lambda n: "a" + ".a" * n)
            lines += [f"[{draw(st.sampled_from(SECTIONS))}]"] * draw(st.booleans())
            lines.append(f"{draw(keys)} = {draw(literals())}")
    content = "\n".join(lines).encode(errors="surrogatepass")
    return draw(mostly(st.just(content), changed_bytes(content)))


@given(content=configurations())
@tries(0.15)
def test_configurations(box: Box, content: bytes) -> None:
    path = box.inner / "config.toml"
    path.write_bytes(content)
    with box.trying("TOML"):
        make_plan(Request(), load_file(path, "quick"))
