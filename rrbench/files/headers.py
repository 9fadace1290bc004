"""The headers of checkpoints, read without the weights. Imports neither torch nor numpy."""

import stat
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from rrbench.files.disk import parse_json

# What decides the weights: every checkpoint of a training states these facts.
TRAINING = ("dataset", "network", "framework", "training_key", "recipe", "seed", "chooser", "budget")
LONGEST = 4_000_000  # bytes; that of a ResNet-18 has 26,000. JSON takes a second and 100 MB for so many


def read_facts(path: Path) -> Mapping[str, Any]:
    """Read the facts alone; none from a damaged file, which `read_checkpoint` refuses."""
    try:
        found = path.stat()
    except OSError:
        return {}
    if not stat.S_ISREG(found.st_mode):  # a pipe would make us wait
        return {}
    return _read(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=256)  # a plan of many tables asks for the same headers again and again
def _read(path: Path, changed: int, size: int) -> Mapping[str, Any]:
    """Read a header; when the file was changed, and its size, are asked for only to notice another file."""
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if length > LONGEST:
                return {}
            match parse_json(file.read(length).decode()):
                case {"__metadata__": {"rrbench": str() as text}}:
                    facts = parse_json(text)
                    return facts if isinstance(facts, dict) else {}
    except (OSError, ValueError):
        pass
    return {}
