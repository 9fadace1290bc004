"""Checkpoints: a whole file is read, a damaged one is refused in one line, and no code in a file runs."""

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from rrbench.errors import UseError
from rrbench.files.checkpoints import load_weights, pack_bits, read_checkpoint, unpack_bits, write_checkpoint

HTML = b"<!DOCTYPE html>\n<html><head><title>404</title></head><body>Not found</body></html>\n" * 20


def network() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))


def saved(folder: Path) -> Path:
    path = folder / "net.safetensors"
    write_checkpoint(path, network().state_dict(), {"trained_as": "pgd-at", "clean_accuracy": 97.5})
    return path


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(UseError) as caught:
        call()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_disk_that_is_full_is_one_line_and_leaves_the_old_file_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = saved(tmp_path)
    before = path.read_bytes()

    def full(*given: object, **more: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("rrbench.files.checkpoints.save_file", full)
    assert refusal(lambda: saved(tmp_path)) == (
        f"cannot write {path}: Error while serializing: I/O error: No space left on device (os error 28)"
    )
    assert (path.read_bytes(), os.listdir(tmp_path)) == (before, [path.name])


def test_weights_and_facts_come_back_as_they_were_written(tmp_path: Path) -> None:
    checkpoint, other = read_checkpoint(saved(tmp_path)), network()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.zero_()
    load_weights(other, checkpoint)
    assert checkpoint.facts == {"trained_as": "pgd-at", "clean_accuracy": 97.5}
    for name, tensor in network().state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name
        assert other.state_dict()[name].dtype == tensor.dtype


def test_the_hash_is_the_files_and_writing_twice_gives_the_same_file(tmp_path: Path) -> None:
    first = read_checkpoint(saved(tmp_path)).sha256
    content = (tmp_path / "net.safetensors").read_bytes()
    assert read_checkpoint(saved(tmp_path)).sha256 == first
    assert (tmp_path / "net.safetensors").read_bytes() == content


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(tmp_path: Path, share: float) -> None:
    path = saved(tmp_path)
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    assert "truncated or damaged" in refusal(lambda: read_checkpoint(path))


@pytest.mark.parametrize("suffix", [".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize(
    "content", [HTML, bytes(range(256)) * 40, b"\xff" * 4096, b""], ids=["html", "bytes", "ff", "empty"]
)
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"net{suffix}"
    path.write_bytes(content)
    assert str(path) in refusal(lambda: read_checkpoint(path))


def test_a_header_that_is_no_json_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "net.safetensors"
    for header in ("{not json", json.dumps([1, 2])):
        save_file(network().state_dict(), path, metadata={"rrbench": header})
        assert "damaged" in refusal(lambda: read_checkpoint(path))


def test_a_checkpoint_of_somebody_else_without_our_header_is_read(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    path = tmp_path / "net.safetensors"
    save_file(network().state_dict(), path)
    assert read_checkpoint(path).facts == {}


def test_a_missing_file_and_an_unknown_kind_are_refused(tmp_path: Path) -> None:
    assert "no checkpoint at" in refusal(lambda: read_checkpoint(tmp_path / "net.safetensors"))
    (tmp_path / "net.pkl").write_bytes(pickle.dumps(network().state_dict()))
    assert "neither .safetensors nor .pt" in refusal(lambda: read_checkpoint(tmp_path / "net.pkl"))


def changed(**tensors: Tensor | None) -> dict[str, Tensor]:
    weights = {**network().state_dict(), **{name.replace("_", "."): tensor for name, tensor in tensors.items()}}
    return {name: tensor for name, tensor in weights.items() if tensor is not None}


@pytest.mark.parametrize(
    ("weights", "line"),
    [
        (changed(**{"0_weight": torch.zeros(3, 5)}), "'0.weight' is (3, 5), not (3, 4)"),
        (changed(**{"0_bias": None}), "it lacks tensor '0.bias'"),
        (changed(**{"2_weight": torch.zeros(1)}), "it has an unknown tensor '2.weight'"),
    ],
)
def test_weights_that_do_not_fit_are_refused_and_the_network_keeps_its_own(
    tmp_path: Path, weights: dict[str, Tensor], line: str
) -> None:
    write_checkpoint(tmp_path / "net.safetensors", weights, {})
    kept = network()
    assert line in refusal(lambda: load_weights(kept, read_checkpoint(tmp_path / "net.safetensors")))
    assert all(torch.equal(kept.state_dict()[name], tensor) for name, tensor in network().state_dict().items())


@pytest.mark.parametrize("key", ["", "state_dict", "model", "model_state_dict", "net"])
def test_a_pt_file_of_plain_weights_is_read(tmp_path: Path, key: str) -> None:
    weights = network().state_dict()
    beside = {"epoch": 3, "optimizer": {"state": {}, "param_groups": []}, "model_ema": changed(**{"0_bias": None})}
    torch.save({key: weights, **beside} if key else weights, tmp_path / "net.pt")
    checkpoint = read_checkpoint(tmp_path / "net.pt")
    assert checkpoint.facts == {}
    assert checkpoint.tensors.keys() == weights.keys()
    assert all(torch.equal(checkpoint.tensors[name], weights[name]) for name in weights)


def test_a_key_that_holds_no_weights_does_not_hide_one_that_does(tmp_path: Path) -> None:
    weights = network().state_dict()
    for other in ("resnet18", {}, {"width": 4}, 3, torch.zeros(3)):
        torch.save({"model": other, "state_dict": weights}, tmp_path / "net.pt")
        assert read_checkpoint(tmp_path / "net.pt").tensors.keys() == weights.keys()


def test_two_state_dicts_in_a_file_are_refused_since_nothing_chooses(tmp_path: Path) -> None:
    weights = network().state_dict()
    torch.save({"net": weights, "state_dict": weights}, tmp_path / "net.pt")
    line = "holds several state dicts, state_dict and net: save one of them alone"
    assert refusal(lambda: read_checkpoint(tmp_path / "net.pt")) == f"checkpoint {tmp_path / 'net.pt'} {line}"


class Bomb:
    """Unpickling this makes a file."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch '{self.mark}'",)


def old_format(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def new_format(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("pack", [pickle.dumps, old_format, new_format], ids=["pickle", "legacy", "zip"])
@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
def test_code_in_a_checkpoint_is_refused_and_never_run(
    tmp_path: Path, pack: Callable[[object], bytes], suffix: str
) -> None:
    mark, path = tmp_path / "executed", tmp_path / f"net{suffix}"
    path.write_bytes(pack({"0.weight": torch.zeros(3, 4), "bomb": Bomb(mark)}))
    assert str(path) in refusal(lambda: read_checkpoint(path))
    assert not mark.exists()
    pickle.loads(pickle.dumps(Bomb(mark)))
    assert mark.exists(), "the bomb itself must work, or this test proves nothing"


def test_a_whole_pickled_module_is_refused(tmp_path: Path) -> None:
    torch.save(network(), tmp_path / "net.pt")
    assert "is refused: not plain weights; save model.state_dict()" in refusal(
        lambda: read_checkpoint(tmp_path / "net.pt")
    )


def test_a_pt_file_that_holds_no_state_dict_is_refused(tmp_path: Path) -> None:
    for content in (torch.zeros(3), {"epoch": 3}, [torch.zeros(3)]):
        torch.save(content, tmp_path / "net.pt")
        assert "no state dict" in refusal(lambda: read_checkpoint(tmp_path / "net.pt"))


@pytest.mark.parametrize(
    ("content", "keys"),
    [
        ({"weights": {"a": torch.zeros(1)}, "epoch": 3}, "weights, epoch"),
        ({"two\nlines": 3, 7: 1, "x" * 200: 0}, "two\\nlines, 7, " + "x" * 26 + " ... " + "x" * 7),
        (
            {f"key{index}": index for index in range(20)},
            ", ".join(f"key{index}" for index in range(8)) + " and 12 more",
        ),
    ],
    ids=["other", "odd", "many"],
)
def test_what_a_pt_file_has_instead_is_told(tmp_path: Path, content: object, keys: str) -> None:
    torch.save(content, tmp_path / "net.pt")
    line = f"holds no state dict of tensors: its keys are {keys}; save model.state_dict()"
    assert refusal(lambda: read_checkpoint(tmp_path / "net.pt")) == f"checkpoint {tmp_path / 'net.pt'} {line}"


def test_a_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.pt").write_text("hello")
    assert "is refused: damaged, or no weights (" in refusal(lambda: read_checkpoint(tmp_path / "net.pt"))


def test_an_archive_without_weights_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "net.pt", "w") as archive:
        archive.writestr("readme.txt", "no weights here")
    assert "refused" in refusal(lambda: read_checkpoint(tmp_path / "net.pt"))


@pytest.mark.parametrize("length", [1, 7, 8, 9, 64, 360, 10_000])
def test_bits_come_back_as_they_were_packed(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    for share in (0.0, 0.5, 0.97, 1.0):
        bits = torch.rand(length, generator=generator) < share
        assert torch.equal(unpack_bits(pack_bits(bits)), bits)


def test_bits_by_hand() -> None:
    assert pack_bits(torch.tensor([False, False, True, False, True, True])) == "6:b"
    assert unpack_bits("6:b").tolist() == [False, False, True, False, True, True]
