"""What a line opens to: its attacks as `rrbench table` prints them, its origin, and how to replay it."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from rrbench.board.lines import Line
from rrbench.errors import UseError
from rrbench.names import split_list
from rrbench.report.html import Safe, TableField, element, joined, table
from rrbench.report.measurements import failures_table
from rrbench.report.results import Results
from rrbench.rows.paired import all_but_note
from rrbench.rows.repeats import gather_all
from rrbench.rows.row import ResultRow, stated
from rrbench.rows.tables import measurements

SAID = ("trained as", "rejector", "budget")  # columns of a table of measurements that the line itself says
NO_RUN = "No run in the manifest has the commit and the preset of these rows, so the command is not known."
NO_MANIFEST = "A results file has no manifest, so the command is not known; the settings below are all that it says."
NOT_STORED = "A results file has no scores: only its folder can be verified."


@dataclass(frozen=True)
class Source:
    """Results, and the name under which they were asked for."""

    name: str
    results: Results

    @cached_property
    def _rows(self) -> frozenset[tuple[object, ...]]:
        return frozenset(map(all_but_note, self.results.rows))

    def has(self, row: ResultRow) -> bool:
        """Tell whether a row is among these results; its note may have changed beside other results."""
        return all_but_note(row) in self._rows


def opened(line: Line, sources: Sequence[Source]) -> Safe:
    """Show all that is known of a line."""
    rows = [row for found in line.measured for row in found.rows]
    own = [source for source in sources if any(map(source.has, rows))]
    # Presets apart, as `rrbench table` has them; that of the worst case comes first.
    presets = dict.fromkeys(
        [*(row.preset for found in line.shown[:1] for row in found.rows), *(row.preset for row in rows)]
    )
    return joined(
        [
            *[_attacks([row for row in rows if row.preset == preset], preset) for preset in presets],
            *([failures_table(line.failed)] if line.failed else []),
            _part("Replay", _replay(line, own)),
            _part("Commands", _commands(line, own)),
            _part("Origin", _origin(line)),
            element("details", element("summary", "Settings"), _settings(line), class_="settings"),
        ]
    )


def _part(title: str, content: Safe) -> Safe:
    return joined([element("h4", title), content])


def _attacks(rows: Sequence[ResultRow], preset: str) -> Safe:
    header, lines = measurements(rows)
    kept = [index for index, name in enumerate(header) if name not in SAID]
    shown: list[list[TableField | str]] = [
        [
            *(_field(line[index]) for index in kept),
            ", ".join(dict.fromkeys(row.commit or "unknown" for row in group)),
            element("span", "; ".join(dict.fromkeys(row.note for row in group if row.note)), class_="note"),
        ]
        for line, group in zip(lines, gather_all(rows), strict=True)
    ]
    return table(f"Each attack of preset {preset}", [*(header[index] for index in kept), "commit", "note"], shown)


def _field(text: str) -> TableField | str:
    """Sort a printed number by its value."""
    try:
        return TableField(text, float(text.partition(" ")[0]), is_number=True)
    except ValueError:
        return TableField(text, is_number=True) if text == "-" else text


def _replay(line: Line, sources: Sequence[Source]) -> Safe:
    names = [shlex.quote(source.name) for source in sources]
    stored = [name for name, source in zip(names, sources, strict=True) if source.results.has_cells]
    checks = [(f"rrbench verify {name}", "recompute every number, replay the stored images") for name in stored]
    checks += [(f"rrbench verify {name} --rerun", "and repeat the attacks") for name in stored]
    budget = f" --budgets {line.arena.budget}" if line.arena.eps else ""
    chosen = f"--rejectors {shlex.quote(f'{line.rejector}@{line.first.framework}'.removesuffix('@'))}{budget}"
    checks += [(f"rrbench table {name} {chosen}", "print these numbers") for name in names]
    text = "\n".join(f"# {what}\n{command}" for command, what in checks)
    return joined([_code(text), *([] if stored else [element("p", NOT_STORED, class_="aside")])])


def _commands(line: Line, sources: Sequence[Source]) -> Safe:
    """List the runs that may have measured what the line shows: a row states commit, preset and precision."""
    wanted = {(row.commit, row.preset, row.precision) for found in line.shown for row in found.rows}
    runs = [run for source in sources for run in source.results.runs]
    found = [
        str(run["command"])
        for run in runs
        if "command" in run and tuple(str(run.get(name)) for name in ("commit", "preset", "precision")) in wanted
    ]
    if not found:
        has_manifest = any(source.results.has_cells for source in sources)
        return element("p", NO_RUN if has_manifest else NO_MANIFEST, class_="aside")
    found = [command for command in found if _may_name(command, line.rejector)] or found
    text = "The runs on this folder with the commit and the preset of these rows:"
    return joined([element("p", text, class_="aside"), _code("\n".join(dict.fromkeys(found)))])


def _may_name(command: str, rejector: str) -> bool:
    """Tell whether a command names a rejector, or leaves open which ones it runs."""
    try:
        words = shlex.split(command)
        named = [split_list(value) for option, value in pairwise(words) if option == "--rejectors"]
    except (ValueError, UseError):  # anybody may have written the manifest
        return True
    return all({rejector, "all"} & set(names) for names in named)


def _origin(line: Line) -> Safe:
    rows = [row for found in line.shown for row in found.rows]
    said = {
        "worst of": line.members,
        "seeds": [str(row.seed) for row in rows],
        "checkpoint sha256": [row.checkpoint_sha256 for row in rows],
        "data sha256": [row.data_sha256 for row in rows],
        "version": [row.version for row in rows],
        "device": [row.device for row in rows],
        "precision": [row.precision for row in rows],
    }
    texts = {name: ", ".join(dict.fromkeys(values)) for name, values in said.items() if values}
    return element(
        "dl",
        *[
            joined([element("dt", name), element("dd", element("code", text or "unknown"))])
            for name, text in texts.items()
        ],
    )


def _settings(line: Line) -> Safe:
    """Print the settings of each measurement that the line shows; those that cannot be read as they are."""
    parts = []
    for found in line.shown:
        settings = stated(found.first)
        text = json.dumps(settings, indent=1, sort_keys=True) if settings else found.first.settings
        parts.append(joined([element("p", found.first.attack, class_="aside"), _code(text)]))
    return joined(parts)


def _code(text: str) -> Safe:
    return element("pre", element("code", text))
