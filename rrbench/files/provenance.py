"""Where numbers come from: version, commit, packages and machine."""

import os
import platform
import re
import shlex
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path

from rrbench.files.distributions import version_of


@cache
def version() -> str:
    """Return rrbench's version."""
    return metadata.version("rrbench")


def pip_line(extra: str) -> str:
    """Return the command that brings what one of rrbench's extras names, however rrbench itself was installed."""
    named = (line.partition(";") for line in metadata.requires("rrbench") or ())
    wanted = [package.strip() for package, _, when in named if re.search(rf"extra == ['\"]{extra}['\"]", when)]
    return f"pip install {shlex.join(wanted)}"


@cache
def commit() -> str:
    """Return the commit of the checkout that the code runs from, with `+` if it was changed.

    Code without its git history, for example on a rented GPU, takes $RRBENCH_COMMIT, else nothing.
    """
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return os.environ.get("RRBENCH_COMMIT", "")
    try:
        head = _git(folder, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=True, timeout=10)
    return done.stdout.strip()


def packages() -> dict[str, str]:
    """Return the versions of the packages that influence numbers."""
    names = ("torch", "numpy", "scikit-learn", "pandas", "safetensors", "foolbox", "autoattack", "pyautoattack")
    return {name: found for name in names if (found := version_of(name))}


def machine() -> dict[str, str]:
    """Describe the machine without its name; the number of threads changes how sums are rounded."""
    import torch  # imported late: other users of this module must not wait for torch

    return {
        "python": sys.version.split()[0],
        "system": platform.system(),
        "architecture": platform.machine(),
        "threads": str(torch.get_num_threads()),
    }
