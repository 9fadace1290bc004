"""The headers of checkpoints, read without the weights. Imports neither torch nor numpy."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rrbench.files.disk import parse_json

LONGEST = 100_000_000  # bytes; safetensors refuses a longer header


def read_facts(path: Path) -> Mapping[str, Any]:
    """Read the facts alone; none from a damaged file, which `read_checkpoint` refuses."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            match parse_json(file.read(min(size, LONGEST)).decode()):
                case {"__metadata__": {"rrbench": str() as text}}:
                    facts = parse_json(text)
                    return facts if isinstance(facts, dict) else {}
    except (OSError, ValueError):
        pass
    return {}
