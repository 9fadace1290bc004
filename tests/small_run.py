"""A finished run on a few digits with the networks that ship: nothing is trained, so it takes a second."""

from pathlib import Path

from rrbench import api

CONFIG = """
[metrics]
resamples = 20
"""


def small_run(folder: Path) -> Path:
    """Measure two rejectors under an attack, and return the work folder."""
    (folder / "config.toml").write_text(CONFIG)
    rows = api.run("confidence,rr", "pgd3", config=folder / "config.toml", out=folder / "runs", device="cpu", limit=24)
    assert list(rows.status) == ["ok"] * 4
    return folder / "runs"
