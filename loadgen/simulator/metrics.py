"""The engine's own books, and the page they make: names, types, labels and buckets of vLLM 0.32.

Two deliberate differences from what a real page shows. ``request_success_total`` counts requests whose
client left under ``abort``; vLLM 0.32 leaves that at zero on a client's disconnect. And only families that
this simulator can fill truthfully are there: no multi-modal, LoRA or KV transfer families.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from loadgen.simulator.profile import Profile

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"  # as vLLM sends it

_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
)
_TTFT_BUCKETS = (*_TTFT, 160.0, 640.0, 2560.0)
_TOKEN_GAP_BUCKETS = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5),
    *(0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
_REQUEST_TIME_BUCKETS = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_ITERATION_BUCKETS = (1.0, *(float(2**i) for i in range(3, 15)))
_PREEMPTION_BUCKETS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)
_N_BUCKETS = (1.0, 2.0, 5.0, 10.0, 20.0)


def _one_two_five(limit: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 ... up to ``limit``, as vLLM builds its token buckets."""
    edges: list[float] = []
    power = 1
    while True:
        for digit in (1, 2, 5):
            if digit * power > limit:
                return tuple(edges)
            edges.append(float(digit * power))
        power *= 10


class Histogram:
    """Counts by upper edge (inclusive), and the sum."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value


class EngineStats:
    """What vLLM counts, counted where it happens. Times come in nanoseconds and are kept in seconds."""

    def __init__(self, max_model_len: int) -> None:
        lengths = _one_two_five(max_model_len)
        self.steps = 0
        self.flops = 0.0
        self.read_bytes = 0.0
        self.write_bytes = 0.0
        self.preemptions = 0
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.success = {"stop": 0, "length": 0, "abort": 0, "error": 0, "repetition": 0}
        self.queue_rejections = 0
        self.ttft = Histogram(_TTFT_BUCKETS)
        self.itl = Histogram(_TOKEN_GAP_BUCKETS)
        self.tpot = Histogram(_TOKEN_GAP_BUCKETS)
        self.e2e = Histogram(_REQUEST_TIME_BUCKETS)
        self.queue = Histogram(_REQUEST_TIME_BUCKETS)
        self.inference = Histogram(_REQUEST_TIME_BUCKETS)
        self.prefill = Histogram(_REQUEST_TIME_BUCKETS)
        self.decode = Histogram(_REQUEST_TIME_BUCKETS)
        self.iteration_tokens = Histogram(_ITERATION_BUCKETS)
        self.request_preemptions = Histogram(_PREEMPTION_BUCKETS)
        self.request_prompt = Histogram(lengths)
        self.request_generation = Histogram(lengths)
        self.request_max_tokens = Histogram(lengths)
        self.request_n = Histogram(_N_BUCKETS)

    def step(self, *, flops: float, read_bytes: float, write_bytes: float) -> None:
        self.steps += 1
        self.flops += flops
        self.read_bytes += read_bytes
        self.write_bytes += write_bytes

    def step_ended(self, tokens: int) -> None:
        """``tokens`` as vLLM counts them: generated, plus whole prompts whose prefill ended in this step."""
        self.iteration_tokens.observe(tokens)

    def first_token(self, prompt_tokens: int, since_arrival_ns: int) -> None:
        self.prompt_tokens += prompt_tokens
        self.generation_tokens += 1
        self.ttft.observe(since_arrival_ns / 1e9)

    def next_token(self, gap_ns: int) -> None:
        self.generation_tokens += 1
        self.itl.observe(gap_ns / 1e9)

    def preempted(self) -> None:
        self.preemptions += 1

    def aborted(self, reason: str) -> None:
        self.success[reason] += 1

    def finished(
        self,
        *,
        reason: str,
        prompt_tokens: int,
        output_tokens: int,
        max_tokens: int,
        preemptions: int,
        arrival_ns: int,
        scheduled_ns: int,
        first_token_ns: int,
        last_token_ns: int,
    ) -> None:
        self.success[reason] += 1
        decode_s = (last_token_ns - first_token_ns) / 1e9
        self.e2e.observe((last_token_ns - arrival_ns) / 1e9)
        self.queue.observe((scheduled_ns - arrival_ns) / 1e9)
        self.prefill.observe((first_token_ns - scheduled_ns) / 1e9)
        self.decode.observe(decode_s)
        self.inference.observe((last_token_ns - scheduled_ns) / 1e9)
        # vLLM observes 0 for a single token, where TPOT is undefined; a page that did otherwise would not
        # be vLLM's.
        self.tpot.observe(decode_s / (output_tokens - 1) if output_tokens > 1 else 0.0)
        self.request_prompt.observe(prompt_tokens)
        self.request_generation.observe(output_tokens)
        self.request_max_tokens.observe(max_tokens)
        self.request_preemptions.observe(preemptions)


class _Page:
    """Text exposition: families in order, labels sorted, ``_created`` after counters and histograms."""

    def __init__(self, common: Mapping[str, str], created_s: float) -> None:
        self._lines: list[str] = []
        self._common = dict(common)
        self._created_s = created_s

    def text(self) -> str:
        return "\n".join(self._lines) + "\n"

    def head(self, name: str, kind: str, doc: str) -> None:
        self._lines += (f"# HELP {name} {doc}", f"# TYPE {name} {kind}")

    def sample(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        inside = ",".join(f'{key}="{_escape(labels[key])}"' for key in sorted(labels))
        self._lines.append(f"{name}{{{inside}}} {float(value)!r}" if inside else f"{name} {float(value)!r}")

    def gauge(self, name: str, doc: str, value: float, **labels: str) -> None:
        self.head(name, "gauge", doc)
        self.sample(name, value, self._common | labels)

    def counter(
        self, name: str, doc: str, values: Iterable[tuple[Mapping[str, str], float]], *, bare: bool = False
    ) -> None:
        """``name`` without ``_total``; ``bare``: without the engine's labels."""
        common = {} if bare else self._common
        rows = [(common | dict(labels), value) for labels, value in values]
        self.head(f"{name}_total", "counter", doc)
        for labels, value in rows:
            self.sample(f"{name}_total", value, labels)
        self.head(f"{name}_created", "gauge", doc)
        for labels, _ in rows:
            self.sample(f"{name}_created", self._created_s, labels)

    def histogram(self, name: str, doc: str, histogram: Histogram) -> None:
        self.head(name, "histogram", doc)
        cumulative = 0
        edges = [repr(edge) for edge in histogram.edges] + ["+Inf"]
        for edge, count in zip(edges, histogram.counts, strict=True):
            cumulative += count
            self.sample(f"{name}_bucket", cumulative, self._common | {"le": edge})
        self.sample(f"{name}_count", cumulative, self._common)
        self.sample(f"{name}_sum", histogram.total, self._common)
        self.head(f"{name}_created", "gauge", doc)
        self.sample(f"{name}_created", self._created_s, self._common)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def render_page(
    profile: Profile,
    stats: EngineStats,
    *,
    running: int,
    waiting: int,
    deferred: int,
    kv_usage: float,
    started_wall_s: float,
    cpu_s: float,
    python_version: str,
    http_requests: Mapping[tuple[str, str, str], int],
) -> str:
    """The whole ``/metrics`` page.

    ``deferred``: how many of ``waiting`` were preempted and wait to be computed again. ``http_requests``:
    answers by (handler, method, status class).
    """
    labels = {"engine": "0", "model_name": profile.model_name}
    page = _Page(labels, started_wall_s)
    page.head("python_info", "gauge", "The interpreter that runs the simulator")
    page.sample("python_info", 1, {"implementation": "CPython", "version": python_version})
    for name, kind, doc, value in (
        (
            "process_start_time_seconds",
            "gauge",
            "Start of the process, seconds of the Unix epoch",
            started_wall_s,
        ),
        ("process_cpu_seconds_total", "counter", "User and system CPU time of the process in seconds", cpu_s),
    ):
        page.head(name, kind, doc)
        page.sample(name, value, {})

    def plain(name: str, doc: str, value: float) -> None:
        page.counter(name, doc, [({}, value)])

    def by(name: str, doc: str, label: str, values: Mapping[str, float]) -> None:
        page.counter(name, doc, [({label: key}, value) for key, value in values.items()])

    plain("vllm:estimated_flops_per_gpu", "Floating point operations done, by the roofline", stats.flops)
    plain("vllm:estimated_read_bytes_per_gpu", "Bytes read from memory, by the roofline", stats.read_bytes)
    plain("vllm:estimated_write_bytes_per_gpu", "Bytes written to memory, by the roofline", stats.write_bytes)
    page.gauge("vllm:num_requests_running", "Requests in the batch", running)
    page.gauge("vllm:num_requests_waiting", "Requests waiting for the batch", waiting)
    page.head("vllm:num_requests_waiting_by_reason", "gauge", "Waiting requests by why they wait")
    for reason, value in (("capacity", waiting - deferred), ("deferred", deferred)):
        page.sample("vllm:num_requests_waiting_by_reason", value, labels | {"reason": reason})
    page.gauge("vllm:kv_cache_usage_perc", "Share of KV cache blocks in use, 0 to 1", kv_usage)
    plain("vllm:prefix_cache_queries", "Tokens looked up in the prefix cache; it is off here", 0)
    plain("vllm:prefix_cache_hits", "Tokens found in the prefix cache; it is off here", 0)
    plain("vllm:num_preemptions", "Preemptions, each to be computed again", stats.preemptions)
    plain("vllm:prompt_tokens", "Prompt tokens whose prefill is done", stats.prompt_tokens)
    by(
        "vllm:prompt_tokens_by_source",
        "Prompt tokens by where they came from",
        "source",
        {"local_compute": stats.prompt_tokens, "local_cache_hit": 0, "external_kv_transfer": 0},
    )
    plain("vllm:prompt_tokens_cached", "Prompt tokens that needed no computing", 0)
    plain("vllm:generation_tokens", "Tokens generated", stats.generation_tokens)
    by("vllm:request_success", "Requests ended, by reason", "finished_reason", stats.success)
    page.counter(
        "vllm:admission_rejections",
        "Requests refused by a queue limit",
        [
            ({"model_name": profile.model_name, "reason": "max_num_queued_reqs"}, stats.queue_rejections),
            ({"model_name": profile.model_name, "reason": "max_num_queued_tokens"}, 0),
        ],
        bare=True,
    )
    for name, doc, histogram in (
        ("request_prompt_tokens", "Prompt tokens of a request", stats.request_prompt),
        ("request_generation_tokens", "Generated tokens of a request", stats.request_generation),
        ("iteration_tokens_total", "Tokens of one engine step", stats.iteration_tokens),
        ("request_params_n", "The request's n", stats.request_n),
        ("request_params_max_tokens", "The request's max_tokens", stats.request_max_tokens),
        ("time_to_first_token_seconds", "Arrival to first token", stats.ttft),
        ("inter_token_latency_seconds", "Between two tokens of a request", stats.itl),
        ("request_time_per_output_token_seconds", "Decode time per token after the first", stats.tpot),
        ("e2e_request_latency_seconds", "Arrival to last token", stats.e2e),
        ("request_queue_time_seconds", "Arrival to first scheduled", stats.queue),
        ("request_inference_time_seconds", "First scheduled to last token", stats.inference),
        ("request_prefill_time_seconds", "First scheduled to first token", stats.prefill),
        ("request_decode_time_seconds", "First to last token", stats.decode),
        ("request_num_preemptions", "Preemptions of a request", stats.request_preemptions),
    ):
        page.histogram(f"vllm:{name}", doc, histogram)
    page.gauge(
        "vllm:cache_config_info",
        "How the KV cache is set up",
        1,
        block_size=str(profile.block_size),
        cache_dtype="auto",
        enable_prefix_caching="False",
        kv_cache_size_tokens=str(profile.kv_blocks * profile.block_size),
        num_gpu_blocks=str(profile.kv_blocks),
    )
    page.counter(
        "http_requests",
        "Answers by handler, method and status class",
        [
            ({"handler": handler, "method": method, "status": status}, count)
            for (handler, method, status), count in sorted(http_requests.items())
        ],
        bare=True,
    )
    return page.text()
