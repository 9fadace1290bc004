"""A cell becomes a row: networks and data at hand, attacks run, answers stored."""
