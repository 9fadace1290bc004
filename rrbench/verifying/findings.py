"""What a verification checked, and what it found wrong."""

from collections import Counter
from dataclasses import dataclass, field

from rrbench.numbers import counted
from rrbench.plugins.own import WORDS
from rrbench.verifying.tolerance import Tolerance


@dataclass
class Findings:
    """What a verification checked and found wrong. A cell counts once: wrong, failed, or one of three others."""

    cells: int = 0
    confirmed: int = 0  # replayed on checkpoint and data set and, if asked, attacked again
    recomputed: int = 0  # only recomputed: their network is not kept in a zoo, or was given in Python
    in_python: int = 0  # of these, those given in Python
    objects: dict[str, set[str]] = field(default_factory=dict)  # {kind: names} of what was given so
    unchecked: Counter[str] = field(default_factory=Counter)  # {reason: cells}
    wrong: int = 0
    failed: int = 0
    rerun: int = 0
    unfitted: int = 0  # cells whose certainties and threshold need a fit, which only a rerun makes
    superseded: int = 0  # cells of another revision than the installed one, which cannot judge them
    tolerances: set[Tolerance] = field(default_factory=set)  # of the reruns
    new_notes: Counter[str] = field(default_factory=Counter)  # {note: rows of other code that lack it}
    problems: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Say what is wrong, what could not be checked, and how strictly attacks were repeated."""
        missing = [
            f"not checkable: {counted(count, 'cell')}: {reason}" for reason, count in sorted(self.unchecked.items())
        ]
        return [
            *self.problems,
            *self._given(),
            *missing,
            *(
                f"{counted(count, 'row')} of other code without a note that this code writes: {note}"
                for note, count in sorted(self.new_notes.items())
            ),
            *(f"tolerance of reruns: {each}" for each in sorted(self.tolerances)),
        ]

    def _given(self) -> list[str]:
        """Say in one line which cells could not be replayed, since their parts were given in Python."""
        if not self.in_python:
            return []
        listed = [f"{WORDS.get(kind, kind)} {', '.join(sorted(names))}" for kind, names in self.objects.items()]
        return [
            f"not replayed: {counted(self.in_python, 'cell')}, whose metrics were recomputed from stored scores; "
            f"given in Python, so not here: {'; '.join(listed)}"
        ]

    def summary(self) -> str:
        """Summarise in one line."""
        unchecked = self.unchecked.total()
        text = f"{counted(self.cells, 'cell')}: {self.confirmed} confirmed, {self.recomputed} recomputed only"
        text += f", {unchecked} not checkable"
        text += f", {self.wrong} wrong" if self.wrong else ""
        text += f", {self.failed} failed rows" if self.failed else ""
        text += f"; {self.rerun} attacked again" if self.rerun else ""
        text += f"; {self.unfitted} need --rerun for what their fitted rejectors say" if self.unfitted else ""
        text += f"; {self.superseded} of another revision than is installed" if self.superseded else ""
        if self.problems:
            return f"{text}; {counted(len(self.problems), 'problem')}"
        return f"{text}; {'all confirmed' if self.confirmed == self.cells else 'nothing found wrong'}"
