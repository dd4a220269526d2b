"""The output of each choice while its stream lives, and the figures made of it at its end."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import pairwise

from sidecar.requests.records import ChoiceRecord

# Times kept per stream (16 bytes each, with the tokens so far). No model writes that many
# tokens in one answer; a stream that goes on for ever must not take the sidecar's memory with it.
MAX_TIMES = 262_144


class Track:
    """One choice's output chunks: when each came and, where told, the tokens so far."""

    __slots__ = (
        "chars",
        "cumulative",
        "finish",
        "first_answer_ns",
        "index",
        "last_over_ns",
        "max_over_ns",
        "over",
        "parts",
        "skip",
        "times_ns",
    )

    def __init__(self, index: int, *, skip: int = 0) -> None:
        self.index = index
        self.times_ns = array("q")
        self.cumulative = array("q")  # tokens so far at each output chunk, -1 where not told
        self.finish: str | None = None
        self.first_answer_ns: int | None = None
        self.parts: list[str] = []
        self.chars = 0
        self.skip = skip  # output events that are not generated: an echoed prompt
        # Beyond MAX_TIMES only these are kept:
        self.over = 0
        self.last_over_ns = 0
        self.max_over_ns = 0

    @property
    def chunks(self) -> int:
        """Output chunks so far."""
        return len(self.times_ns) + self.over

    def mark_over(self, at_ns: int) -> None:
        """An output chunk whose time is no longer kept; the longest of the gaps is."""
        last_ns = self.last_over_ns or (self.times_ns[-1] if self.times_ns else at_ns)
        self.max_over_ns = max(self.max_over_ns, at_ns - last_ns)
        self.last_over_ns = at_ns
        self.over += 1

    def keep_text(self, text: str, limit: int) -> None:
        """Append captured text, cut to ``limit`` characters in all."""
        room = limit - self.chars
        if room > 0 and text:
            kept = text[:room]
            self.parts.append(kept)
            self.chars += len(kept)

    @property
    def first_ns(self) -> int | None:
        return self.times_ns[0] if self.times_ns else None

    @property
    def last_ns(self) -> int | None:
        if self.over:
            return self.last_over_ns
        return self.times_ns[-1] if self.times_ns else None

    def gaps_ns(self) -> list[int]:
        """Gaps between successive output chunks of this choice."""
        gaps = differences(self.times_ns)
        if self.over:
            gaps.append(self.max_over_ns)
        return gaps

    def chunk_tokens(self) -> list[int] | None:
        """Tokens of each output chunk where every one is known (continuous usage), else ``None``."""
        counts = self.cumulative
        if not counts or self.over or len(counts) != len(self.times_ns) or min(counts) < 0:
            return None
        sizes = [counts[0], *differences(counts)]
        return sizes if min(sizes) >= 0 else None

    def tokens_told(self) -> int | None:
        """Tokens so far at the last output chunk, where told."""
        return self.cumulative[-1] if self.cumulative and self.cumulative[-1] >= 0 else None


def differences(values: Sequence[int]) -> list[int]:
    """Each value minus the one before it."""
    return [after - before for before, after in pairwise(values)]


def choice_records(
    tracks: Sequence[Track], total: int | None, *, streamed: bool, capture: bool
) -> tuple[tuple[ChoiceRecord, ...], int | None, bool]:
    """The choices' records, the answer's output tokens, and whether those are estimated.

    ``total`` is the server's count over all choices, ``None`` where it sent none. One choice has all of it.
    Of several, each has what continuous usage told of it if those add up, else its share by output chunks,
    marked estimated.
    """
    chunks = [track.chunks for track in tracks]
    told = [track.tokens_told() for track in tracks]
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
            first_ns=track.first_ns if streamed else None,
            last_ns=track.last_ns if streamed else None,
            tokens=count,
            tokens_estimated=estimated or (count is not None and len(tracks) > 1 and counts is not told),
            finish_reason=track.finish,
            text="".join(track.parts) if capture and track.parts else None,
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
            (gap / size, size)
            for gap, size in zip(differences(track.times_ns), sizes[1:], strict=True)
            if size > 1
        ]
    return tuple(found)
