"""From a response's bytes and their times to its record: the one meter of the sidecar and the load generator.

Sans-I/O: whoever reads the socket says which bytes came when, on one monotonic clock. No method of the meter
raises; an answer that cannot be read ends as ``malformed`` with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import Enum

from sidecar.requests import tracks as tracks_
from sidecar.requests.encoding import Inflater, inflater_for, retry_after_s
from sidecar.requests.events import Facts, Unreadable, Usage, read_answer, read_event
from sidecar.requests.outcome import Ending, outcome_of
from sidecar.requests.records import Api, End, RequestRecord
from sidecar.requests.sse import SseEvent, SseParser
from sidecar.requests.tracks import MAX_TIMES, Track

MAX_BODY_BYTES = 2 * 1024 * 1024  # of an answer that is not streamed, and of one event
_MAX_CHOICES = 4096
_BOM_AND_SPACE = b"\xef\xbb\xbf \t\r\n"


class _Body(Enum):
    """How the body is read."""

    UNKNOWN = 0  # no byte of it yet
    EVENTS = 1
    JSON = 2
    SKIP = 3  # nothing more to learn from it


class StreamMeter:
    """Measures one response.

    ``start_ns``: when the request began (see ``RequestRecord``). ``choices``: how many the request asked for.
    ``model``: as requested; else the answer's. ``capture_chars``: characters of generated text to keep per
    choice, 0 for none. ``echo``: the chat request asked for its prompt back, which is not generated output.
    ``stream``: whether the request asked for a stream, which tells what it was if no answer comes.
    Memory held: one unfinished event or body up to 2 MiB, 16 bytes per output chunk, captured text to
    its limit.
    """

    __slots__ = (
        "_api",
        "_asked_stream",
        "_body",
        "_buffer",
        "_capture",
        "_choices",
        "_echo",
        "_end_seen",
        "_error_event",
        "_events",
        "_inflater",
        "_last_ns",
        "_malformed",
        "_model",
        "_opaque",
        "_retry_after_s",
        "_sse",
        "_start_ns",
        "_status",
        "_streamed",
        "_total_tokens",
        "_tracks",
        "_usage",
        "_warnings",
        "first_ns",
        "output_chunks",
    )

    def __init__(
        self,
        api: Api,
        *,
        start_ns: int,
        choices: int = 1,
        model: str = "",
        capture_chars: int = 0,
        echo: bool = False,
        stream: bool | None = None,
    ) -> None:
        self._api = api
        self._start_ns = start_ns
        self._last_ns = start_ns
        self._choices = choices
        self._model = model
        self._capture = capture_chars
        self._echo = 1 if echo and api is Api.CHAT else 0
        self._status: int | None = None
        self._retry_after_s: float | None = None
        self._body = _Body.UNKNOWN if api.generates else _Body.SKIP
        self._asked_stream = stream
        self._streamed = False
        self._inflater: Inflater | None = None
        self._opaque = False  # the body's encoding is not ours to read
        self._buffer = bytearray()
        self._sse = SseParser(MAX_BODY_BYTES)
        self._events = 0
        self._tracks: dict[int, Track] = {}
        self._usage = Usage()
        self._total_tokens: int | None = None
        self._end_seen = False
        self._error_event = False
        self._malformed: str | None = None
        self._warnings: dict[str, None] = {}
        self.first_ns: int | None = None
        self.output_chunks = 0

    def on_headers(self, status: int, headers: Iterable[tuple[str, str]], at_ns: int) -> None:
        """The response's status and headers are in. Informational (1xx) ones may come before."""
        try:
            self._last_ns = max(self._last_ns, at_ns)
            if 100 <= status < 200:
                return
            self._status = status
            found: dict[str, str] = {}
            for name, value in headers:
                found.setdefault(name.lower(), value)
            self._retry_after_s = retry_after_s(found.get("retry-after"), found.get("date"))
            if not 200 <= status < 300 or not self._api.generates:
                self._body = _Body.SKIP
                return
            self._inflater, readable = inflater_for(found.get("content-encoding", ""))
            if not readable:
                self._opaque = True
                self._body = _Body.SKIP
                self._warn("encoding: the body is compressed in a way that cannot be read here")
            if found.get("content-type", "").lower().startswith("text/event-stream"):
                self._streamed = True
        except Exception as error:
            self._broken(error)

    def feed(self, data: bytes, at_ns: int) -> None:
        """Body bytes (after any transfer coding), and when they arrived. Any split gives the same record."""
        if at_ns < self._last_ns:
            at_ns = self._last_ns
        self._last_ns = at_ns
        try:
            if self._body is not _Body.SKIP and data:
                self._feed(data, at_ns)
        except Exception as error:
            self._broken(error)

    def finish(self, end: End, at_ns: int) -> RequestRecord:
        """The response is over; the record of it. Call once, last."""
        seen_ns = self._last_ns
        at_ns = max(at_ns, seen_ns)
        try:
            if end is End.EOF:
                self._close(seen_ns)
        except Exception as error:
            self._broken(error)
        return self._record(end, at_ns)

    # --- bytes -----------------------------------------------------------------

    def _feed(self, data: bytes, at_ns: int) -> None:
        if self._inflater is None:
            self._take(data, at_ns)
            return
        for part in self._inflater.feed(data):
            self._take(part, at_ns)
        if self._inflater.broken:
            self._fail(self._inflater.broken)

    def _take(self, data: bytes, at_ns: int) -> None:
        if self._body is _Body.UNKNOWN:
            self._decide(data)
        if self._body is _Body.EVENTS:
            for event in self._sse.feed(data):
                if self._done:
                    break
                self._on_event(event, at_ns)
        elif self._body is _Body.JSON:
            self._buffer += data
            if len(self._buffer) > MAX_BODY_BYTES:
                self._buffer.clear()
                self._body = _Body.SKIP
                self._opaque = True
                self._warn("body: too large to read, its tokens and finish reasons are unknown")

    def _decide(self, data: bytes) -> None:
        """JSON or events, by the first byte that tells; a content type alone is not to be trusted."""
        first = data.lstrip(_BOM_AND_SPACE)[:1]
        if first == b"{" or first == b"[" or (first and not self._streamed and first not in b":deir"):
            self._body = _Body.JSON
            self._streamed = False
        elif first:
            self._body = _Body.EVENTS
            self._streamed = True
        # Blank so far: nothing is lost by leaving blanks out.

    def _close(self, seen_ns: int) -> None:
        if self._body is _Body.EVENTS:
            for event in self._sse.close():
                # What stands here lacked its final line end. Cut short, it is no event.
                if event.data != b"[DONE]" and not _is_json(event.data):
                    continue
                self._on_event(event, seen_ns)
            if self._events == 0 and self._sse.junk:
                self._fail("no event among the bytes of the stream")
        elif self._body is _Body.JSON:
            self._on_answer(bytes(self._buffer))
        self._buffer.clear()

    # --- what the bytes say ----------------------------------------------------

    def _on_event(self, event: SseEvent, at_ns: int) -> None:
        self._events += 1
        if event.oversize:
            self._warn("event: one was too large to read")
            return
        data = event.data
        if data == b"[DONE]" or (data.startswith(b"[") and data.strip() == b"[DONE]"):
            self._end_seen = True
            self._body = _Body.SKIP
            return
        if data.isspace():
            return
        try:
            facts = read_event(self._api, event.name, _decode(data))
        except (ValueError, RecursionError):
            self._fail(f"event {self._events} is not JSON")
            return
        except Unreadable as reason:
            self._fail(f"event {self._events}: {reason}")
            return
        self._apply(facts, at_ns)

    def _on_answer(self, data: bytes) -> None:
        try:
            facts = read_answer(self._api, _decode(data.removeprefix(b"\xef\xbb\xbf")))
        except (ValueError, RecursionError):
            self._fail("the answer is not JSON")
            return
        except Unreadable as reason:
            self._fail(str(reason))
            return
        self._apply(facts, None)
        self._end_seen = True

    def _apply(self, facts: Facts, at_ns: int | None) -> None:
        """Take in what an event (at its time) or a whole answer (no time) says."""
        if facts.error:
            self._error_event = True
        if facts.model and not self._model:
            self._model = facts.model[:256]
        for delta in facts.deltas:
            track = self._tracks.get(delta.choice)
            if track is None:
                if delta.choice >= _MAX_CHOICES:
                    self._fail("a choice's index is out of range")
                    return
                track = self._tracks[delta.choice] = Track(delta.choice, skip=self._echo)
            if delta.finish is not None:
                track.finish = delta.finish
            if delta.output and track.skip:
                track.skip -= 1
            elif delta.output:
                if self._capture:
                    track.keep_text(delta.text, self._capture)
                if at_ns is not None:
                    cumulative = facts.usage.output if facts.usage is not None else None
                    self._mark(track, at_ns, delta.answer, cumulative)
        if facts.usage is not None:
            self._merge(facts.usage, whole=not facts.deltas or len(self._tracks) <= 1)
        if facts.end:
            self._end_seen = True
            self._body = _Body.SKIP

    def _mark(self, track: Track, at_ns: int, answer: bool, cumulative: int | None) -> None:
        if self.first_ns is None:
            self.first_ns = at_ns
        if answer and track.first_answer_ns is None:
            track.first_answer_ns = at_ns
        self.output_chunks += 1
        if self.output_chunks > MAX_TIMES:
            self._warn("gaps: too many output chunks, of the later gaps only the longest is kept")
            track.mark_over(at_ns)
            return
        track.times_ns.append(at_ns)
        track.cumulative.append(-1 if cumulative is None else cumulative)

    def _merge(self, usage: Usage, *, whole: bool) -> None:
        old = self._usage
        self._usage = Usage(
            *(
                before if now is None else now
                for before, now in (
                    (old.prompt, usage.prompt),
                    (old.output, usage.output),
                    (old.cached, usage.cached),
                    (old.reasoning, usage.reasoning),
                    (old.accepted, usage.accepted),
                )
            )
        )
        if whole and usage.output is not None:
            self._total_tokens = usage.output

    @property
    def _done(self) -> bool:
        """Nothing more is to be learnt from the body."""
        return self._body is _Body.SKIP

    # --- the end ---------------------------------------------------------------

    def _warn(self, text: str) -> None:
        self._warnings.setdefault(text)

    def _fail(self, reason: str) -> None:
        if self._malformed is None:
            self._malformed = reason
        self._body = _Body.SKIP
        self._buffer.clear()

    def _broken(self, error: Exception) -> None:
        # A fault of ours must not take the request with it; the class alone says nothing private.
        self._fail(f"could not be read ({type(error).__name__})")

    def _record(self, end: End, end_ns: int) -> RequestRecord:
        tracks = [self._tracks[index] for index in sorted(self._tracks)]
        total = self._total_tokens
        if total is None and len(tracks) > 1:
            told = [track.tokens_told() for track in tracks]
            known = [count for count in told if count is not None]
            total = sum(known) if len(known) == len(told) else None
        streamed = self._streamed
        choices, tokens, estimated = tracks_.choice_records(
            tracks, total, streamed=streamed, capture=self._capture > 0
        )
        if not streamed or self._opaque:
            tokens, estimated = total, False
        if self._status is None:
            # No answer: it is what was asked for; of a generating request a stream unless said otherwise.
            streamed = self._api.generates if self._asked_stream is None else self._asked_stream
        finishes = {track.index: track.finish for track in tracks}
        ending = Ending(
            status=self._status,
            end=end,
            generates=self._api.generates,
            streamed=streamed,
            proper_end=self._end_seen,
            finishes=finishes,
            choices=self._choices,
            error_event=self._error_event,
            malformed=self._malformed,
            unreadable=self._opaque,
        )
        outcome, kind, reason = outcome_of(ending)
        if streamed and total is not None and total < self.output_chunks:
            self._warn("usage: fewer tokens than output chunks")
        ends = [track.last_ns for track in tracks if track.last_ns is not None] if streamed else []
        answers = [track.first_answer_ns for track in tracks if track.first_answer_ns is not None]
        gaps = tuple(gap for track in tracks for gap in track.gaps_ns())
        return RequestRecord(
            api=self._api,
            model=self._model,
            streamed=streamed,
            start_ns=self._start_ns,
            end_ns=end_ns,
            outcome=outcome,
            status=self._status,
            error_kind=kind,
            error=reason,
            first_ns=self.first_ns,
            last_ns=max(ends, default=None),
            output_chunks=self.output_chunks,
            output_tokens=tokens,
            tokens_estimated=estimated,
            prompt_tokens=self._usage.prompt,
            cached_tokens=self._usage.cached,
            reasoning_tokens=self._usage.reasoning,
            accepted_tokens=self._usage.accepted,
            choices=choices,
            gaps_ns=gaps,
            token_gaps_ns=tracks_.token_gaps_ns(tracks),
            chunk_tokens=tracks_.chunk_tokens(tracks),
            first_answer_ns=min(answers, default=None),
            retry_after_s=self._retry_after_s,
            warnings=tuple(self._warnings),
            stream_gaps_ns=gaps if len(tracks) == 1 else tracks_.stream_gaps_ns(tracks),
        )


def _decode(data: bytes) -> object:
    # As the standard has it: bytes that are no UTF-8 become U+FFFD. Control characters may stand in strings.
    return json.loads(data.decode("utf-8", "replace"), strict=False)


def _is_json(data: bytes) -> bool:
    try:
        _decode(data)
    except (ValueError, RecursionError):
        return False
    return True
