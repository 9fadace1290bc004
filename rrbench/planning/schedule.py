"""In which order units are handed out, and how long that takes with so many workers."""

import heapq
from collections.abc import Sequence

from rrbench.planning.units import Unit


def longest_first(seconds: Sequence[float]) -> list[int]:
    """Return positions, the longest unit first: a long one begun last would keep all the others waiting."""
    return sorted(range(len(seconds)), key=lambda position: -seconds[position])


def wall_seconds(units: Sequence[Unit], seconds: Sequence[float], workers: int) -> float:
    """Play the schedule through: whenever a worker is free it takes the longest unit that can be begun."""
    waiting = longest_first(seconds)
    ended: set[int] = set()
    running: list[tuple[float, int]] = []  # (end, position)
    now = 0.0
    while waiting or running:
        for position in [index for index in waiting if ended.issuperset(units[index].after)]:
            if len(running) == workers:
                break
            waiting.remove(position)
            heapq.heappush(running, (now + seconds[position], position))
        now, position = heapq.heappop(running)
        ended.add(position)
    return now
