"""Kills runs and trainings again and again, and looks whether the rows and the weights are those of an undisturbed one.

`make soak`, or `python tests/soak/soak.py --kills 300`. Prints what it did; exit 1 where something differs.

Each round is a work of one of three sorts in a fresh folder: a `run`, a `train` of two networks, three `run`s on one
folder. Its processes are killed at random moments, four of five by SIGKILL and one by SIGTERM, and started again until
the work is done.
"""

import argparse
import dataclasses
import hashlib
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from rrbench import cli
from rrbench.files.checkpoints import read_checkpoint
from rrbench.files.disk import ENDED, WRITING
from rrbench.progress import Silent
from rrbench.rows.row import ResultRow, read_rows
from rrbench.verifying.verify import verify_folder

CONFIG = """
[metrics]
resamples = 20

[dataset.digits.recipe]
epochs = 2
batch = 539
choose_by = "pgd1"

[dataset.digits.framework.pgd-at]
steps = 1
"""
RUN = ("run", "--rejectors", "confidence,rr", "--attacks", "pgd5,pgd6,adaptive(ce+rcon,steps=3,eta=1)", "--limit", "24")
WORKS: dict[str, list[tuple[str, ...]]] = {
    "run": [RUN],
    "train": [("train", "--framework", "pgd-at", "--rejector", "rr,ebd", "--jobs", "2", "--epochs", "8")],
    "three runs on one folder": [RUN, RUN, (*RUN, "--seeds", "0,1")],
}
PRELOAD = ("rrbench.cli", "rrbench.api", "rrbench_attacks", "rrbench_baselines", "sklearn.datasets", "torch._dynamo")
PATIENCE = 300  # seconds that a work may take undisturbed; a busy machine is slow
TERMINATED = 143

context = multiprocessing.get_context("forkserver")


def command(words: Sequence[str], log: Path) -> None:
    """Do as the shell would; what is said goes to a file."""
    torch.set_num_threads(1)
    with log.open("a", buffering=1) as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.argv = ["rrbench", *words]
    cli.main()


class Soak:
    """Counts kills and what differs."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.random = folder, random.Random(seed)
        self.kills: Counter[str] = Counter()
        self.rounds: Counter[str] = Counter()
        self.problems: list[str] = []
        self.expected: dict[str, dict[str, str]] = {}
        self.seconds: dict[str, float] = {}
        (folder / "config.toml").write_text(CONFIG)

    def start(self, words: Sequence[str], out: Path) -> ForkServerProcess:
        """Start one process on a folder."""
        shared = ("--config", str(self.folder / "config.toml"), "--out", str(out), "--device", "cpu")
        more = {"run": (*shared, "--retrain"), "train": shared}
        process = context.Process(target=command, args=((*words, *more.get(words[0], ())), self.folder / "log"))
        process.start()
        return process

    def undisturbed(self, sort: str) -> None:
        """Do a work once, and keep what it leaves."""
        out, begin = self.folder / "undisturbed" / sort.replace(" ", "-"), time.monotonic()
        for words in WORKS[sort]:
            process = self.start(words, out)
            process.join(PATIENCE)
            assert process.exitcode == 0, (self.folder / "log").read_text()
        self.seconds[sort] = time.monotonic() - begin
        self.expected[sort] = content(out)

    def round(self, sort: str, most: int) -> None:
        """Do a work in a fresh folder and kill its processes, at most so many, until it is done; then compare."""
        out, left = self.folder / "disturbed", min(most, self.random.randint(6, 14))
        alive = {words: self.start(words, out) for words in WORKS[sort]}
        while alive:
            if left:
                # What is finished is kept, so that the kills wander from the first cells and epochs to the last.
                time.sleep(self.random.uniform(0, 0.4 * self.seconds[sort] / len(WORKS[sort])))
                words = self.random.choice(list(alive))
                left -= self.kill(sort, alive[words])
            for words, process in list(alive.items()):
                process.join(0 if left else PATIENCE)
                if process.exitcode == 0:
                    del alive[words]
                elif process.exitcode in (-signal.SIGKILL, -signal.SIGTERM, TERMINATED):
                    alive[words] = self.start(words, out)
                elif process.exitcode is not None or not left:
                    self.problems.append(f"{sort}: exit code {process.exitcode} (None: it does not end)")
            if self.problems:
                for process in alive.values():
                    process.kill()
                return
        self.rounds[sort] += 1
        self.compare(sort, out)
        shutil.rmtree(out)

    def kill(self, sort: str, process: ForkServerProcess) -> int:
        """Kill a process that is alive; return how many that were."""
        number = signal.SIGTERM if self.random.random() < 0.2 else signal.SIGKILL
        if not process.is_alive() or process.pid is None:
            return 0
        os.kill(process.pid, number)
        process.join(PATIENCE)
        if process.exitcode == 0:
            return 0  # it had done its work
        wanted = TERMINATED if number == signal.SIGTERM else -signal.SIGKILL
        # Before the command itself has begun nobody hears a SIGTERM but the system.
        if process.exitcode not in (wanted, -number):
            self.problems.append(f"{sort}: exit code {process.exitcode} after {number.name}")
        self.kills[f"{sort}, {number.name}"] += 1
        return 1

    def compare(self, sort: str, out: Path) -> None:
        """Note what differs from the undisturbed work."""
        found, expected = content(out), self.expected[sort]
        self.problems += [
            f"{sort}: {name} differs"
            for name in found.keys() | expected.keys()
            if found.get(name) != expected.get(name)
        ]
        if (out / "cells").is_dir():
            self.problems += verify_folder(out, (), torch.device("cpu"), rerun=False, report=Silent()).problems


def content(out: Path) -> dict[str, str]:
    """Return {what lies in a folder: the hash of what it says}, but for times and for what a lock leaves."""
    found = {f"row {index}": repr(row) for index, row in enumerate(timeless(out))}
    for path in sorted(out.rglob("*")):
        name = str(path.relative_to(out))
        if path.suffix == ".safetensors" and ".resume." not in name:
            tensors = read_checkpoint(path).tensors
            found[name] = digest({key: value.numpy().tobytes() for key, value in tensors.items()})
        elif path.parent.name in ("scores", "data"):
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix in (WRITING, ENDED):
            found[name] = "left by a writer"
        elif path.is_file() and path.parent.name in ("cells", "attacks"):
            found[name] = "there"
    return found


def digest(parts: Mapping[str, bytes]) -> str:
    return hashlib.sha256(b"".join(name.encode() + parts[name] for name in sorted(parts))).hexdigest()


def timeless(out: Path) -> list[ResultRow]:
    if not (out / "rows.csv").is_file():
        return []
    # A checkpoint's header says how long its epochs took, so its hash differs where its weights do not.
    return [dataclasses.replace(row, seconds=None, commit="", checkpoint_sha256="") for row in read_rows(out)]


def main() -> None:
    """Soak until so many processes were killed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=300, help="processes to kill in all")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of who is killed")
    options: Any = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # sums in another order are other numbers
    torch.set_num_threads(1)
    context.set_forkserver_preload(list(PRELOAD))
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), options.seed)
        soak.start(("list", "presets"), Path(folder)).join()  # the server that all processes come from imports first
        for sort in WORKS:
            soak.undisturbed(sort)
            print(f"{sort}: {soak.seconds[sort]:.1f} s undisturbed", file=sys.stderr, flush=True)
        while soak.kills.total() < options.kills and not soak.problems:
            sort = list(WORKS)[soak.rounds.total() % len(WORKS)]
            soak.round(sort, options.kills - soak.kills.total())
            print(f"{soak.kills.total()} kills, {soak.rounds.total()} works done", file=sys.stderr, flush=True)
        if soak.problems:
            print((Path(folder) / "log").read_text()[-3000:], file=sys.stderr)
    for name, count in sorted(soak.kills.items()):
        print(f"soak: {name}: {count} kills")
    works = ", ".join(f"{count} of {name}" for name, count in soak.rounds.items())
    print(
        f"soak: {soak.kills.total()} kills in {time.monotonic() - begin:.0f} s; works done: {works}; "
        + (f"{len(soak.problems)} problems" if soak.problems else "every row and every bit as undisturbed")
    )
    for problem in soak.problems[:20]:
        print(f"soak: {problem}")
    sys.exit(bool(soak.problems))


if __name__ == "__main__":
    main()
