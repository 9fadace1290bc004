"""Rows as pandas DataFrames. The only module of this room that imports pandas."""

import dataclasses
from collections.abc import Iterable

import pandas as pd

from rrbench.rows.row import COLUMNS, ResultRow


def to_frame(rows: Iterable[ResultRow]) -> pd.DataFrame:
    """Return rows as a DataFrame with the CSV's columns."""
    return pd.DataFrame([dataclasses.asdict(row) for row in rows], columns=list(COLUMNS))
