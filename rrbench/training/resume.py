"""The file from which a stopped training resumes: written while the next epoch trains, and read back."""

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from rrbench.compute.turns import TURNS
from rrbench.errors import UseError
from rrbench.files.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from rrbench.numbers import read_whole
from rrbench.planning.cells import Training
from rrbench.training.average import Average

# What each optimiser remembers of a parameter: the name in the file, and PyTorch's.
REMEMBERED = {
    "sgd": {"momentum": "momentum_buffer"},
    "adam": {"mean": "exp_avg", "square": "exp_avg_sq", "steps": "step"},
}


@dataclass
class State:
    """All that a resumed run needs."""

    network: nn.Module
    optimizer: torch.optim.Optimizer
    average: Average | None = None
    epoch: int = 0  # number of finished epochs
    best_epoch: int = 0
    best_score: float = -1.0
    best: dict[str, Tensor] = field(default_factory=dict)
    log: list[dict[str, float]] = field(default_factory=list)

    def judged(self) -> AbstractContextManager[None]:
        """Give the network the weights that are judged and kept: the running mean, if the recipe asks for one."""
        return self.average.worn() if self.average else nullcontext()


class Writer:
    """Writes the state for a resumed run while the next epoch trains; leaving the block waits for the last write."""

    def __init__(self, path: Path, training: Training) -> None:
        self.path, self.training = path, training
        self._pool = ThreadPoolExecutor(1)
        self._last: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        self._pool.shutdown()
        if self._last is not None and (kind is None or issubclass(kind, GeneratorExit)):
            self._last.result()

    def save(self, state: State) -> None:
        """Start writing a copy of the state when the earlier write is done; if that write failed, wait for this one."""
        # Wait before taking a turn: the earlier write needs a turn to end.
        has_failed = self._last is not None and self._last.exception() is not None
        with TURNS.together():
            copies = self._copies(state)
        facts = {
            "key": self.training.key,
            "epoch": state.epoch,
            "log": list(state.log),
            "best_epoch": state.best_epoch,
            "best_score": state.best_score,
        }
        self._last = self._pool.submit(self._write, copies, facts)
        if has_failed:
            self._last.result()

    def _copies(self, state: State) -> dict[str, Tensor]:
        """Copy on the device, which is fast, so that the next epoch can begin."""
        tensors = {f"network.{name}": tensor for name, tensor in state.network.state_dict().items()}
        tensors |= {f"best.{name}": tensor for name, tensor in state.best.items()}
        if state.average:
            tensors |= {f"average.{name}": tensor for name, tensor in state.average.tensors.items()}
        remembered = REMEMBERED[self.training.recipe.optimizer]
        for name, parameter in state.network.named_parameters():
            found = state.optimizer.state[parameter]  # empty if the loss never reaches the parameter
            tensors |= {f"{part}.{name}": found[key] for part, key in remembered.items() if key in found}
        copies = {
            name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in tensors.items()
        }
        if next(state.network.parameters()).is_cuda:
            torch.cuda.current_stream().synchronize()  # another stream reads the copies
        return copies

    def _write(self, copies: dict[str, Tensor], facts: dict[str, object]) -> None:
        """Copy to main memory and write the file; only the copying needs the GPU."""
        with TURNS.together():
            at_home = {name: tensor.cpu() for name, tensor in copies.items()}
        write_checkpoint(self.path, at_home, facts)


def resume(state: State, path: Path, training: Training) -> None:
    """Continue from the state in a file."""
    checkpoint = read_checkpoint(path)
    facts = checkpoint.facts
    if facts.get("key") != training.key:
        raise UseError(f"{path} belongs to another training; delete it to start afresh")
    try:
        _take_over(state, checkpoint, REMEMBERED[training.recipe.optimizer])
    except (KeyError, TypeError, ValueError, RuntimeError):
        raise UseError(f"{path} is damaged: nothing can go on from it; delete it to start afresh") from None


def _take_over(state: State, checkpoint: Checkpoint, remembered: Mapping[str, str]) -> None:
    """Fill a state; a part that does not fit raises an error, as anybody may have written the file."""
    facts = checkpoint.facts
    device = next(state.network.parameters()).device
    parts: dict[str, dict[str, Tensor]] = {"network": {}, "best": {}, "average": {}}
    parts |= {part: {} for part in remembered}
    for name, tensor in checkpoint.tensors.items():
        part, _, rest = name.partition(".")
        parts[part][rest] = tensor.to(device)
    state.network.load_state_dict(parts["network"])
    for name, parameter in state.network.named_parameters():
        found = {key: parts[part][name] for part, key in remembered.items() if name in parts[part]}
        if found and len(found) < len(remembered):
            raise ValueError(name)
        for key, tensor in found.items():
            if tensor.shape != (() if key == "step" else parameter.shape):
                raise ValueError(name)
            if key == "step" and not tensor >= 1:  # after a step -1 Adam would divide by 0
                raise ValueError(name)
            # The memory layout must be the parameter's, or the optimiser updates tensor by tensor on a GPU.
            like = torch.zeros((), device=device) if key == "step" else torch.empty_like(parameter)
            state.optimizer.state[parameter][key] = like.copy_(tensor)
    if state.average:
        state.average.take_over(parts["average"])
    state.best = parts["best"]
    state.epoch, state.log = read_whole(facts["epoch"]), [dict(record) for record in facts["log"]]
    state.best_epoch, state.best_score = read_whole(facts["best_epoch"]), float(facts["best_score"])
    if not 0 <= state.best_epoch <= state.epoch == len(state.log):
        raise ValueError("epochs")
