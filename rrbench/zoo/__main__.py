"""Makes the embedded zoo again: every checkpoint that the quick preset needs on digits.

python -m rrbench.zoo
"""

import shutil
import sys
import tempfile
from pathlib import Path

from rrbench.api import RunOptions, prepare
from rrbench.measuring.pack import describe
from rrbench.progress import reporter
from rrbench.zoo import EMBEDDED, Entry, write_index

COMMAND = "python -m rrbench.zoo"


def main() -> None:
    """Train on the CPU in a temporary folder, then replace the zoo's files and its index."""
    with tempfile.TemporaryDirectory() as folder:
        job = prepare(
            RunOptions(
                "all",
                "clean",
                frameworks="all",
                dataset="digits",
                out=folder,
                device="cpu",
                retrain=True,
                report=reporter(),
            )
        )
        job.materials.store.prepare()
        made: list[tuple[Path, Entry]] = []
        for training in job.plan.checkpoints():
            checkpoint = job.materials.checkpoint(training)
            made.append((checkpoint.path, describe(training, checkpoint, COMMAND)))
        for old in EMBEDDED.glob("*.safetensors"):
            old.unlink()
        for path, entry in made:
            shutil.copyfile(path, EMBEDDED / entry.file)
        write_index(EMBEDDED, [entry for _, entry in made])
    sys.stderr.write(f"{len(made)} checkpoints in {EMBEDDED}\n")


if __name__ == "__main__":
    main()
