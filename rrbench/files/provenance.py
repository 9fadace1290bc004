"""Where numbers come from: version, commit, packages, machine."""

import os
import platform
import subprocess
import sys
from functools import cache
from importlib import metadata
from pathlib import Path


@cache
def version() -> str:
    """Return rrbench's version."""
    return metadata.version("rrbench")


@cache
def commit() -> str:
    """Return the commit of the checkout that the code runs from, `+` if changed.

    Code that came without its history, as to a rented GPU, has the one that $RRBENCH_COMMIT says, or none.
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
    """Return the versions of what decides numbers."""
    names = ("torch", "numpy", "scikit-learn", "pandas", "safetensors", "foolbox", "autoattack", "pyautoattack")
    return {name: metadata.version(name) for name in names if _is_installed(name)}


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def machine() -> dict[str, str]:
    """Describe the machine without naming it, and how many threads add up its sums."""
    import torch  # here: this module is also read where torch would cost seconds

    return {
        "python": sys.version.split()[0],
        "system": platform.system(),
        "architecture": platform.machine(),
        "threads": str(torch.get_num_threads()),
    }
