"""Images as PNG data addresses: small, without loss, and inside the page."""

import base64
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

GREY, COLOUR = 0, 2  # PNG's colour types


def data_address(image: NDArray[Any]) -> str:
    """Return a (C, H, W) image in [0, 1] as an address; unless it has 1 or 3 channels, their mean is shown."""
    shown = image if len(image) in (1, 3) else image.mean(axis=0, keepdims=True)
    pixels = np.rint(255 * np.clip(shown, 0, 1)).astype(np.uint8).transpose(1, 2, 0)
    return "data:image/png;base64," + base64.b64encode(png(pixels)).decode()


def png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode (H, W, 1 or 3) pixels."""
    height, width, channels = pixels.shape
    header = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    # Every line begins with its filter type; 0 means none.
    lines = np.pad(pixels.reshape(height, -1), ((0, 0), (1, 0))).tobytes()
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, content) for kind, content in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
