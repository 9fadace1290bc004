"""Engines do units of work, in this process or in the workers of a Ray cluster; estimates say how long it takes."""

from rrbench.engines.cluster import RayEngine
from rrbench.engines.local import work_here
from rrbench.errors import UseError
from rrbench.measuring.runner import Engine

ENGINES = ("local", "ray")


def find_engine(name: str, address: str | None) -> Engine:
    """Return an engine by name; refuse it at once if its package is missing or its address is malformed."""
    if name not in ENGINES:
        raise UseError(f"unknown engine {name!r}; one of {', '.join(ENGINES)}")
    if name == "ray":
        return RayEngine(address)
    if address is not None:
        raise UseError("--address is for --engine ray")
    return work_here
