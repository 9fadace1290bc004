"""The commit beside a number is that of the code, also if the code came without its git history."""

import shutil
import subprocess
import sys
from pathlib import Path

from rrbench.files import distributions, provenance


def commit(folder: Path, **environment: str) -> str:
    """The commit that a copy of the package in `folder` says."""
    package = folder / "rrbench" / "files"
    package.mkdir(parents=True, exist_ok=True)
    (folder / "rrbench" / "__init__.py").touch()
    (package / "__init__.py").touch()
    for module in (provenance, distributions):
        shutil.copy(str(module.__file__), package)
    program = "from rrbench.files import provenance; print(provenance.commit())"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_code_without_history_has_the_commit_that_it_is_told(tmp_path: Path) -> None:
    assert commit(tmp_path) == ""
    assert commit(tmp_path, RRBENCH_COMMIT="0123456789ab") == "0123456789ab"


def test_a_checkout_believes_nobody(tmp_path: Path) -> None:
    (tmp_path / ".git").write_text("no repository")
    assert commit(tmp_path, RRBENCH_COMMIT="0123456789ab") == ""
