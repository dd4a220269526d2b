"""Finished requests and scrapes for tests of what is derived from them."""

from __future__ import annotations

from typing import Any

from sidecar.engine.exposition import parse
from sidecar.engine.mapping import map_page
from sidecar.engine.scrape import EngineSnapshot
from sidecar.requests.records import Api, ChoiceRecord, Outcome, RequestRecord

S = 1_000_000_000


def finished(
    *,
    end_s: float = 10.0,
    ttft_s: float | None = 0.2,
    gaps_s: tuple[float, ...] = (0.02,) * 9,
    outcome: Outcome = Outcome.COMPLETED,
    model: str = "demo",
    status: int | None = 200,
    **more: Any,
) -> RequestRecord:
    """A streamed chat request that ended at ``end_s`` with one token a chunk."""
    gaps = tuple(round(gap * S) for gap in gaps_s) if ttft_s is not None else ()
    end_ns = round(end_s * S)
    last_ns = end_ns if ttft_s is not None else None
    first_ns = None if last_ns is None else last_ns - sum(gaps)
    start_ns = end_ns - S if first_ns is None or ttft_s is None else first_ns - round(ttft_s * S)
    tokens = len(gaps) + 1 if first_ns is not None else 0
    choice = ChoiceRecord(0, tokens, first_ns, last_ns, tokens, False, "stop")
    return RequestRecord(
        api=Api.CHAT,
        model=model,
        streamed=True,
        start_ns=start_ns,
        end_ns=end_ns,
        outcome=outcome,
        status=status,
        first_ns=first_ns,
        last_ns=last_ns,
        output_chunks=tokens,
        output_tokens=tokens,
        prompt_tokens=100,
        choices=(choice,) if first_ns is not None else (),
        gaps_ns=gaps,
        **more,
    )


def page(
    *,
    model: str = "demo",
    running: float | None = 0,
    waiting: float | None = 0,
    kv: float = 0.0,
    preemptions: float = 0,
    queue_s: tuple[float, float] | None = None,
    prefill_s: tuple[float, float] | None = None,
    ttft_s: tuple[float, float] | None = None,
    tokens: float = 0,
) -> bytes:
    """A small vLLM page. ``queue_s``, ``prefill_s`` and ``ttft_s`` are (sum, count)."""
    label = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    where = f'{{engine="0",model_name="{label}"}}'
    rows = []

    def row(kind: str, name: str, value: float | None) -> None:
        if value is not None:
            rows.append(f"# TYPE {name} {kind}\n{name}{where} {value}")

    row("gauge", "vllm:num_requests_running", running)
    row("gauge", "vllm:num_requests_waiting", waiting)
    row("gauge", "vllm:kv_cache_usage_perc", kv)
    row("counter", "vllm:num_preemptions_total", preemptions)
    row("counter", "vllm:generation_tokens_total", tokens)
    for name, pair in (
        ("request_queue_time_seconds", queue_s),
        ("request_prefill_time_seconds", prefill_s),
        ("time_to_first_token_seconds", ttft_s),
    ):
        if pair is not None:
            rows.append(
                f"# TYPE vllm:{name} histogram\n"
                f'vllm:{name}_bucket{{engine="0",le="+Inf",model_name="{label}"}} {pair[1]}\n'
                f"vllm:{name}_sum{where} {pair[0]}\nvllm:{name}_count{where} {pair[1]}"
            )
    return ("\n".join(rows) + "\n").encode()


def snapshot(at_s: float, body: bytes | None, *, code: str = "connect") -> EngineSnapshot:
    """A scrape of ``body`` at ``at_s``; ``None`` is a failed one."""
    at_ns = round(at_s * S)
    if body is None:
        return EngineSnapshot(at_ns, False, "no connection", None, None, 0.01, wall_s=at_s, code=code)
    view = map_page(parse(body), "0.32.0")
    return EngineSnapshot(at_ns, True, "", "0.32.0", view, 0.01, len(body), 10, 5, wall_s=at_s)
