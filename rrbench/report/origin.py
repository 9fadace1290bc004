"""Where the numbers come from, and how to reproduce them."""

import shlex
from collections.abc import Sequence

from rrbench.report.html import Safe, TableField, element, joined, number, table
from rrbench.report.results import Results
from rrbench.rows.row import ResultRow

RUN = ("started", "seconds", "cells", "failed", "preset", "device", "precision", "version", "commit")
NUMBERS = ("seconds", "cells", "failed")


def show_manifest(results: Results) -> Safe:
    """List the runs that worked on the folder, the packages they used, and the checkpoints they measured."""
    if not results.has_cells:
        return joined(
            [element("p", "A CSV holds no manifest; this is what its rows say of themselves."), _origins(results.rows)]
        )
    if not results.runs:
        why = "No run on this folder has ended yet, so that its manifest is still empty."
        return joined([element("p", why), _origins(results.rows)])
    lines = [[str(index), *(_field(run, name) for name in RUN)] for index, run in enumerate(results.runs, start=1)]
    # Not in the table: a command is long, and would be cut off at the page's edge.
    commands = [element("li", element("code", str(run.get("command", "")))) for run in results.runs]
    packages = {_packages(run): None for run in results.runs}
    return joined(
        [
            table("The runs on this folder", ("run", *RUN), lines),
            element("p", "Their commands:"),
            element("ol", *commands, class_="commands"),
            *[element("p", text, class_="aside") for text in packages if text],
            _origins(results.rows),
        ]
    )


def show_commands(results: Results) -> Safe:
    """Give the commands that made the numbers, and the commands that check them."""
    folder = shlex.quote(results.source.as_posix())
    parts = []
    versions = sorted({" ".join(filter(None, (row.version, row.commit))) for row in results.rows} - {""})
    if versions:
        parts.append(element("p", f"Measured with rrbench {', '.join(versions)}."))
    if results.runs:
        parts.append(element("p", "The commands that made the numbers are in the manifest above. To check them:"))
    if results.has_cells:
        checks = f"rrbench verify {folder} --rerun   # recompute, replay and repeat\nrrbench report {folder}"
        parts.append(element("pre", element("code", checks)))
    else:
        parts.append(
            element("p", "A CSV does not say which commands made it; its column settings holds every setting.")
        )
    return joined(parts)


def _field(run: dict[str, object], name: str) -> TableField | str:
    value = run.get(name, "")
    if name in NUMBERS:
        return number(float(value), 1 if name == "seconds" else 0) if isinstance(value, int | float) else number(None)
    return str(value)


def _packages(run: dict[str, object]) -> str:
    listed = [run.get("machine"), run.get("packages")]
    return ", ".join(f"{key} {value}" for part in listed if isinstance(part, dict) for key, value in part.items())


def _origins(rows: Sequence[ResultRow]) -> Safe:
    """List the checkpoints and the data that each was measured on."""
    groups: dict[tuple[str, ...], list[ResultRow]] = {}
    for row in rows:
        key = (row.trained_as or row.network, row.dataset, str(row.seed), row.checkpoint_sha256, row.data_sha256)
        groups.setdefault((*key, row.device, row.precision), []).append(row)
    header = ("trained as", "data set", "seed", "checkpoint sha256", "data sha256", "device", "precision", "cells")
    lines: list[list[TableField | str]] = [
        [
            key[0],
            key[1],
            number(float(key[2]), 0),
            *[TableField(element("code", digest[:16] or "-")) for digest in key[3:5]],
            *key[5:],
            number(float(len(group)), 0),
        ]
        for key, group in groups.items()
    ]
    return table("Checkpoints and data", header, lines)
