"""Hostile versions of good inputs, for hypothesis: bytes cut, doubled and swapped; JSON with wrong values."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

# What parsers trip over: limits of numbers, other kinds, text that is none.
JUNK: tuple[Any, ...] = (
    *(None, True, "", "x" * 3000, "\x00", "\ud800", "1e999", "NaN", "-1", [], {}, [[[[]]]], {"": {"": None}}),
    *(
        0,
        -1,
        0.5,
        -0.0,
        1e308,
        -1e308,
        5e-324,
        2**31,
        2**63,
        2**64,
        -(2**63),
        10**400,
        float("nan"),
        float("inf"),
    ),
)
TOKENS = (
    *(b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\r\n\r\n", b"\n", b'"', b"{", b"}" * 50, b"[" * 3000, b"NaN"),
    *(
        b"+Inf",
        b"-Inf",
        b"1e999",
        b"-1",
        b"99999999999999999999999999",
        b"\\u",
        b"%",
        b"%s",
        b"\\",
        b": ",
        b"&a *a",
    ),
    *(b"!!python/object:os.system", b"<<: *a", b"\t", b"\xe2\x80\xa8", b"9" * 5000),
)


@st.composite
def broken_bytes(draw: st.DrawFn, seeds: Sequence[bytes], *, most: int = 6) -> bytes:
    """One of the seeds with up to ``most`` cuts, copies, swaps and insertions."""
    data = draw(st.sampled_from(seeds))
    for _ in range(draw(st.integers(1, most))):
        at = draw(st.integers(0, len(data)))
        to = min(len(data), at + draw(st.sampled_from((0, 1, 2, 7, 40, 400))))
        kind = draw(st.sampled_from(("cut", "end", "double", "token", "bytes", "flip")))
        if kind == "cut":
            data = data[:at] + data[to:]
        elif kind == "end":
            data = data[:at]
        elif kind == "double":
            data = data[:to] + data[at:to] * draw(st.integers(1, 5)) + data[to:]
        elif kind == "token":
            data = data[:at] + draw(st.sampled_from(TOKENS)) + data[to:]
        elif kind == "bytes":
            data = data[:at] + draw(st.binary(max_size=8)) + data[to:]
        elif data and at < len(data):
            data = data[:at] + bytes((data[at] ^ (1 << draw(st.integers(0, 7))),)) + data[at + 1 :]
    return data


@st.composite
def broken_json(draw: st.DrawFn, seeds: Sequence[Any], *, most: int = 4) -> Any:
    """One of the values with up to ``most`` of its parts replaced by junk, dropped or doubled."""
    value = copy.deepcopy(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, most))):
        place, holder = value, None
        key: Any = None
        while isinstance(place, dict | list) and place and draw(st.integers(0, 5)):
            holder = place
            key = draw(
                st.sampled_from(sorted(place, key=str) if isinstance(place, dict) else range(len(place)))
            )
            place = holder[key]
        if holder is None:
            continue
        kind = draw(st.sampled_from(("junk", "junk", "drop", "double")))
        if kind == "junk":
            holder[key] = copy.deepcopy(draw(st.sampled_from(JUNK)))
        elif kind == "drop":
            del holder[key]
        elif isinstance(holder, list):
            holder.append(copy.deepcopy(place))
        else:
            holder[str(key) + "x"] = copy.deepcopy(place)
    return value


def as_text(value: Any) -> str:
    """JSON text of it, with NaN and Infinity where they are, as careless writers do."""
    return json.dumps(value, ensure_ascii=True)
