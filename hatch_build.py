"""What a package has that the checkout has not: the rows of `results/` inside it, and a page made from the README."""

import re
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

LOCAL = r"\((?!https?:)[^)]*\)"  # a link to another file of the repository


class Page(MetadataHookInterface):
    """Makes the package's page: a registry has the README and nothing beside it."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Leave out pictures that are files of the repository, and the links to its pages; their words stay."""
        text = Path(self.root, "README.md").read_text(encoding="utf-8")
        text = re.sub(rf"^!\[[^\]]*\]{LOCAL}\n\n", "", text, flags=re.MULTILINE)
        text = re.sub(rf"\[([^\]]*)\]{LOCAL}", r"\1", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


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
