"""Notes: what is written into a row can be read from it."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rrbench.rows import notes
from rrbench.rows.row import ResultRow

ROW = ResultRow("digits", "cnn", "pgd-at", "pgd-at", "rr", "worst-case", "linf", "8/255", 0, "quick", 10)
MEMBERS = ("pgd100", "adaptive(ce+rr,eta=0.5)", "adaptive(ce+rr)")


def row_with(*given: str, members: Sequence[str] = MEMBERS) -> ResultRow:
    return replace(ROW, note=notes.joined(given), settings=json.dumps({"members": members}))


def test_notes_are_read_as_they_were_written_each_once() -> None:
    row = row_with("one", "", "two", "one")
    assert row.note == "one; two"
    assert notes.notes_of(row, row_with("two", "three")) == ["one", "two", "three"]
    assert notes.notes_of(ROW) == []


def test_a_note_that_holds_the_separator_stays_one() -> None:
    assert notes.notes_of(row_with("lost; and more", notes.ORACLE)) == ["lost, and more", notes.ORACLE]


@pytest.mark.parametrize("reason", ["NaN gradients: some look robust", "it needs 4 classes; has 2", "(((", ""])
def test_a_member_that_failed_is_not_met_whatever_the_reason(reason: str) -> None:
    row = row_with(notes.MIXTURE, notes.without(notes.failure("adaptive(ce+rr)", reason)))
    assert notes.members_met(row) == MEMBERS[:2]
    assert notes.members_met(row_with(), row) == MEMBERS[:2], "one seed is enough"
    assert notes.members_met(row_with()) == MEMBERS


def test_a_note_of_an_earlier_version_is_read_too() -> None:
    row = row_with("goes without pgd100 (NaN gradients), adaptive(ce+rr) (needs 4 classes)")
    assert notes.members_met(row) == MEMBERS[1:2]


def test_a_reason_that_names_another_attack_loses_only_its_own() -> None:
    said = notes.without(notes.failure("pgd100", "goes without adaptive(ce+rr): no"))
    assert notes.members_met(row_with(said)) == MEMBERS[1:]


@pytest.mark.parametrize(
    ("tells", "note"),
    [
        (notes.is_oracle, notes.ORACLE),
        (notes.is_mixture, notes.MIXTURE),
        (notes.is_weak, f"{notes.WEAK}pgd100 takes 3.0 points more"),
    ],
)
def test_one_note_among_others_tells_it_and_a_like_word_does_not(tells: object, note: str) -> None:
    assert callable(tells)
    assert tells(row_with("only every 10th test input", note))
    assert not tells(row_with("the oracle, a mixture and a weak: one"))
