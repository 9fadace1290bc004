import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rrbench.errors import UseError
from rrbench.names import (
    Call,
    Choice,
    Value,
    convert,
    long_form,
    parse,
    parse_budget,
    resolve,
    settings_of,
    show,
    spelled,
    split_list,
    unknown,
)


@dataclass(frozen=True)
class Climb:
    steps: int
    restarts: int = 1
    step: Fraction | None = None
    keep: Literal["last", "best"] = "last"


@dataclass(frozen=True)
class Aim:
    objective: Literal["ce+rcon", "con+rr(multi)"]
    eta: tuple[float, ...] = (0.1, 1.0)
    steps: int = 500
    restarts: int = 10


@dataclass(frozen=True)
class Score:
    score: Literal["rcon", "con"] = "rcon"
    tau: float = 1.0
    k: int = 600
    stop_gradient: bool = True
    model: str = "plain"


@dataclass(frozen=True)
class Bare:
    pass


TABLE: dict[str, type] = {"climb": Climb, "aim": Aim, "score": Score, "bare": Bare, "climb7": Bare}


def chosen(text: str, **defaults: object) -> Choice:
    return resolve("attack", long_form("attack", parse(text), TABLE), TABLE, defaults)


def refusal(text: str, **defaults: object) -> str:
    with pytest.raises(UseError) as caught:
        chosen(text, **defaults)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("rr,ebd", ["rr", "ebd"]),
        (" rr , ebd ,", ["rr", "ebd"]),
        ("adaptive(con+rr(multi),eta=1)", ["adaptive(con+rr(multi),eta=1)"]),
        (
            "pgd10,adaptive(con+rr(multi),eta=1),snet(weight=8,coverage=0.7)",
            ["pgd10", "adaptive(con+rr(multi),eta=1)", "snet(weight=8,coverage=0.7)"],
        ),
        ("", []),
        (",,", []),
    ],
)
def test_lists_are_split_at_commas_outside_brackets(text: str, parts: list[str]) -> None:
    assert split_list(text) == parts


@pytest.mark.parametrize("text", ["rr(tau=1", "rr)", "a(b))c(d", ")("])
def test_an_unbalanced_bracket_is_refused(text: str) -> None:
    with pytest.raises(UseError, match="unbalanced"):
        split_list(text)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("rr", Call("rr", None, ())),
        (" rr ( tau = 0.5 ) ", Call("rr", None, (("tau", "0.5"),))),
        ("rr()", Call("rr", None, ())),
        ("adaptive(con+rr(multi),eta=1)", Call("adaptive", "con+rr(multi)", (("eta", "1"),))),
        ("cifar10-c(fog,severity=3)", Call("cifar10-c", "fog", (("severity", "3"),))),
        ("gda*", Call("gda*", None, ())),
    ],
)
def test_a_text_is_a_name_a_positional_and_settings(text: str, call: Call) -> None:
    assert parse(text) == call


@pytest.mark.parametrize("text", ["", "  ", "(tau=1)", "rr(tau=1", "rr(tau=1)x", "rr(a)(b)", "rr(tau=1,con)"])
def test_a_text_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(UseError):
        parse(text)


def test_a_setting_given_twice_is_refused() -> None:
    assert "'tau' twice" in refusal("score(tau=1,tau=2)")
    assert "'objective' twice" in refusal("aim(ce+rcon,objective=ce+rcon)")
    assert "twice" in refusal("climb100(steps=50)")
    assert "twice" in refusal("climb100x2(restarts=3)")
    assert "twice" in refusal("climb100(50)")


@pytest.mark.parametrize(
    ("text", "steps", "restarts", "label"),
    [
        ("climb100", 100, 1, "climb100"),
        ("climb100x10", 100, 10, "climb100x10"),
        ("climb(steps=100)", 100, 1, "climb100"),
        ("climb(100)", 100, 1, "climb100"),
        ("climb(steps=100,restarts=10)", 100, 10, "climb100x10"),
        ("climb100(restarts=10)", 100, 10, "climb100x10"),
        ("climb100x1", 100, 1, "climb100"),
        ("climb100(step=2/255)", 100, 1, "climb100(step=2/255)"),
        ("aim100(ce+rcon)", 100, 1, "aim100(ce+rcon)"),
        ("aim(ce+rcon)", 500, 10, "aim(ce+rcon)"),
        ("aim(ce+rcon,steps=20)", 20, 10, "aim20x10(ce+rcon)"),
    ],
)
def test_digits_after_a_name_are_steps_and_restarts(text: str, steps: int, restarts: int, label: str) -> None:
    choice = chosen(text)
    assert (dict(choice.settings)["steps"], dict(choice.settings)["restarts"]) == (steps, restarts)
    assert str(choice) == label


def test_a_name_of_the_table_is_never_taken_for_a_short_one() -> None:
    assert chosen("climb7").name == "climb7"


def test_digits_after_a_name_without_steps_are_refused() -> None:
    assert "has no setting 'steps'" in refusal("score100")


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("score", "score"),
        ("score(tau=1,k=600)", "score"),
        ("score( tau = 0.50 , k = 500 )", "score(k=500,tau=0.5)"),
        ("score(tau=1/2)", "score(tau=0.5)"),
        ("score(con)", "score(score=con)"),
        ("score(score=con)", "score(score=con)"),
        ("score(stop_gradient=False)", "score(stop_gradient=false)"),
        ("score(tau=1e-3)", "score(tau=0.001)"),
        ("aim(con+rr(multi),eta=1)", "aim(con+rr(multi),eta=1)"),
        ("aim(eta=0.1:1,objective=con+rr(multi))", "aim(con+rr(multi))"),
        ("aim(ce+rcon,eta=0:0.5:2)", "aim(ce+rcon,eta=0:0.5:2)"),
        ("climb9(step=4/510)", "climb9(step=2/255)"),
        ("climb9(step=none,keep=best)", "climb9(keep=best)"),
        ("bare", "bare"),
        ("bare()", "bare"),
    ],
)
def test_the_canonical_label_lists_only_what_differs_and_sorted(text: str, label: str) -> None:
    assert str(chosen(text)) == label


def test_the_defaults_of_a_preset_are_defaults_for_the_label_too() -> None:
    assert str(chosen("climb100", keep="best", step="1/100")) == "climb100"
    assert str(chosen("climb100(keep=last)", keep="best")) == "climb100(keep=last)"
    assert dict(chosen("climb100", keep="best", step="1/100").settings) == {
        "steps": 100,
        "restarts": 1,
        "step": Fraction(1, 100),
        "keep": "best",
    }


def respelled(text: str, **values: object) -> str:
    return spelled("attack", long_form("attack", parse(text), TABLE), TABLE, values)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("score( tau = 0.50 , k = 0500 )", "score(k=500,tau=0.5)"),
        ("score(tau=1)", "score(tau=1)"),  # under a preset's tau=2, say
        ("score(con)", "score(score=con)"),
        ("aim(eta=01,objective=ce+rcon)", "aim(eta=1,objective=ce+rcon)"),  # a file may give an objective, too
        ("aim(ce+rcon,steps=7)", "aim7x10(ce+rcon)"),
        ("climb(9)", "climb9"),
        ("climb009x1(keep=last)", "climb9(keep=last)"),
        ("bare()", "bare"),
    ],
)
def test_a_spelling_keeps_the_named_settings_whatever_their_defaults(text: str, label: str) -> None:
    assert respelled(text) == label
    assert respelled(label) == label


def test_a_choice_holds_every_setting_in_the_order_of_the_class() -> None:
    assert chosen("score(k=5)").settings == (
        ("score", "rcon"),
        ("tau", 1.0),
        ("k", 5),
        ("stop_gradient", True),
        ("model", "plain"),
    )


def test_choices_are_equal_by_settings_and_not_by_label() -> None:
    assert chosen("climb100(keep=best)") == chosen("climb100", keep="best")
    assert chosen("climb100(keep=best)") != chosen("climb100")


def test_a_setting_without_default_must_be_given() -> None:
    assert "needs 'objective'" in refusal("aim(eta=1)")


def test_an_unknown_name_answers_with_near_ones() -> None:
    assert refusal("clim") == "unknown attack 'clim'; near: climb, climb7, aim"
    assert str(unknown("rejector", "zzz", ["b", "a"])) == "unknown rejector 'zzz'; near: a, b"
    assert str(unknown("rejector", "zzz", [])) == "unknown rejector 'zzz'"


def test_an_unknown_setting_answers_with_near_ones() -> None:
    assert refusal("score(tua=1)") == "unknown setting of attack 'score' 'tua'; near: tau"
    assert "unknown setting of attack 'score' 'kk'" in refusal("score", kk=1)
    assert "has no settings" in refusal("bare(1)")
    assert refusal("bare(a=1)") == "unknown setting of attack 'bare' 'a'"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("score(tau=warm)", "a number"),
        ("score(tau=nan)", "a number"),
        ("score(tau=inf)", "a number"),
        ("score(tau=1/0)", "a number"),
        (f"score(tau=1{'0' * 400}/1)", "a number"),
        ("score(tau=)", "a number"),
        ("score(k=1.5)", "a whole number"),
        ("score(k=true)", "a whole number"),
        ("score(stop_gradient=1)", "true or false"),
        ("score(score=xyz)", "one of rcon, con"),
        ("climb9(step=x)", "a fraction such as 8/255 or none"),
        ("climb9(step=1/0)", "a fraction such as 8/255 or none"),
        ("aim(ce+rcon,eta=1:x)", "numbers joined by ':'"),
    ],
)
def test_a_value_of_another_type_says_what_was_expected(text: str, expected: str) -> None:
    assert refusal(text).endswith(f"; expected {expected}")


@pytest.mark.parametrize(
    ("value", "hint"),
    [(True, int), (True, float), (1.0, int), (0.1, Fraction), ([1], int), (None, float), (1, bool), ("none", float)],
)
def test_a_toml_value_is_not_bent_to_another_type(value: object, hint: object) -> None:
    with pytest.raises(UseError, match=r"^here cannot be"):
        convert(value, hint, "here")


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (1, float, 1.0),
        (3, Fraction, Fraction(3)),
        ("0.15", Fraction, Fraction(3, 20)),
        ([0, 0.5], tuple[float, ...], (0.0, 0.5)),
        (2, tuple[float, ...], (2.0,)),
        ("100/110", tuple[Fraction, ...], (Fraction(10, 11),)),
        (False, bool, False),
        ("TRUE", bool, True),
        ("none", Fraction | None, None),
        (None, Fraction | None, None),
    ],
)
def test_a_value_comes_to_its_setting_s_type(value: object, hint: object, expected: object) -> None:
    found = convert(value, hint, "here")
    assert found == expected
    assert type(found) is type(expected)


FINITE = st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="(),="), max_size=8)


@settings(deadline=None)
@given(
    st.one_of(
        st.tuples(FINITE, st.just(float)),
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.just(int)),
        st.tuples(st.booleans(), st.just(bool)),
        st.tuples(st.fractions(), st.just(Fraction)),
        st.tuples(st.none() | st.fractions(), st.just(Fraction | None)),
        st.tuples(st.lists(FINITE, min_size=1).map(tuple), st.just(tuple[float, ...])),
        st.tuples(st.sampled_from(["last", "best"]), st.just(Literal["last", "best"])),
    )
)
def test_what_is_shown_is_read_back(pair: tuple[Value, object]) -> None:
    value, hint = pair
    text = show(value)
    assert convert(text, hint, "here") == value
    assert not re.search(r"[\s,()=]", text)


def test_a_setting_from_json_is_printed_as_its_own() -> None:
    assert show([1, 0.5]) == "1:0.5"


@settings(deadline=None)
@given(
    st.fixed_dictionaries(
        {},
        optional={
            "score": st.sampled_from(["rcon", "con"]),
            "tau": FINITE,
            "k": st.integers(-(2**63), 2**63 - 1),
            "stop_gradient": st.booleans(),
            "model": WORDS,
        },
    ),
    st.fixed_dictionaries({}, optional={"tau": FINITE, "k": st.integers(-(2**63), 2**63 - 1)}),
)
def test_a_label_names_its_choice_again(given: dict[str, Value], defaults: dict[str, object]) -> None:
    arguments = ",".join(f"{key}={show(value)}" for key, value in given.items())
    choice = chosen(f"score({arguments})", **defaults)
    assert chosen(choice.label, **defaults) == choice
    assert chosen(choice.label, **defaults).label == choice.label
    assert respelled(choice.label, **dict(choice.settings)) == choice.label


@settings(deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 100), st.lists(FINITE, min_size=1, max_size=4), st.booleans())
def test_a_short_label_names_its_choice_again(steps: int, restarts: int, etas: list[float], multi: bool) -> None:
    objective = "con+rr(multi)" if multi else "ce+rcon"
    choice = chosen(f"aim({objective},eta={show(tuple(etas))},steps={steps},restarts={restarts})")
    assert chosen(choice.label) == choice
    assert respelled(choice.label) == choice.label
    assert split_list(f"a,{choice.label},b") == ["a", choice.label, "b"]


@pytest.mark.parametrize(
    ("text", "norm", "radius"),
    [
        ("linf:8/255", "linf", Fraction(8, 255)),
        (" l2:128/255 ", "l2", Fraction(128, 255)),
        ("linf:0.15", "linf", Fraction(3, 20)),
        ("linf:0", "linf", Fraction(0)),
        ("l2:1", "l2", Fraction(1)),
    ],
)
def test_a_budget_is_a_norm_and_an_exact_fraction(text: str, norm: str, radius: Fraction) -> None:
    assert parse_budget(text) == (norm, radius)


@pytest.mark.parametrize(
    "text", ["", "linf", "8/255", "linf:", "linf:x", "linf:8/0", "linf:-8/255", "linf:nan", "linf:inf", "l1:1", "L2:1"]
)
def test_a_bad_budget_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(UseError, match=r"^[^\n]*budget[^\n]*$"):
        parse_budget(text)


@pytest.mark.parametrize("wrong", [0.05, Fraction(1, 20), None, ["linf:1/20"]])
def test_a_budget_that_is_no_text_is_refused_in_one_line(wrong: Any) -> None:
    with pytest.raises(UseError, match=r"^a budget is text such as linf:8/255, not [^\n]*$"):
        parse_budget(wrong)


def test_an_l2_radius_is_at_most_the_distance_from_black_to_white() -> None:
    assert parse_budget("l2:8", (1, 8, 8)) == ("l2", Fraction(8))
    with pytest.raises(UseError, match=r"^budget 'l2:128' exceeds 8, .*; l2:128/255 perhaps\?$"):
        parse_budget("l2:128", (1, 8, 8))


def test_a_class_that_is_no_dataclass_has_no_settings() -> None:
    assert settings_of(int) == {}
    assert list(settings_of(Climb)) == ["steps", "restarts", "step", "keep"]


def test_a_radius_beyond_the_range_of_images_is_refused_with_what_was_meant() -> None:
    assert parse_budget("linf:1") == ("linf", Fraction(1))
    with pytest.raises(UseError, match=r"linf:8/255 perhaps"):
        parse_budget("linf:8")
    assert parse_budget("l2:3") == ("l2", Fraction(3))
