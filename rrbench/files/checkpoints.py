"""Checkpoints on disk: safetensors files whose headers say what made them. Reading one never runs code in it."""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from rrbench.errors import FileError, UseError, first_line, one_line, reason, shortened
from rrbench.files.disk import parse_json, replacing, sha256, to_path
from rrbench.files.headers import TRAINING
from rrbench.files.packing import unpack
from rrbench.numbers import read_whole

KEYS = ("state_dict", "model_state_dict", "model", "net")  # under which trainings save weights beside other things
MOST_KEYS = 8  # that a message names
MOST_BITS = 10**7  # most inputs for which a header says which are classified right


@dataclass(frozen=True)
class Checkpoint:
    """Weights, and the facts stored with them."""

    path: Path
    sha256: str
    tensors: Mapping[str, Tensor]
    facts: Mapping[str, Any]  # trained_as, key, recipe, clean_accuracy, clean_correct, log ...


def write_checkpoint(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, object]) -> None:
    """Write weights and facts atomically."""
    # Made contiguous on its own device: a GPU is fast at this.
    contiguous = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    try:
        # Written straight to the file: making bytes first would hold up trainings in other threads.
        with replacing(path) as temporary:
            save_file(contiguous, temporary, metadata={"rrbench": json.dumps(facts)})
    except SafetensorError as error:
        raise FileError(f"cannot write {path}: {first_line(error)}") from None


def read_checkpoint(path: str | PathLike[str]) -> Checkpoint:
    """Read a .safetensors file, or a .pt file of weights only; refuse any other or damaged file."""
    path = to_path(path)
    if not path.is_file():
        raise UseError(f"no checkpoint at {path}")
    if path.suffix in (".pt", ".pth"):
        return Checkpoint(path, sha256(path), _read_pt(path), {})
    if path.suffix != ".safetensors":
        raise UseError(f"checkpoint {path} is neither .safetensors nor .pt")
    try:
        with safe_open(path, framework="pt") as file:
            facts = parse_json((file.metadata() or {}).get("rrbench", "{}"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  (not a dict)
    except (SafetensorError, OSError, ValueError) as error:
        raise UseError(f"checkpoint {path} cannot be read (truncated or damaged): {first_line(error)}") from None
    if not isinstance(facts, dict):
        raise UseError(f"checkpoint {path} has a damaged header")
    try:
        return Checkpoint(path, sha256(path), unpack(tensors) if facts.get("packed") else tensors, facts)
    except RuntimeError:
        raise UseError(f"checkpoint {path} is damaged: its packed weights do not fit their scales") from None


def read_trained(path: Path) -> Checkpoint:
    """Read the checkpoint of a training; refuse one whose header leaves out how it was trained."""
    checkpoint = read_checkpoint(path)
    absent = [name for name in TRAINING if name not in checkpoint.facts]
    if absent:  # else it would pass for any training that a file's name or an index claims
        raise UseError(f"checkpoint {path} does not say how it was trained: its header lacks {', '.join(absent)}")
    return checkpoint


def _read_pt(path: Path) -> dict[str, Tensor]:
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # its text is a page about torch.load
        raise UseError(f"checkpoint {path} is refused: not plain weights; save model.state_dict()") from None
    except Exception as error:  # torch raises many kinds for a damaged file
        raise UseError(f"checkpoint {path} is refused: damaged, or no weights ({reason(error)})") from None
    return {str(name): value for name, value in _state_dict(content, path).items()}


def _state_dict(content: object, path: Path) -> Mapping[object, Tensor]:
    """Return the weights in what a file holds: they are all of it, or under one of the keys that trainings use."""
    if not isinstance(content, dict):
        raise UseError(f"checkpoint {path} holds no state dict of tensors")
    if _are_weights(content):
        return content
    found = [key for key in KEYS if _are_weights(content.get(key)) and content[key]]
    if len(found) > 1:
        raise UseError(f"checkpoint {path} holds several state dicts, {' and '.join(found)}: save one of them alone")
    if not found:
        names = [one_line(shortened(str(key), 40)) for key in content]
        more = f" and {len(names) - MOST_KEYS} more" if len(names) > MOST_KEYS else ""
        keys = f"its keys are {', '.join(names[:MOST_KEYS])}{more}; save model.state_dict()"
        raise UseError(f"checkpoint {path} holds no state dict of tensors: {keys}")
    weights: Mapping[object, Tensor] = content[found[0]]
    return weights


def _are_weights(content: object) -> bool:
    return isinstance(content, dict) and all(isinstance(value, Tensor) for value in content.values())


def load_weights(network: nn.Module, checkpoint: Checkpoint) -> None:
    """Put weights into a network; the error names the first tensor that does not fit."""
    wanted = network.state_dict()
    for name in sorted(wanted.keys() | checkpoint.tensors.keys()):
        if name not in checkpoint.tensors or name not in wanted:
            which = "lacks" if name in wanted else "has an unknown"
            raise UseError(f"checkpoint {checkpoint.path} does not fit this network: it {which} tensor {name!r}")
        if wanted[name].shape != checkpoint.tensors[name].shape:
            here, there = tuple(wanted[name].shape), tuple(checkpoint.tensors[name].shape)
            raise UseError(f"checkpoint {checkpoint.path} does not fit this network: {name!r} is {there}, not {here}")
    network.load_state_dict(dict(checkpoint.tensors))


def pack_bits(correct: Tensor) -> str:
    """Write which inputs are classified correctly as hexadecimal digits."""
    text = "".join("1" if value else "0" for value in correct.tolist())
    return f"{len(text)}:{int(text or '0', 2):x}"


def unpack_bits(text: str) -> Tensor:
    """Read `pack_bits` back."""
    length, _, digits = text.partition(":")
    count, number = read_whole(length), int(digits, 16)
    if not number.bit_length() <= count <= MOST_BITS or number < 0:
        raise ValueError(f"no {count} bits")
    return torch.tensor([bit == "1" for bit in f"{number:0{count}b}"])
