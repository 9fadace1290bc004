"""Derives a seed for every purpose from the run's seed. Imports no torch."""

import hashlib


def derive(seed: int, *purpose: object) -> int:
    """Derive a 63-bit seed for one purpose from the run's seed."""
    text = "\0".join(map(str, (seed, *purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
