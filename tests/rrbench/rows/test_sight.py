import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import pytest

import rrbench
from own_network import Linear, inputs, measure
from rrbench import Attack
from rrbench.report.measurements import rows_table
from rrbench.rows.row import ResultRow, row_of_texts, to_frame
from rrbench.rows.sight import attack_text, is_blind, looks
from rrbench.rows.tables import pivot_table, results_table
from rrbench_attacks.pgd import Pgd

pytestmark = pytest.mark.usefixtures("own_folder")


def row(attack: str, settings: dict[str, Any] | None = None, **changes: Any) -> ResultRow:
    values: dict[str, Any] = {
        "dataset": "digits", "network": "small-cnn", "framework": "pgd-at", "trained_as": "pgd-at",
        "rejector": "ebd", "norm": "linf", "eps": "3/20", "seed": 0, "preset": "quick", "n": 360,
    }  # fmt: skip
    return ResultRow(attack=attack, settings=json.dumps(settings or {}), **values | changes)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (row("pgd100x10"), False),
        (row("autoattack(standard)"), False),
        (row("foolbox(LinfDeepFool)"), False),
        (row("adaptive(ce+rcon)"), True),
        (row("selective-pgd"), True),
        (row("worst-case", {"members": ["pgd10"]}), True),
        (row("transfer(trades)", {"members": ["pgd100"], "moved_on": "a hash"}), False),
        (row("cw-l2", {"attack": {"goal": "normal"}}, norm="l2", eps=""), False),
        (row("cw-l2(adaptive)", {"attack": {"goal": "adaptive"}}, norm="l2", eps=""), True),
        (row("cw-l2", norm="l2", eps=""), None),
        (row("an-outsider"), None),
        (row("Own(steps=2)"), None),
        (row("Own(steps=2)", {"is_adaptive": False}), False),
        (row("((("), None),
    ],
    ids=lambda value: value.attack if isinstance(value, ResultRow) else str(value),
)
def test_whether_an_attack_looks_at_the_rejector_is_known_without_loading_it(
    found: ResultRow, expected: bool | None
) -> None:
    assert looks(found) is expected
    assert is_blind(found) is (expected is False)


def test_clean_rows_are_not_called_blind() -> None:
    assert not is_blind(row("clean", norm="", eps=""))


def test_blind_rows_are_marked_where_rows_are_shown_and_it_is_no_note() -> None:
    rows = [dataclasses.replace(row(name), acc_all=80.0, deploy_robust=90.0) for name in ("pgd10", "selective-pgd")]
    for shown in (results_table(rows), results_table(rows, "markdown"), results_table(rows, "html")):
        assert "pgd10 (blind)" in shown
        assert "selective-pgd (blind)" not in shown
        assert "note for" not in shown
    assert "pgd10 linf:3/20 (blind)" in pivot_table(rows, "attack", "deploy_robust")
    assert "pgd10 linf:3/20 (blind)" in pivot_table([*rows, row("pgd10", rejector="rr")], "rejector", "acc_all")
    assert "pgd10 (blind)" in pivot_table(rows, "budget", "acc_all")
    assert "pgd10 (blind)" in rows_table(rows, "a caption")
    # For programs a name stays a name.
    assert "blind" not in results_table(rows, "csv")
    assert "blind" not in pivot_table(rows, "attack", "deploy_robust", "csv")


def test_the_row_of_somebodys_own_attack_says_whether_it_looks() -> None:
    class Looking(Pgd):
        is_adaptive = True

    for attack, expected in ((Pgd(2), False), (Looking(2), True)):
        assert isinstance(attack, Attack)
        found = measure(Linear(), "confidence", attack, inputs(20), budget="linf:1/50")
        texts = {str(key): "" if value is None or value != value else str(value) for key, value in found.items()}
        assert looks(row_of_texts(texts)) is expected


def test_five_rows_of_one_call_doubt_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def doubting(rows: Iterable[ResultRow]) -> list[ResultRow]:
        listed = list(rows)
        seen.append(len(listed))
        return [dataclasses.replace(each, note="weak: by far") for each in listed]

    monkeypatch.setattr("rrbench.measuring.store.with_weak_notes", doubting)
    frame = rrbench.evaluate(Linear(), "confidence", "adaptive(ce+rcon,steps=1)", inputs(20), budget="linf:1/50")
    assert (seen[-1], list(frame.note)) == (2, ["weak: by far"])  # the clean row is in the folder


def test_an_attack_is_named_with_its_mark() -> None:
    assert attack_text(row("pgd10")) == "pgd10 (blind)"
    assert attack_text(row("adaptive(ce+rcon)")) == "adaptive(ce+rcon)"
    assert list(to_frame([row("pgd10")]).attack) == ["pgd10"]
