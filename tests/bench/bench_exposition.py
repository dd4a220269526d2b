"""How much faster a page is read than by prometheus_client: a real vLLM page and one of 10,000 series.

All readers take turns in one run and the best turn of each counts, in processor time, so that a busy
machine tells nearly the same ratios as an idle one. "first" is a parser that has never seen the page, "again"
one that has. Both put a sample's labels together when asked for them, prometheus_client does so for all at
once: "labels" is a first parse after which every label is looked at, shown for fairness, without target.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from sidecar.engine.exposition import Page, Parser

FIXTURE = Path(__file__).parents[1] / "fixtures" / "vllm" / "0.32.0" / "metrics_busy.txt"
FIRST_TARGET, AGAIN_TARGET = 8.0, 25.0
ROUNDS = 8


def large_page(series: int = 10_000) -> str:
    """vLLM-like families for many engines: gauges, counters and a histogram."""
    lines: list[str] = []
    engines = series // 20
    for name, kind in (("num_requests_running", "gauge"), ("generation_tokens_total", "counter")):
        lines += [f"# HELP vllm:{name} Text.", f"# TYPE vllm:{name} {kind}"]
        lines += [f'vllm:{name}{{engine="{i}",model_name="demo"}} {i}.0' for i in range(engines)]
    lines += [
        "# HELP vllm:time_to_first_token_seconds Text.",
        "# TYPE vllm:time_to_first_token_seconds histogram",
    ]
    name = "vllm:time_to_first_token_seconds"
    for i in range(engines):
        for n in range(16):
            edge = "+Inf" if n == 15 else repr(0.001 * 2**n)
            lines.append(f'{name}_bucket{{engine="{i}",le="{edge}",model_name="demo"}} {10.0 * n}')
        lines.append(f'{name}_count{{engine="{i}",model_name="demo"}} 150.0')
        lines.append(f'{name}_sum{{engine="{i}",model_name="demo"}} {0.1 * i}')
    return "\n".join(lines) + "\n"


def same(page: Page, text: str) -> bool:
    """Equal to the last label and digit."""
    ours = sorted((*series.key, repr(value)) for series, value in page.samples())
    theirs = sorted(
        (s.name, tuple(sorted(s.labels.items())), repr(float(s.value)))
        for family in text_string_to_metric_families(text)
        for s in family.samples
    )
    return ours == theirs


def measure(text: str) -> dict[str, float]:
    """Best seconds of each reader."""
    body = text.encode()
    known = Parser()
    known.parse(body)

    def with_labels() -> None:
        for series in Parser().parse(body).series:
            _ = series.labels

    readers: dict[str, Callable[[], object]] = {
        "prometheus_client": lambda: list(text_string_to_metric_families(text)),
        "first": lambda: Parser().parse(body),
        "again": lambda: known.parse(body),
        "labels": with_labels,
    }
    best = dict.fromkeys(readers, float("inf"))
    for _ in range(ROUNDS):
        for name, read in readers.items():
            for _ in range(1 if name == "prometheus_client" else 3):
                started = time.process_time()
                read()
                best[name] = min(best[name], time.process_time() - started)
    return best


def main() -> int:
    """Print the table; 1 when a target is missed."""
    missed = 0
    print(f"{'page':<22}{'reader':<20}{'ms':>10}{'ratio':>8}{'target':>8}  ok")
    for title, text in (("vLLM 0.32, 678 lines", FIXTURE.read_text()), ("10,000 series", large_page())):
        assert same(Parser().parse(text.encode()), text), "the readers disagree"
        best = measure(text)
        for name, target in (
            ("prometheus_client", 1.0),
            ("first", FIRST_TARGET),
            ("again", AGAIN_TARGET),
            ("labels", 0),
        ):
            ratio = best["prometheus_client"] / best[name]
            ok = ratio >= target
            missed += not ok
            wanted, said = f"{target:g}" if target else "-", "yes" if ok else "NO"
            print(f"{title:<22}{name:<20}{best[name] * 1e3:>10.2f}{ratio:>8.1f}{wanted:>8}  {said}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
