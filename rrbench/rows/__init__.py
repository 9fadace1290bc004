"""Measured rows: reading, doubting, comparing and printing them."""
