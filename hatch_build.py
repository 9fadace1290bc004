"""Copies the rows of `results/` into a wheel, so that tables are filled wherever rrbench is installed."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class PublishedRows(BuildHookInterface[Any]):
    """Adds `results/<name>/rows.csv` as `rrbench/results/<name>/rows.csv`."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files; an editable install reads the checkout's own."""
        if version == "editable":
            return
        found = sorted(Path(self.root, "results").glob("*/rows.csv"))
        if not found:
            raise FileNotFoundError(f"no results/*/rows.csv in {self.root}")
        build_data["force_include"] |= {str(path): f"rrbench/results/{path.parent.name}/rows.csv" for path in found}
