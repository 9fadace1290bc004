"""Measured rows: read, doubt, compare, print."""
