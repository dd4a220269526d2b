"""Do client, sidecar and engine tell the same story of a level? Pure.

Each keeps its own books: requests, tokens, time to first token. They are compared over the whole level,
warm-up and drain included, between two moments at which none of its requests was under way. Every difference
is either explained (failures, cancelled requests, the way between them) or said to be unexplained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from itertools import pairwise

from sidecar.engine.view import EngineView
from sidecar.requests.records import Outcome, RequestRecord

# Of prompt tokens: chat templates and special tokens are counted alike by usage and engine, but for
# roundings.
_TOKENS_OFF = 0.001


@dataclass(frozen=True, slots=True)
class Account:
    """One side's books; ``None`` is what it does not keep. TTFT in seconds."""

    requests: float | None = None
    failed: float | None = None
    output_tokens: float | None = None
    prompt_tokens: float | None = None
    ttft_sum_s: float | None = None
    ttft_count: float | None = None

    @property
    def ttft_mean_s(self) -> float | None:
        """Mean time to first token of the requests that had one."""
        if self.ttft_sum_s is None or not self.ttft_count:
            return None
        return self.ttft_sum_s / self.ttft_count

    def since(self, before: Account) -> Account | None:
        """What was booked since; ``None`` where a counter fell, for then the keeper restarted."""
        grown: dict[str, float | None] = {}
        for one in fields(Account):
            now, then = getattr(self, one.name), getattr(before, one.name)
            # What is not on the page before its first request was nothing then.
            grown[one.name] = None if now is None else now - (then or 0.0)
            if now is not None and now < (then or 0.0):
                return None
        return Account(**grown)

    def plain(self) -> dict[str, float]:
        """What is known, for the report."""
        known = {one.name: getattr(self, one.name) for one in fields(Account)}
        known["ttft_mean_s"] = self.ttft_mean_s
        wanted = ("requests", "failed", "output_tokens", "prompt_tokens", "ttft_mean_s")
        return {name: float(known[name]) for name in wanted if known[name] is not None}


@dataclass(frozen=True, slots=True)
class Books:
    """A level's reconciliation. ``unexplained``: differences that nothing known accounts for."""

    sides: dict[str, dict[str, float]]
    notes: tuple[str, ...] = ()
    unexplained: tuple[str, ...] = ()


def account_of(records: Iterable[RequestRecord]) -> Account:
    """The client's own books, of all requests of the level that were sent."""
    sent = [r for r in records if r.sent_ns is not None]
    ttfts = [r.ttft_ns / 1e9 for r in sent if r.ttft_ns is not None]
    return Account(
        requests=len(sent),
        failed=sum(r.outcome is not Outcome.COMPLETED for r in sent),
        output_tokens=sum(r.output_tokens or 0 for r in sent),
        prompt_tokens=sum(r.prompt_tokens or 0 for r in sent),
        ttft_sum_s=sum(ttfts),
        ttft_count=len(ttfts),
    )


def account_of_engine(view: EngineView) -> Account:
    """The engine's books as its page has them now."""
    ttft = view.histogram("ttft")
    return Account(
        requests=view.total("success"),
        output_tokens=view.total("generation_tokens"),
        prompt_tokens=view.total("prompt_tokens"),
        ttft_sum_s=None if ttft is None else ttft.sum,
        ttft_count=None if ttft is None else ttft.count,
    )


def account_of_sidecar(sums: dict[str, float]) -> Account:
    """The sidecar's books, from the sums of its page's samples by name. Absent is nothing yet."""

    def told(*names: str) -> float:
        return sum(sums.get(name, 0.0) for name in names)

    return Account(
        requests=told("goodput_eligible_requests_total", "goodput_not_eligible_requests_total"),
        failed=told("goodput_failed_requests_total"),
        output_tokens=told("goodput_output_tokens_total"),
        prompt_tokens=told("goodput_prompt_tokens_total"),
        ttft_sum_s=told("goodput_ttft_seconds_sum"),
        ttft_count=told("goodput_ttft_seconds_count"),
    )


def reconcile(
    client: Account, *, sidecar: Account | None, engine: Account | None, estimated: bool = False
) -> Books:
    """Compare the books of those who keep some. ``estimated``: the client counted chunks, not tokens."""
    sides = {"client": client.plain()}
    notes: list[str] = []
    wrong: list[str] = []
    for name, other in (("sidecar", sidecar), ("engine", engine)):
        if other is None:
            continue
        sides[name] = other.plain()
        _compare_requests(name, client, other, notes, wrong)
        _compare_tokens(name, client, other, estimated, notes, wrong)
    way = [(name, one) for name, one in (("client", client), ("sidecar", sidecar), ("engine", engine)) if one]
    for (outer, a), (inner, b) in pairwise(way):
        if a.ttft_mean_s is not None and b.ttft_mean_s is not None:
            late_ms = (a.ttft_mean_s - b.ttft_mean_s) * 1e3
            notes.append(f"mean TTFT: {outer} {late_ms:+.1f} ms over {inner}, {_WAYS[outer, inner]}")
    return Books(sides, tuple(notes), tuple(wrong))


_WAYS = {
    ("client", "sidecar"): "the network and, on a schedule, the wait before sending",
    ("client", "engine"): "the network, the server's front end and, on a schedule, the wait before sending",
    ("sidecar", "engine"): "the proxy and the server's front end (HTTP, tokenizer)",
}


def _compare_requests(name: str, client: Account, other: Account, notes: list[str], wrong: list[str]) -> None:
    if client.requests is None or other.requests is None:
        return
    failed = client.failed or 0.0
    missing = client.requests - other.requests
    if missing == 0:
        notes.append(f"requests: {name} counts the same {client.requests:.0f}")
    elif 0 < missing <= failed:
        notes.append(
            f"requests: {name} counts {missing:.0f} fewer, of {failed:.0f} that failed or were cancelled"
        )
    elif missing > 0:
        wrong.append(
            f"{name} counts {missing - failed:.0f} requests fewer than were completed: part of the load went "
            "elsewhere, or it was asked too early"
        )
    else:
        wrong.append(f"{name} counts {-missing:.0f} requests more than were sent: other traffic")


def _compare_tokens(
    name: str, client: Account, other: Account, estimated: bool, notes: list[str], wrong: list[str]
) -> None:
    for what in ("output_tokens", "prompt_tokens"):
        mine, theirs = getattr(client, what), getattr(other, what)
        if mine is None or theirs is None:
            continue
        words = what.replace("_", " ")
        more = theirs - mine
        if abs(more) <= _TOKENS_OFF * max(mine, theirs):
            notes.append(f"{words}: {name} counts the same {mine:.0f}")
        elif estimated and what == "output_tokens":
            notes.append(f"{words}: {name} counts {more:+.0f}; the client had no usage and counted chunks")
        elif more > 0 and client.failed:
            notes.append(f"{words}: {name} counts {more:+.0f}, of requests that failed or were cancelled")
        else:
            wrong.append(f"{name} counts {more:+.0f} {words} ({mine:.0f} came to the client)")
