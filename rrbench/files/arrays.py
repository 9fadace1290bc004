"""Named arrays in one file (.npz, no pickles). Imports no torch."""

import hashlib
import io
import zipfile
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from rrbench.errors import UseError, first_line
from rrbench.files.disk import write_bytes

Arrays = Mapping[str, NDArray[Any]]


def save_arrays(path: Path, arrays: Arrays, *, compress: bool = True) -> str:
    """Write named arrays as .npz and return the file's hash."""
    content = packed(arrays, compress=compress)
    write_bytes(path, content)
    return hashlib.sha256(content).hexdigest()


def packed(arrays: Arrays, *, compress: bool = True) -> bytes:
    """Return named arrays as the content of an .npz file."""
    buffer = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(buffer, allow_pickle=False, **cast(Any, arrays))
    return buffer.getvalue()


def tightly_packed(arrays: Arrays) -> bytes:
    """Return named arrays as the content of a smaller .npz file: LZMA takes ten times as long as NumPy's own way."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # of 1980, as NumPy's: the content depends on the arrays alone
            member.compress_type = zipfile.ZIP_LZMA
            with archive.open(member, "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return buffer.getvalue()


class KindError(ValueError):
    """A file is not what its name says."""


@contextmanager
def reading_arrays(path: Path) -> Iterator[None]:
    """Say what a file is if NumPy takes it for a pickle: NumPy's own line advises to load it unsafely."""
    try:
        yield
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        with path.open("rb") as file:
            is_numpys = file.read(6).startswith((b"PK", b"\x93NUMPY"))
        what = "holds Python objects, which are not read" if is_numpys else f"is no {path.suffix or '.npz'} file"
        raise KindError(f"it {what}") from None


def load_arrays(path: Path, only: Container[str] | None = None) -> dict[str, NDArray[Any]]:
    """Read named arrays, or `only` those of these names that are there; a damaged file is a one-line error."""
    try:
        with reading_arrays(path):
            file = np.load(path, allow_pickle=False)
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise KindError("it is no .npz file")
            with file:
                arrays = {name: file[name] for name in file.files if only is None or name in only}
        if not all(isinstance(array, np.ndarray) for array in arrays.values()):
            raise ValueError("a member is no array")
        return arrays
    except FileNotFoundError:
        raise UseError(f"there is no {path}") from None
    except KindError as error:
        raise UseError(f"cannot read {path}: {error}") from None
    except Exception as error:  # a damaged archive can fail in any way
        raise UseError(f"cannot read {path} (truncated or damaged): {first_line(error)}") from None
