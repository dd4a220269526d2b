"""Every metric the sidecar publishes, once: the page takes HELP and TYPE from here, the README its table.

``python -m sidecar.publish.catalog`` prints the table, ``... README.md`` puts it between its markers there.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from sidecar.publish.exposition import Family
from sidecar.publish.gpu_catalog import GPU_METRICS

BEGIN, END = "<!-- metrics:begin -->", "<!-- metrics:end -->"


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric: name as on the text page, type, labels, what it means."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str

    def family(self) -> Family:
        """An empty family to fill."""
        return Family(self.name, self.kind, self.help)


_CLASS = ("model", "class")

METRICS: tuple[Metric, ...] = (
    # Goodput
    Metric(
        "goodput_eligible_requests_total",
        "counter",
        _CLASS,
        "Finished requests that count towards the objective.",
    ),
    Metric("goodput_good_requests_total", "counter", _CLASS, "Eligible requests that met every bound."),
    Metric(
        "goodput_badput_requests_total",
        "counter",
        (*_CLASS, "bucket"),
        "Eligible requests that were not good, by cause.",
    ),
    Metric(
        "goodput_not_eligible_requests_total",
        "counter",
        (*_CLASS, "reason"),
        "Finished requests that do not count, by reason.",
    ),
    Metric(
        "goodput_failed_requests_total",
        "counter",
        (*_CLASS, "kind"),
        "Requests that failed, by kind; kind client is the client's own fault.",
    ),
    Metric("goodput_output_tokens_total", "counter", _CLASS, "Output tokens of all finished requests."),
    Metric("goodput_good_output_tokens_total", "counter", _CLASS, "Output tokens of good requests."),
    Metric(
        "goodput_prompt_tokens_total",
        "counter",
        _CLASS,
        "Prompt tokens of finished requests whose usage was seen.",
    ),
    Metric(
        "goodput_estimated_requests_total",
        "counter",
        _CLASS,
        "Requests whose output tokens were counted by chunks because no usage came.",
    ),
    Metric(
        "goodput_good_requests_per_second",
        "gauge",
        (*_CLASS, "window"),
        "Goodput: good requests per second over the window.",
    ),
    Metric(
        "goodput_good_output_tokens_per_second",
        "gauge",
        (*_CLASS, "window"),
        "Token goodput: output tokens of good requests per second over the window.",
    ),
    Metric(
        "goodput_attainment_ratio",
        "gauge",
        (*_CLASS, "window"),
        "Good / eligible over the window; absent with nothing eligible.",
    ),
    Metric(
        "goodput_fluidity_ratio",
        "gauge",
        (*_CLASS, "window"),
        "Share of output chunks that came before a reader's running deadline, saved slack included.",
    ),
    Metric(
        "goodput_distserve_requests_total",
        "counter",
        _CLASS,
        "Completed requests that met both TTFT and TPOT, whatever their gaps and whole time.",
    ),
    Metric(
        "goodput_distserve_requests_per_second",
        "gauge",
        (*_CLASS, "window"),
        "The same per second over the window; absent without both bounds.",
    ),
    Metric(
        "goodput_distserve_kept_requests_per_second",
        "gauge",
        (*_CLASS, "share", "per"),
        "Highest request rate of half a minute, in the last hour, at which that share met both; per replica "
        "and, where the number of GPUs is known, per GPU (DistServe's goodput, as far as it was seen).",
    ),
    Metric(
        "goodput_ttft_seconds", "histogram", _CLASS, "Time to first token; SLO bounds are among the edges."
    ),
    Metric(
        "goodput_tpot_seconds", "histogram", _CLASS, "Time per output token after the first, per request."
    ),
    Metric("goodput_itl_seconds", "histogram", _CLASS, "Gap between successive output chunks."),
    Metric("goodput_e2e_seconds", "histogram", _CLASS, "Time from request to the end of its answer."),
    # SLO and error budget
    Metric("goodput_slo_bound_seconds", "gauge", ("class", "bound"), "The bounds of each SLO class."),
    Metric(
        "goodput_slo_objective_ratio", "gauge", ("class",), "Share of eligible requests that should be good."
    ),
    Metric(
        "goodput_error_budget_left_ratio",
        "gauge",
        _CLASS,
        "Share of the error budget left, of what was eligible in 30 days; negative when overdrawn.",
    ),
    Metric(
        "goodput_error_budget_burn_rate",
        "gauge",
        (*_CLASS, "window"),
        "How many times faster than allowed the error budget is used; absent below 20 eligible requests.",
    ),
    # Autoscaling
    Metric(
        "goodput_saturation",
        "gauge",
        (),
        "Requests in flight / load at the measured peak; 0 when idle, absent when unknown.",
    ),
    Metric(
        "goodput_in_flight_requests", "gauge", (), "Requests in flight, as the engine says (else the proxy)."
    ),
    Metric(
        "goodput_peak_load_requests",
        "gauge",
        (),
        "Requests in flight at which goodput peaks, from the sweep.",
    ),
    # Engine
    Metric(
        "goodput_engine_up", "gauge", (), "1 when the last scrape of the engine gave a whole page, else 0."
    ),
    Metric("goodput_engine_down_reason", "gauge", ("reason",), "1 for the reason why the engine is not up."),
    Metric("goodput_engine_info", "info", ("server", "version"), "Which server and release the engine is."),
    Metric("goodput_engine_scrapes_total", "counter", (), "Scrapes of the engine's page."),
    Metric("goodput_engine_scrape_failures_total", "counter", ("reason",), "Failed scrapes, by reason."),
    Metric("goodput_engine_scrape_duration_seconds", "gauge", (), "How long the last scrape took."),
    Metric("goodput_engine_scrape_bytes", "gauge", (), "Size of the last good page."),
    Metric("goodput_engine_scrape_lines", "gauge", (), "Lines of the last good page."),
    Metric("goodput_engine_skipped_lines_total", "counter", (), "Malformed lines on otherwise good pages."),
    Metric(
        "goodput_engine_unmapped_families",
        "gauge",
        (),
        "Metric families of the last good page that no catalogue knows.",
    ),
    Metric("goodput_engine_last_scrape_age_seconds", "gauge", (), "Time since the last good page."),
    Metric("goodput_engine_restarts_total", "counter", (), "Engine restarts that were seen."),
    Metric(
        "goodput_engine_running_requests",
        "gauge",
        ("engine", "model"),
        "Requests in the engine's running batch.",
    ),
    Metric(
        "goodput_engine_waiting_requests", "gauge", ("engine", "model"), "Requests waiting in the engine."
    ),
    Metric("goodput_engine_kv_usage_ratio", "gauge", ("engine", "model"), "Share of the KV cache in use."),
    Metric("goodput_engine_preemptions_total", "counter", ("engine", "model"), "Preempted requests."),
    Metric(
        "goodput_engine_prompt_tokens_total",
        "counter",
        ("engine", "model"),
        "Prompt tokens, cached ones too.",
    ),
    Metric("goodput_engine_generation_tokens_total", "counter", ("engine", "model"), "Generated tokens."),
    Metric("goodput_engine_prefix_queries_total", "counter", ("engine", "model"), "Prefix cache look-ups."),
    Metric("goodput_engine_prefix_hits_total", "counter", ("engine", "model"), "Prefix cache hits."),
    Metric(
        "goodput_engine_finished_requests_total",
        "counter",
        ("engine", "model", "reason"),
        "Requests the engine finished, by its finish reason; abort and error are among them.",
    ),
    Metric(
        "goodput_engine_ttft_seconds",
        "histogram",
        ("engine", "model"),
        "The engine's own time to first token.",
    ),
    Metric(
        "goodput_engine_itl_seconds",
        "histogram",
        ("engine", "model"),
        "The engine's own inter-token latency.",
    ),
    Metric(
        "goodput_engine_tpot_seconds",
        "histogram",
        ("engine", "model"),
        "The engine's own time per output token.",
    ),
    Metric(
        "goodput_engine_e2e_seconds", "histogram", ("engine", "model"), "The engine's own request latency."
    ),
    Metric(
        "goodput_engine_queue_seconds",
        "histogram",
        ("engine", "model"),
        "Time requests waited in the engine.",
    ),
    Metric(
        "goodput_engine_prefill_seconds", "histogram", ("engine", "model"), "Time requests spent in prefill."
    ),
    Metric(
        "goodput_engine_lora_adapters",
        "gauge",
        ("adapter", "state"),
        "LoRA adapters with running or waiting requests; those beyond the bound together as __other__.",
    ),
    Metric(
        "goodput_engine_attainment_low_ratio",
        "gauge",
        ("class",),
        "Least attainment that the engine's histograms allow over 5 minutes, were all of this class.",
    ),
    Metric(
        "goodput_engine_attainment_high_ratio",
        "gauge",
        ("class",),
        "Greatest attainment that the engine's histograms allow over 5 minutes, likewise.",
    ),
    Metric(
        "goodput_self_checks_total",
        "counter",
        ("result",),
        "Checks of the exact goodput against those bounds; outside means that one of the two is wrong.",
    ),
    # The proxy
    Metric("goodput_proxy_in_flight_requests", "gauge", (), "Requests that the proxy carries now."),
    Metric("goodput_proxy_requests_total", "counter", (), "Requests that came to the proxy, of any kind."),
    Metric("goodput_proxy_refused_total", "counter", ("reason",), "Requests the proxy answered itself."),
    Metric("goodput_proxy_broken_total", "counter", ("reason",), "What the upstream did wrong."),
    Metric(
        "goodput_proxy_dropped_observations_total",
        "counter",
        ("reason",),
        "Requests that passed without being measured.",
    ),
    # Spans and redaction, where they are switched on
    Metric("goodput_spans_sent_total", "counter", (), "Spans that the collector took."),
    Metric("goodput_spans_dropped_total", "counter", ("reason",), "Spans that were lost, by reason."),
    Metric("goodput_spans_sampled_out_total", "counter", (), "Spans not kept by sampling."),
    Metric("goodput_spans_waiting", "gauge", (), "Spans in the export queue."),
    Metric("goodput_content_level_info", "info", ("level", "patterns"), "How much of users' text may leave."),
    Metric(
        "goodput_redaction_failures_total",
        "counter",
        ("reason",),
        "Content that was dropped because it could not be redacted.",
    ),
    Metric("goodput_redaction_replaced_total", "counter", ("kind",), "Private values replaced, by kind."),
    Metric("goodput_received_spans_total", "counter", (), "Spans received from vLLM."),
    Metric(
        "goodput_received_request_spans_total",
        "counter",
        ("state",),
        "vLLM's request spans, by whether they were joined with ours.",
    ),
    Metric("goodput_received_refused_total", "counter", ("reason",), "OTLP messages refused, by reason."),
    Metric(
        "goodput_engine_span_requests_total",
        "counter",
        ("result",),
        "Requests as vLLM's spans tell them: the good share is an upper bound, for the rejected have none.",
    ),
    Metric("goodput_receiver_quiet", "gauge", (), "1 when vLLM has sent no span in two minutes."),
    Metric("goodput_engine_cold_start_seconds", "gauge", ("phase",), "vLLM's last start, by phase."),
    # The sidecar itself
    Metric("goodput_held_requests", "gauge", (), "Finished requests that wait for a scrape to be judged."),
    Metric("goodput_series", "gauge", (), "Time series on this page."),
    Metric("goodput_series_budget", "gauge", (), "Time series that this page may hold."),
    Metric(
        "goodput_series_left_out",
        "gauge",
        ("family",),
        "Time series of a family that is left out because the page would break its budget.",
    ),
    Metric("goodput_build_info", "info", ("version",), "The sidecar's version."),
    Metric("process_cpu_seconds_total", "counter", (), "Processor time the sidecar used."),
    Metric("process_resident_memory_bytes", "gauge", (), "Resident memory of the sidecar."),
    Metric("process_start_time_seconds", "gauge", (), "When the sidecar started, Unix time."),
    Metric("process_open_fds", "gauge", (), "Open files and sockets of the sidecar."),
    # GPUs, where a source of them is set
    *(Metric(*row) for row in GPU_METRICS),
)

BY_NAME = {metric.name: metric for metric in METRICS}


def readme_table() -> str:
    """The table for the README, markers included."""
    rows = [BEGIN, "", "| metric | type | labels | meaning |", "| --- | --- | --- | --- |"]
    for metric in METRICS:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or "–"
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    return "\n".join([*rows, "", END]) + "\n"


def put_into(text: str) -> str:
    """``text`` with the table between its markers. Raises ValueError where those are missing."""
    return text[: text.index(BEGIN)] + readme_table().rstrip("\n") + text[text.index(END) + len(END) :]


if __name__ == "__main__":
    if len(sys.argv) > 1:
        readme = Path(sys.argv[1])
        readme.write_text(put_into(readme.read_text("utf-8")), "utf-8")
    else:
        print(readme_table(), end="")
