"""Invalid values, and ways to put them into valid inputs, for the fuzz."""

import contextlib
import io
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

NUMBERS = (
    *("0", "-0", "-1", "1", "3/20", "8/255", "1/0", "0/0", "1e-3", "1e99999999", "-1e-99999999", "1e309", "1e-400"),
    *(
        "nan",
        "-inf",
        "Infinity",
        "1e",
        "e5",
        ".5",
        "5.",
        "1_0",
        "1__0",
        "+7",
        "--7",
        "0x1f",
        "\u0663",
        "\u00bd",
        "1\u00a0",
    ),
    *("9" * 19, "9" * 400, "9" * 5000, "0." + "0" * 400 + "1", "1/" + "9" * 400, "9223372036854775808", "true", "none"),
)
NAMES = (
    *("", " ", ".", "..", "a" * 5000, "../../outside", "/dev/zero", "/etc/passwd", "C:\\outside", "data/../../x.npz"),
    *(
        "\0",
        "a\nb",
        "\x1b[31m",
        "\ud800",
        "\u202e",
        "\U0001f600",
        "<script>",
        "=1+1",
        '"',
        "'",
        "%s",
        "{0}",
        "a,b",
        "a(b",
    ),
)
TEXTS = NUMBERS + NAMES

# What JSON can say, none of it meant.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 0.5, -0.0, 1e308, float("inf"), float("nan")),
    *([], {}, [[]], [None], {"": None}, {"a": {"b": []}}, ["digits", {}], [1, 2, 3], *TEXTS),
)


def numbers() -> st.SearchStrategy[str]:
    return st.sampled_from(NUMBERS) | st.fractions().map(str) | st.floats().map(repr) | st.integers().map(str)


def texts() -> st.SearchStrategy[str]:
    return st.sampled_from(TEXTS) | st.text(max_size=20)


def values() -> st.SearchStrategy[Any]:
    leaves = st.sampled_from(VALUES) | st.integers() | st.floats() | st.text(max_size=9)
    return leaves | st.integers(30, 3000).map(nested)


def nested(depth: int) -> Any:
    """Return a list in a list in a list; as JSON, since Python prints no deep one."""
    return Raw("[" * depth + "]" * depth)


class Raw(str):
    """JSON that is written as it stands."""


def dump(value: Any) -> bytes:
    """Write JSON, `Raw` parts as they stand and numbers without end."""
    raws: list[Raw] = []

    def prepared(part: Any) -> Any:
        if isinstance(part, Raw):
            raws.append(part)
            return f"<raw {len(raws) - 1}>"
        if isinstance(part, dict):
            return {key: prepared(item) for key, item in part.items()}
        return [prepared(item) for item in part] if isinstance(part, list) else part

    text = json.dumps(prepared(value))
    for index, raw in enumerate(raws):
        text = text.replace(f'"<raw {index}>"', raw)
    return text.encode()


def places(value: Any, prefix: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return the way to every part of a JSON value, itself included."""
    yield prefix
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield from places(part, (*prefix, key))


def put(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Return a copy with another part at a place; `...` takes the part away."""
    if not place:
        return None if new is ... else new
    key, *rest = place
    copy = dict(value) if isinstance(value, dict) else list(value)
    if new is ... and not rest:
        del copy[key]
    else:
        copy[key] = put(value[key], tuple(rest), new)
    return copy


@st.composite
def changed_json(draw: st.DrawFn, value: Any) -> bytes:
    """A JSON value with one to three parts replaced, taken away or added."""
    for _ in range(draw(st.integers(1, 3))):
        if isinstance(value, Raw):
            break
        place = draw(st.sampled_from(list(places(value))))
        if draw(st.booleans()) and isinstance(at(value, place), dict):
            place = (*place, draw(texts()))
            value = put_new(value, place, draw(values()))
        else:
            value = put(value, place, draw(st.just(...) | values()))
    return dump(value)


def at(value: Any, place: tuple[Any, ...]) -> Any:
    for key in place:
        value = value[key]
    return value


def put_new(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """Add a part that was not there."""
    *rest, key = place
    return put(value, tuple(rest), {**at(value, tuple(rest)), key: new})


@st.composite
def changed_bytes(draw: st.DrawFn, content: bytes) -> bytes:
    """Bytes that were cut, doubled, turned or overwritten."""
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(content)))
        end = min(len(content), start + draw(st.sampled_from((1, 2, 8, 64, 4096))))
        piece = draw(
            st.sampled_from((b"", content[start:end] * 2, content[start:end][::-1], b"\0" * (end - start), b"\xff"))
            | st.binary(max_size=16)
        )
        content = content[:start] + piece + content[end:]
    return content


@st.composite
def arrays(draw: st.DrawFn) -> NDArray[Any]:
    """An array of any kind and shape."""
    shape = tuple(draw(st.lists(st.sampled_from((0, 1, 2, 10, 24, 25)), max_size=4)))
    kind = draw(st.sampled_from(("f4", "f8", "f2", "i8", "i1", "u8", "b1", "c8", "U3", "S2", "M8[s]", "i4,f4")))
    fill = draw(st.sampled_from((0, 1, -1, 2**62, math.nan, math.inf, -math.inf, 1e300)))
    array = np.zeros(shape, dtype=kind)
    with contextlib.suppress(ValueError, OverflowError, TypeError):
        array[...] = fill
    return array


@st.composite
def archives(draw: st.DrawFn, there: dict[str, NDArray[Any]]) -> bytes:
    """An .npz of which some arrays are others, are missing or are strange."""
    changed = dict(there)
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(there)))
        how = draw(st.sampled_from(("other", "less", "cast", "value", "gone", "flat")))
        array = there[name]
        if how == "gone":
            changed.pop(name, None)
        elif how == "less" and array.ndim:
            changed[name] = array[: draw(st.integers(0, len(array)))]
        elif how == "flat":
            changed[name] = array.ravel()
        elif how == "cast" and array.dtype.kind in "fib":
            changed[name] = array.astype(draw(st.sampled_from(("f2", "f8", "i4", "i8", "U8", "b1", "c16"))))
        elif how == "value" and array.dtype.kind == "f":
            changed[name] = array + draw(st.sampled_from((math.nan, math.inf, -math.inf, 1e30)))
        else:
            changed[name] = draw(arrays())
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **changed)
    content = buffer.getvalue()
    return draw(st.just(content) | st.just(content) | changed_bytes(content))
