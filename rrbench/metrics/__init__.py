"""Pure functions of scores: no network, no file."""
