"""`rrbench report`: results as one self-contained HTML file."""

from pathlib import Path

from rrbench.files.disk import write_bytes
from rrbench.report.page import build_page
from rrbench.report.results import read_results


def write_report(results: Path, out: Path) -> None:
    """Write the report of a work folder or a results CSV."""
    write_bytes(out, build_page(read_results(results)).encode())
