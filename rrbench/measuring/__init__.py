"""Turns a cell into a row: opens networks and data, runs attacks, stores their answers, writes the row."""
