"""Compares what a disturbed run left with an undisturbed one, for tests."""

import dataclasses
from pathlib import Path

from rrbench.rows.row import ResultRow


def timeless(rows: list[ResultRow]) -> list[ResultRow]:
    return [dataclasses.replace(row, seconds=None, commit="") for row in rows]


def cells(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in (folder / "cells").glob("*.json")}
