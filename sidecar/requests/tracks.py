"""The output of each choice while its stream lives, and the figures made of it at its end."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import sub

from sidecar.requests.records import ChoiceRecord
from sidecar.requests.text import sound

# Times kept per stream (16 bytes each, with the tokens so far). No model writes that many in one answer; a
# stream that goes on for ever must not take the sidecar's memory with it.
MAX_TIMES = 262_144
# Times are gathered in a list, which takes an append at a third of an array's cost but five times its memory,
# and moved to an array when the list is this long.
SPILL = 1024


class Room:
    """How many more times a stream's tracks may move to their arrays, together."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_TIMES - SPILL


class Track:
    """One choice's output chunks: when each came and, where told, the tokens so far."""

    __slots__ = (
        "_closed_ns",
        "_counts",
        "_gaps_ns",
        "_last_over_ns",
        "_max_over_ns",
        "_over",
        "_room",
        "_times_ns",
        "chars",
        "finish",
        "first_answer_ns",
        "index",
        "parts",
        "recent_counts",
        "recent_ns",
        "skip",
        "told",
    )

    def __init__(self, index: int, room: Room, *, skip: int = 0) -> None:
        self.index = index
        self._room = room
        self.recent_ns: list[int] = []  # the meter's fast path appends here, below SPILL of them
        self.recent_counts: list[int] = []  # tokens so far at each output chunk that told them
        self._times_ns = array("q")
        self._counts = array("q")
        self._closed_ns: list[int] = []  # set by close
        self._gaps_ns: list[int] = []
        self.finish: str | None = None
        self.first_answer_ns: int | None = None
        self.parts: list[str] = []
        self.chars = 0
        self.told: int | None = None  # tokens so far, by the last usage beside this choice
        self.skip = skip  # output events that are not generated: an echoed prompt
        # Beyond MAX_TIMES only these are kept:
        self._over = 0
        self._last_over_ns = 0
        self._max_over_ns = 0

    @property
    def chunks(self) -> int:
        """Output chunks so far."""
        return len(self._times_ns) + len(self.recent_ns) + self._over

    def mark(self, at_ns: int, count: int) -> bool:
        """An output chunk, and the tokens so far (-1: not told). False once times are no longer all kept."""
        if len(self.recent_ns) >= SPILL:
            if self._room.left < SPILL:
                # The list is left full, so that every later chunk comes by here.
                last_ns = self._last_over_ns or self.recent_ns[-1]
                self._max_over_ns = max(self._max_over_ns, at_ns - last_ns)
                self._last_over_ns = max(last_ns, at_ns)
                self._over += 1
                return False
            self._room.left -= SPILL
            self._spill()
        self.recent_ns.append(at_ns)
        if count >= 0:
            self.recent_counts.append(count)
        return True

    def _spill(self) -> None:
        self._times_ns.extend(self.recent_ns)
        self.recent_ns.clear()
        self._counts.extend(self.recent_counts)
        self.recent_counts.clear()

    def close(self) -> None:
        """The stream is over: bring the times in order, so that no gap is negative whatever the clock did."""
        times = [*self._times_ns, *self.recent_ns]
        self._spill()
        if self._counts:
            self.told = max(self.told or 0, self._counts[-1])
        gaps = differences(times)
        if gaps and min(gaps) < 0:
            times = list(accumulate(times, max))
            gaps = differences(times)
        self._closed_ns, self._gaps_ns = times, gaps

    def keep_text(self, text: str, limit: int) -> None:
        """Append captured text, cut to ``limit`` characters in all."""
        room = limit - self.chars
        if room > 0 and text:
            kept = text[:room]
            self.parts.append(kept)
            self.chars += len(kept)

    @property
    def times_ns(self) -> Sequence[int]:
        """When each output chunk came, after ``close``."""
        return self._closed_ns

    @property
    def last_ns(self) -> int | None:
        """When the last output chunk came, after ``close``."""
        if self._over:
            return self._last_over_ns
        return self._closed_ns[-1] if self._closed_ns else None

    def gaps_ns(self) -> list[int]:
        """Gaps between successive output chunks of this choice, after ``close``."""
        return [*self._gaps_ns, self._max_over_ns] if self._over else self._gaps_ns

    def chunk_tokens(self) -> list[int] | None:
        """Tokens of each output chunk where every one is known (continuous usage), else ``None``."""
        counts = self._counts
        if not counts or self._over or len(counts) != len(self._times_ns):
            return None
        sizes = [counts[0], *differences(counts)]
        return sizes if min(sizes) >= 0 else None


def differences(values: Sequence[int]) -> list[int]:
    """Each value minus the one before it."""
    return list(map(sub, values[1:], values))


def choice_records(
    tracks: Sequence[Track], total: int | None, *, streamed: bool, capture: bool
) -> tuple[tuple[ChoiceRecord, ...], int | None, bool]:
    """The choices' records, the answer's output tokens, and whether those are estimated.

    ``total`` is the server's count over all choices, ``None`` where it sent none. One choice has all of it.
    Of several, each has what continuous usage told of it if those add up, else its share by output chunks,
    marked estimated.
    """
    chunks = [track.chunks for track in tracks]
    told = [track.told for track in tracks]
    counts: Sequence[int | None]
    estimated = False
    if not streamed:
        counts = [total] if len(tracks) == 1 else [None] * len(tracks)
        all_tokens = total
    elif total is None:
        counts, estimated, all_tokens = chunks, True, sum(chunks)
    elif len(tracks) == 1:
        counts, all_tokens = [total], total
    elif all(count is not None for count in told) and sum(c for c in told if c is not None) == total:
        counts, all_tokens = told, total
    else:
        counts, all_tokens = shares(total, chunks), total
    records = tuple(
        ChoiceRecord(
            index=track.index,
            output_chunks=track.chunks if streamed else 0,
            first_ns=(track.times_ns[0] if track.times_ns else None) if streamed else None,
            last_ns=track.last_ns if streamed else None,
            tokens=count,
            tokens_estimated=estimated or (count is not None and len(tracks) > 1 and counts is not told),
            finish_reason=track.finish,
            text=sound("".join(track.parts)) if capture and track.parts else None,
        )
        for track, count in zip(tracks, counts, strict=True)
    )
    return records, all_tokens, estimated


def shares(total: int, weights: Sequence[int]) -> list[int]:
    """``total`` shared out in proportion to ``weights``, whole numbers that add up (largest remainders)."""
    whole = sum(weights)
    if whole == 0:
        weights, whole = [1] * len(weights), len(weights)
    if whole == 0:
        return []
    parts = [total * weight // whole for weight in weights]
    by_rest = sorted(range(len(weights)), key=lambda i: (-(total * weights[i] % whole), i))
    for i in by_rest[: total - sum(parts)]:
        parts[i] += 1
    return parts


def stream_gaps_ns(tracks: Iterable[Track]) -> tuple[int, ...]:
    """Gaps between successive output chunks of the whole stream, whichever choice they belong to."""
    return tuple(differences(sorted(at for track in tracks for at in track.times_ns)))


def chunk_tokens(tracks: Sequence[Track]) -> tuple[int, ...] | None:
    """Tokens of each output chunk in order of arrival; ``None`` unless known for every one."""
    if len(tracks) == 1:
        return tuple(tracks[0].chunk_tokens() or ()) or None
    timed: list[tuple[int, int]] = []
    for track in tracks:
        if not track.chunks:
            continue
        sizes = track.chunk_tokens()
        if sizes is None:
            return None
        timed.extend(zip(track.times_ns, sizes, strict=True))
    timed.sort(key=lambda pair: pair[0])
    return tuple(size for _, size in timed) or None


def token_gaps_ns(tracks: Iterable[Track]) -> tuple[tuple[float, int], ...]:
    """(gap per token, tokens) for every chunk of more than one token that has a gap before it."""
    found: list[tuple[float, int]] = []
    for track in tracks:
        sizes = track.chunk_tokens()
        if sizes is None:
            continue
        found += [
            (gap / size, size) for gap, size in zip(track.gaps_ns(), sizes[1:], strict=True) if size > 1
        ]
    return tuple(found)
