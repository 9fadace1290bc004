"""Calls of `rrbench data` in this process, for tests that read its output or the one line of its refusal."""

from pathlib import Path

from typer.testing import CliRunner, Result

from rrbench.cli.data import app
from rrbench.errors import UseError


def call(*arguments: str | Path) -> Result:
    """Call `rrbench data` with these arguments."""
    return CliRunner().invoke(app, list(map(str, arguments)))


def refuse(*arguments: str | Path) -> str:
    """Return the one line with which a call is refused."""
    result = call(*arguments)
    assert isinstance(result.exception, UseError), result.output
    assert "\n" not in str(result.exception)
    return str(result.exception)
