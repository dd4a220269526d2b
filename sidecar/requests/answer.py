"""What is known of one answer so far, and the record it makes at its end. No bytes, no clock."""

from __future__ import annotations

from itertools import chain

from sidecar.requests import tracks as tracks_
from sidecar.requests.events import Facts, Usage
from sidecar.requests.outcome import Ending, outcome_of
from sidecar.requests.records import Api, End, RequestRecord
from sidecar.requests.text import name_of
from sidecar.requests.tracks import Room, Track

_MAX_CHOICES = 256  # kept apart, or as many as the request asked for if that is more


class Answer:
    """Takes in what events and headers say. ``skip``: output events at a choice's start that are an echo."""

    __slots__ = (
        "_room",
        "_usage",
        "_warnings",
        "answered_by",
        "api",
        "capture",
        "choices",
        "end_seen",
        "error_event",
        "first_chunk_ns",
        "first_ns",
        "malformed",
        "model",
        "opaque",
        "response_id",
        "retry_after_s",
        "skip",
        "status",
        "streamed",
        "total_tokens",
        "tracks",
    )

    def __init__(self, api: Api, *, choices: int, model: str, capture: int, skip: int) -> None:
        self.api = api
        self.choices = choices
        self.model = name_of(model)
        self.capture = capture
        self.skip = skip
        self.status: int | None = None
        self.retry_after_s: float | None = None
        self.streamed = False
        self.opaque = False  # the body is not ours to read: its encoding or its size
        self.end_seen = False
        self.error_event = False
        self.malformed: str | None = None
        self.tracks: dict[int, Track] = {}
        self.first_ns: int | None = None
        self.first_chunk_ns: int | None = None  # of any event, be it without output
        self.answered_by = ""  # the model's name in the answer
        self.response_id = ""
        self.total_tokens: int | None = None  # over all choices, as told
        self._room = Room()
        self._usage = Usage()
        self._warnings: dict[str, None] = {}

    @property
    def output_chunks(self) -> int:
        """Output chunks so far."""
        return sum(track.chunks for track in self.tracks.values())

    def warn(self, text: str) -> None:
        """Note something that a reader of the record should know; once."""
        self._warnings.setdefault(text)

    def take(self, facts: Facts, at_ns: int | None) -> bool:
        """Take in what an event (at its time) or a whole answer (no time) says. False: it cannot be so."""
        if facts.error:
            self.error_event = True
        if self.first_chunk_ns is None:
            self.first_chunk_ns = at_ns
        self.answered_by = self.answered_by or facts.model
        self.response_id = self.response_id or facts.id
        if facts.model and not self.model:
            self.model = facts.model
        # Tokens told beside several choices are those of all of them, and so of none.
        told = facts.usage.output if facts.usage is not None and len(facts.deltas) == 1 else None
        for delta in facts.deltas:
            track = self.tracks.get(delta.choice)
            if track is None:
                if delta.choice >= max(_MAX_CHOICES, self.choices):
                    return False
                track = self.tracks[delta.choice] = Track(delta.choice, self._room, skip=self.skip)
            if delta.finish is not None:
                track.finish = delta.finish
            if delta.output and track.skip:
                track.skip -= 1
            elif delta.output:
                if self.capture:
                    track.keep_text(delta.text, self.capture)
                if at_ns is not None:
                    if delta.answer and track.first_answer_ns is None:
                        track.first_answer_ns = at_ns
                    self.mark(track, at_ns, -1 if told is None else told)
        if facts.usage is not None:
            self.merge(facts, whole=at_ns is None)
        if facts.end:
            self.end_seen = True
        return True

    def mark(self, track: Track, at_ns: int, tokens: int) -> None:
        """An output chunk of one choice, and the tokens told with it (-1: none)."""
        if self.first_ns is None:
            self.first_ns = at_ns
        if not track.mark(at_ns, tokens):
            self.warn("gaps: too many output chunks, of the later gaps only the longest is kept")

    def merge(self, facts: Facts, *, whole: bool = False) -> None:
        """Take in an event's token counts, or (``whole``) those of an answer that was not streamed.

        Usage beside one choice counts that choice's tokens so far, usage on its own those of all choices.
        """
        usage, old = facts.usage, self._usage
        if usage is None:
            return
        self._usage = Usage(
            # All of these only ever grow; some servers send 0 for the prompt at the end.
            prompt=_greater(old.prompt, usage.prompt),
            cached=_greater(old.cached, usage.cached),
            reasoning=_greater(old.reasoning, usage.reasoning),
            accepted=_greater(old.accepted, usage.accepted),
        )
        if usage.output is None:
            return
        if whole or len(facts.deltas) != 1:
            self.total_tokens = usage.output
        else:
            track = self.tracks[facts.deltas[0].choice]
            track.told = _greater(track.told, usage.output)

    def record(self, end: End, *, start_ns: int, end_ns: int, asked_stream: bool | None) -> RequestRecord:
        """The record of the finished answer. ``asked_stream``: what it was to be, should none have come."""
        tracks = [self.tracks[index] for index in sorted(self.tracks)]
        for track in tracks:
            track.close()
        total = self.total_tokens
        if total is None and tracks:
            known = [track.told for track in tracks if track.told is not None]
            total = sum(known) if len(known) == len(tracks) else None
        streamed = self.streamed
        choices, tokens, estimated = tracks_.choice_records(
            tracks, total, streamed=streamed, capture=self.capture > 0
        )
        if not streamed or self.opaque:
            tokens, estimated = total, False
        if self.status is None:
            # No answer: it is what was asked for; of a generating request a stream unless said otherwise.
            streamed = self.api.generates if asked_stream is None else asked_stream
        finishes = {track.index: track.finish for track in tracks}
        ending = Ending(
            status=self.status,
            end=end,
            generates=self.api.generates,
            streamed=streamed,
            proper_end=self.end_seen,
            finishes=finishes,
            choices=self.choices,
            error_event=self.error_event,
            malformed=self.malformed,
            unreadable=self.opaque,
        )
        outcome, kind, reason = outcome_of(ending)
        chunks = self.output_chunks
        if streamed and total is not None and total < chunks:
            self.warn("usage: fewer tokens than output chunks")
        ends = [track.last_ns for track in tracks if track.last_ns is not None] if streamed else []
        answers = [track.first_answer_ns for track in tracks if track.first_answer_ns is not None]
        gaps = tuple(chain.from_iterable(track.gaps_ns() for track in tracks))
        return RequestRecord(
            api=self.api,
            model=self.model,
            streamed=streamed,
            start_ns=start_ns,
            end_ns=max([end_ns, *ends]),
            outcome=outcome,
            status=self.status,
            error_kind=kind,
            error=reason,
            first_ns=self.first_ns,
            last_ns=max(ends, default=None),
            output_chunks=chunks,
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
            retry_after_s=self.retry_after_s,
            warnings=tuple(self._warnings),
            extra=self._extra(),
            stream_gaps_ns=gaps if len(tracks) == 1 else tracks_.stream_gaps_ns(tracks),
        )

    def _extra(self) -> dict[str, str]:
        """What only spans tell; times in the record's clock."""
        first = "" if self.first_chunk_ns is None else str(self.first_chunk_ns)
        told = {"response_id": self.response_id, "response_model": self.answered_by, "first_chunk_ns": first}
        return {key: value for key, value in told.items() if value}


def _greater(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
