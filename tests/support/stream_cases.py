"""Plays the stream and judge cases into the product: their neutral names on one side, ours on the other."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from sidecar.requests.apis import api_of
from sidecar.requests.records import Api, ChoiceRecord, End, ErrorKind, Outcome, RequestRecord
from sidecar.requests.slo import SloClass
from sidecar.requests.stream import StreamMeter

ENDS = {"eof": End.EOF, "reset": End.RESET, "client_left": End.CLIENT_LEFT}


def ns(seconds: float) -> int:
    """The cases' exact decimals in nanoseconds."""
    return round(seconds * 1e9)


def pieces(case_input: dict[str, Any]) -> Iterator[tuple[int, bytes]]:
    """(arrival in nanoseconds, bytes) of each piece."""
    for piece in case_input["pieces"]:
        b64 = piece.get("data_b64", piece.get("b64"))
        yield ns(piece["t"]), base64.b64decode(b64) if b64 is not None else piece["data"].encode()


def play(
    case_input: dict[str, Any], *, bytewise: bool = False, capture_chars: int = 100_000
) -> RequestRecord:
    """Feed one stream case to a meter, whole pieces or single bytes at their piece's time."""
    start_ns = ns(case_input["start"])
    meter = StreamMeter(
        api_of("POST", case_input["endpoint"]),
        start_ns=start_ns,
        choices=case_input["choices"],
        capture_chars=capture_chars,
    )
    headers = [("Content-Type", case_input["content_type"]), *case_input.get("headers", {}).items()]
    meter.on_headers(case_input["status"], headers, start_ns)
    for at_ns, data in pieces(case_input):
        if bytewise:
            for i in range(len(data)):
                meter.feed(data[i : i + 1], at_ns)
        else:
            meter.feed(data, at_ns)
    return meter.finish(ENDS[case_input["end"]["how"]], ns(case_input["end"]["t"]))


def judged_record(request: dict[str, Any]) -> RequestRecord:
    """A record with the figures that a judge case states."""
    outcome = Outcome(request["outcome"])
    e2e_ns = request.get("waited_ns", request["e2e_ns"])
    first_ns = request.get("ttft_ns")
    tokens = request["n"]
    choices: tuple[ChoiceRecord, ...] = ()
    last_ns = first_ns
    if first_ns is not None:
        chunks = tokens if tokens > 1 else 1
        last_ns = first_ns + request.get("tpot_ns", 0) * max(0, tokens - 1)
        choices = (ChoiceRecord(0, chunks, first_ns, last_ns, tokens, False, "stop"),)
    return RequestRecord(
        api=Api.CHAT,
        model="demo",
        streamed=True,
        start_ns=0,
        end_ns=e2e_ns,
        outcome=outcome,
        error_kind=ErrorKind.HTTP if outcome is Outcome.ERROR else None,
        first_ns=first_ns,
        last_ns=last_ns,
        output_chunks=sum(choice.output_chunks for choice in choices),
        output_tokens=tokens,
        choices=choices,
        gaps_ns=tuple(request.get("gaps_ns", ())),
        queue_ns=request.get("queue_ns"),
        preemptions_rose=request.get("preemptions_rose", False),
    )


def slo_of(bounds_ns: dict[str, int]) -> SloClass:
    """An SLO class from a judge case's bounds in nanoseconds."""
    return SloClass(
        name="case", **{key.removesuffix("_ns") + "_s": value / 1e9 for key, value in bounds_ns.items()}
    )
