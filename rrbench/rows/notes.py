"""A row's notes: what its reader must know. Only this module knows their words, so that what is written can be read.

The column `note` holds all notes of a row as one text. Imports no torch.
"""

from collections.abc import Iterable

from rrbench.rows.row import ResultRow, members_of

SEPARATOR = "; "
ORACLE = "oracle: knows the labels"
MIXTURE = "mixture: clean images wherever the attack failed"
NEVER_REACHED = "the goal was never reached: the distance says nothing"
NO_THRESHOLD = "no threshold: the other folds (ids modulo 5) hold no right clean input"
NONE_RIGHT = "no threshold: no clean input is right"
NONE_RIGHT_APART = "no threshold: no calibration input is right"
WEAK, SUPERSEDED, WITHOUT = "weak: ", "superseded: ", "goes without "  # beginnings: more follows
FLAT = " % of the gradients are zero"  # an end


def joined(notes: Iterable[str]) -> str:
    """Return notes as one text, each once; a note that holds the separator stays one note."""
    return SEPARATOR.join(dict.fromkeys(note.replace(SEPARATOR, ", ") for note in notes if note))


def split(text: str) -> list[str]:
    """Return the notes of a text, each once."""
    return list(dict.fromkeys(note for note in text.split(SEPARATOR) if note))


def notes_of(*rows: ResultRow) -> list[str]:
    """Return the notes of rows, each once."""
    return list(dict.fromkeys(note for row in rows for note in split(row.note)))


def without(failed: str) -> str:
    """Note that an ensemble goes without a member; `failed` is the text of `failure`."""
    return WITHOUT + failed


def failure(member: str, reason: str) -> str:
    """Name a member of an ensemble that failed, and say why."""
    return f"{member}: {reason}"


def members_met(*rows: ResultRow) -> tuple[str, ...]:
    """Return the attacks whose worst was taken in every row; one that failed in a row does not count."""
    lost = [note for note in notes_of(*rows) if note.startswith(WITHOUT)]
    return tuple(member for member in members_of(rows[0]) if not any(_names(note, member) for note in lost))


def _names(lost: str, member: str) -> bool:
    """Tell whether a note says that this member failed; earlier versions wrote `goes without A (why), B (why)`."""
    earlier = f"{without(member)} (", f"), {member} ("
    return lost.startswith((without(failure(member, "")), earlier[0])) or earlier[1] in lost


def is_oracle(row: ResultRow) -> bool:
    """Tell whether a row's rejector knows the labels: it is no defence."""
    return ORACLE in notes_of(row)


def is_mixture(row: ResultRow) -> bool:
    """Tell whether a row's images are the clean ones wherever its attack failed."""
    return MIXTURE in notes_of(row)


def is_weak(row: ResultRow) -> bool:
    """Tell whether other rows show that a row's attack was too weak."""
    return any(note.startswith(WEAK) for note in notes_of(row))
