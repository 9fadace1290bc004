"""Turns a request into cells, and cells into units of work. Touches no file and no GPU."""
