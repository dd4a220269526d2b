"""What costs goodput, in sentences: from badput by bucket and the evidence of that time. Pure.

Each finding says what happened, what speaks for it, how sure that makes it, and what would help. ``sure`` is
"high" when the evidence shows the cause itself, "medium" when it fits and nothing speaks against it, "low"
when only the requests' own times are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sidecar.derive.evidence import Evidence
from sidecar.derive.windows import Summary


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds a class is judged by, seconds; ``None``: no bound."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One cause. ``share`` is of the eligible requests, ``requests`` how many those were."""

    bucket: str
    requests: int
    share: float
    what: str
    evidence: str
    sure: str
    help: str

    @property
    def sentence(self) -> str:
        """All of it as one line for a person."""
        return f"{self.what} {self.evidence} ({self.sure} confidence). What would help: {self.help}"


@dataclass(frozen=True, slots=True)
class Scene:
    """All that an explanation may look at."""

    summary: Summary
    evidence: Evidence
    bounds: Bounds
    peak_load: float | None = None  # requests in flight at the measured peak


def explain(scene: Scene) -> list[Finding]:
    """The findings of one window, the costliest first; empty when nothing eligible was bad."""
    counts = scene.summary.counts
    found = []
    for bucket, requests in counts.badput.items():
        if requests and bucket in _RULES:
            share = requests / counts.eligible
            evidence, sure, help_text = _RULES[bucket](scene)
            what = f"{_percent(share)} of requests {_WHAT[bucket]}."
            found.append(Finding(bucket, requests, share, what, evidence, sure, help_text))
    return sorted(found, key=lambda finding: (-finding.requests, finding.bucket))


def headline(summary: Summary, findings: list[Finding]) -> str:
    """One sentence on the whole."""
    counts = summary.counts
    if not counts.eligible:
        return "Nothing to judge in this window: no eligible request has finished."
    if not findings:
        return f"All {counts.eligible} requests were good ({summary.goodput_rps:.3g} good requests/s)."
    worst = findings[0]
    return (
        f"{_percent(counts.good / counts.eligible)} of {counts.eligible} requests were good "
        f"({summary.goodput_rps:.3g}/s); most is lost to {worst.bucket}: {_percent(worst.share)}."
    )


_WHAT = {
    "error": "failed",
    "rejected": "were refused by the server (429 or 503)",
    "queue": "had their first token late, and waited for most of that time",
    "prefill": "had their first token late, though they hardly waited",
    "stall": "had a gap in their stream that broke the SLO",
    "preemption": "stalled while the engine preempted requests",
    "decode": "had their tokens too slowly",
    "e2e": "took too long as a whole",
    "abandoned": "were given up by clients after a bound was broken",
}


def _queue(scene: Scene) -> tuple[str, str, str]:
    seen, help_text = scene.evidence, "fewer concurrent requests, or a second replica"
    if scene.peak_load is not None and seen.running_mean is not None:
        in_flight = seen.running_mean + (seen.waiting_mean or 0.0)
        help_text = (
            f"at most {scene.peak_load:g} requests in flight (the measured peak; {in_flight:.3g} now), "
            "or a second replica"
        )
    if seen.waiting_mean is None:
        return "The engine does not say how many requests wait", "low", help_text + "."
    text = f"On average {seen.waiting_mean:.3g} requests waited (at most {_n(seen.waiting_max)})"
    if seen.running_mean is not None:
        text += f" behind {seen.running_mean:.3g} running"
    if seen.kv_usage_max is not None and seen.kv_usage_max >= 0.9:
        text += f", with the KV cache {_percent(seen.kv_usage_max)} full"
        help_text = "more KV space (it is what holds the queue back), " + help_text
    return text, "high" if seen.waiting_mean >= 0.5 else "medium", help_text + "."


def _prefill(scene: Scene) -> tuple[str, str, str]:
    seen = scene.evidence
    out_of_reach = _unreachable(scene, "ttft", scene.bounds.ttft_s)
    if out_of_reach:
        return out_of_reach
    parts = []
    if seen.prompt_tokens_mean is not None:
        parts.append(f"prompts had {seen.prompt_tokens_mean:.4g} tokens on average")
    if seen.waiting_mean is not None:
        parts.append(f"{seen.waiting_mean:.3g} requests waited on average")
    if seen.prefix_hit_ratio is not None:
        parts.append(f"{_percent(seen.prefix_hit_ratio)} of prompt tokens came from the prefix cache")
    text = "; ".join(parts)
    sure = "high" if seen.waiting_mean is not None and seen.waiting_mean < 0.5 else "medium"
    help_text = (
        "prefix caching, shorter prompts, chunked prefill with a larger budget, "
        "or a TTFT bound that grows with the prompt."
    )
    return (
        (text[:1].upper() + text[1:] if text else "Only the requests' own times are known"),
        (sure if text else "low"),
        help_text,
    )


def _decode(scene: Scene) -> tuple[str, str, str]:
    seen = scene.evidence
    out_of_reach = _unreachable(scene, "tpot", scene.bounds.tpot_s)
    if out_of_reach:
        return out_of_reach
    if seen.running_mean is None:
        return (
            "The engine does not say how large its batch is",
            "low",
            "fewer concurrent requests, or a second replica.",
        )
    text = f"The running batch was {seen.running_mean:.3g} on average"
    help_text = "a smaller batch (max-num-seqs), or a second replica."
    sure = "medium"
    if scene.peak_load is not None and seen.running_mean > scene.peak_load:
        text += f", beyond the {scene.peak_load:g} at which goodput peaks"
        sure = "high"
    return text, sure, help_text


def _stall(scene: Scene) -> tuple[str, str, str]:
    seen = scene.evidence
    gap = scene.summary.latencies["itl"].max_s
    text = f"The longest gap was {_seconds(gap)}" if gap is not None else "Gaps were seen in the streams"
    if seen.preemptions == 0:
        text += ", and nothing was preempted"
    if seen.prompt_tokens_mean is not None and seen.prompt_tokens_mean >= 2000:
        text += f"; prompts of {seen.prompt_tokens_mean:.4g} tokens were prefilled between tokens"
        return text, "medium", "chunked prefill with a smaller token budget, or prefill on other replicas."
    return text, "low", "chunked prefill with a smaller token budget; look for pauses of the host or network."


def _preemption(scene: Scene) -> tuple[str, str, str]:
    seen = scene.evidence
    text = f"The engine preempted {_n(seen.preemptions)} times"
    if seen.kv_usage_max is not None:
        text += f" with the KV cache up to {_percent(seen.kv_usage_max)} full"
    sure = "high" if seen.preemptions else "medium"
    return (
        text,
        sure,
        "more KV space (memory share, FP8 KV cache, tensor parallelism) or fewer concurrent requests.",
    )


def _error(scene: Scene) -> tuple[str, str, str]:
    kinds = {k: v for k, v in scene.summary.counts.errors.items() if k != "client"}
    if not kinds:
        return "The kinds of failure are not known", "low", "the server's log."
    kind = max(kinds, key=lambda k: kinds[k])
    text = "By kind: " + ", ".join(f"{k} {v}" for k, v in sorted(kinds.items(), key=lambda kv: -kv[1]))
    return text, "high", _ERROR_HELP.get(kind, "the server's log.")


_ERROR_HELP = {
    "connect": "a running server at the upstream address.",
    "reset": "the server's log: it broke connections off, as when it crashes or runs out of memory.",
    "timeout": "longer limits, or less load.",
    "http": "the server's log: it answered with errors.",
    "stream": "the server's log: it reported errors inside answers that had begun.",
    "incomplete": "the server's log, and any proxy between: answers ended before their end.",
    "malformed": "checking that the upstream speaks the OpenAI protocol.",
}


def _rejected(scene: Scene) -> tuple[str, str, str]:
    text = "The server answers 429 or 503 when it will take no more"
    if scene.evidence.waiting_max:
        text += f"; its queue reached {scene.evidence.waiting_max:.3g}"
    return text, "high", "a second replica, or clients that wait as Retry-After says."


def _e2e(scene: Scene) -> tuple[str, str, str]:
    p50 = scene.summary.latencies["e2e"].quantiles_s["p50"]
    text = (
        f"Half of the requests took {_seconds(p50)} or more"
        if p50 is not None
        else "Whole times are not known"
    )
    return (
        text,
        "medium",
        "a limit on output tokens, a smaller batch, or an E2E bound that fits the answers' length.",
    )


def _abandoned(scene: Scene) -> tuple[str, str, str]:
    p50 = scene.summary.latencies["ttft"].quantiles_s["p50"]
    text = "Clients hung up after waiting longer than their SLO allows"
    if p50 is not None:
        text += f"; half of all first tokens took {_seconds(p50)} or more"
    return text, "high", "whatever shortens the wait: see the other findings, or a second replica."


def _unreachable(scene: Scene, latency: str, bound_s: float | None) -> tuple[str, str, str] | None:
    """Half of the requests miss the bound although the engine has next to nothing to do."""
    p50 = scene.summary.latencies[latency].quantiles_s["p50"]
    running = scene.evidence.running_mean
    if bound_s is None or p50 is None or running is None or p50 <= bound_s or running > 1.5:
        return None
    if scene.evidence.waiting_max:
        return None
    return (
        f"Even with {running:.2g} requests running half of them need {_seconds(p50)}; "
        f"the bound is {_seconds(bound_s)}",
        "medium",
        f"another {latency.upper()} bound (no load meets this one here), or a faster model or GPU.",
    )


_RULES: Mapping[str, Callable[[Scene], tuple[str, str, str]]] = {
    "queue": _queue,
    "prefill": _prefill,
    "decode": _decode,
    "stall": _stall,
    "preemption": _preemption,
    "error": _error,
    "rejected": _rejected,
    "e2e": _e2e,
    "abandoned": _abandoned,
}


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _seconds(value: float) -> str:
    return f"{1000 * value:.3g} ms" if value < 1 else f"{value:.3g} s"


def _n(value: float | None) -> str:
    return "an unknown number of" if value is None else f"{value:.4g}"
