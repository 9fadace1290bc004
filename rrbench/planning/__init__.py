"""Turns a request into cells, and cells into units of work; knows the time limit. Touches no file and no GPU."""
