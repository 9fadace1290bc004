"""`rrbench board`: the victims of one or several folders on one HTML page, ranked by their worst case."""

from collections.abc import Sequence
from pathlib import Path

from rrbench.board.opened import Source
from rrbench.board.page import build_page
from rrbench.files.disk import write_bytes
from rrbench.report.results import read_results


def write_board(places: Sequence[tuple[str, Path]], out: Path) -> str:
    """Write the board of work folders or results files, each under the name it was asked for; say what is on it."""
    board = build_page([Source(name, read_results(path)) for name, path in places])
    write_bytes(out, board.page.encode())
    return board.says
