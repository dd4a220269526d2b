"""What the server's own metrics page said during a level's window, joined to the level."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from loadgen.guards import Finding, prefix_hit_rate
from sidecar.engine.scrape import EngineSnapshot, fetch_view
from sidecar.engine.series import History

_GAUGES = ("running", "waiting", "kv_usage")
_COUNTERS = ("preemptions", "prompt_tokens", "generation_tokens", "prefix_queries", "prefix_hits", "success")
_HISTOGRAMS = ("ttft", "itl", "queue", "prefill")
_EVERY_S = 1.0
_LIMIT_S = 3.0


def joined(snapshots: Sequence[EngineSnapshot]) -> tuple[dict[str, float], list[Finding]]:
    """Canonical signals over a window, and what is to be said of them. Pure.

    Gauges as ``NAME_mean`` and ``NAME_max`` over the scrapes, counters as ``NAME_increase`` from the first to
    the last one, histograms as ``NAME_mean_s``; ``kv_usage`` is a share, ``prefix_hit_rate`` too. A signal
    that the page does not have, or a page that could not be had, is absent.
    """
    found: dict[str, float] = {}
    seen = [(snapshot, snapshot.view) for snapshot in snapshots if snapshot.up and snapshot.view is not None]
    if not seen:
        return found, []
    history = History(interval_s=_EVERY_S, window_s=86_400.0)
    for snapshot, view in seen:
        history.add(snapshot.at_ns, view, snapshot.wall_s)
    for name in _GAUGES:
        if name == "kv_usage":
            values = [v for _, view in seen if (v := view.mean(name)) is not None]
        else:
            values = [v for _, view in seen if (v := view.total(name)) is not None]
        if values:
            found[f"{name}_mean"] = sum(values) / len(values)
            found[f"{name}_max"] = max(values)
    at_ns = seen[-1][0].at_ns
    for name in _COUNTERS:
        grown = history.increase(name, at_ns)
        if grown is not None and grown.value is not None:
            found[f"{name}_increase"] = grown.value
    hits, queries = found.get("prefix_hits_increase"), found.get("prefix_queries_increase")
    if hits is not None and queries is not None:
        share = prefix_hit_rate(queries_before=0, hits_before=0, queries_after=queries, hits_after=hits)
        if share is not None:
            found["prefix_hit_rate"] = share
    for name in _HISTOGRAMS:
        observed = history.histogram(name, at_ns)
        if observed is not None and observed.count and observed.sum is not None:
            found[f"{name}_mean_s"] = observed.sum / observed.count
    findings = []
    if history.restarts:
        findings.append(Finding("server_restarted", "the engine restarted during the window", voids=True))
    return found, findings


class EngineWatch:
    """Scrapes ``URL/metrics`` in a thread while a level is in its window. Never fails: what is not there is
    not.

    Call `phase` as the level goes through its phases and `take` after it.
    """

    def __init__(self, url: str) -> None:
        self._url = url
        self._snapshots: list[EngineSnapshot] = []
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def phase(self, name: str) -> None:
        """The level enters ``window`` (scraping starts) or another phase (it ends)."""
        if name == "window":
            self._snapshots = []
            self._over = threading.Event()
            self._thread = threading.Thread(target=self._watch, args=(self._over,), daemon=True)
            self._thread.start()
        else:
            self._over.set()

    def take(self) -> tuple[dict[str, float], list[Finding]]:
        """What the last window said; waits for the scrape under way."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(2 * _LIMIT_S)
            self._thread = None
        snapshots, self._snapshots = self._snapshots, []
        return joined(snapshots)

    def _watch(self, over: threading.Event) -> None:
        snapshots = self._snapshots
        while True:
            ending = over.is_set()
            snapshots.append(fetch_view(self._url, _LIMIT_S))
            if ending or not any(snapshot.up for snapshot in snapshots):
                return  # the last scrape closes the window; a server without the page is not asked again
            over.wait(_EVERY_S)
