"""Pure functions of scores: they use no network and no file."""
