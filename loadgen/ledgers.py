"""Reads the sidecar's and the engine's books before and after a level. Never fails: who cannot be asked keeps
none.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence

import httpx

from loadgen.reconcile import Account, Books, account_of, account_of_engine, account_of_sidecar, reconcile
from sidecar.engine.body import PageError
from sidecar.engine.exposition import parse
from sidecar.engine.scrape import fetch_view
from sidecar.errors import UserError
from sidecar.requests.records import RequestRecord

_LIMIT_S = 3.0
# An engine that still works on cancelled requests is asked again, at most for so long.
_SETTLE_S = 3.0
_AGAIN_S = 0.2


class Ledgers:
    """The books of one server, and of the sidecar where its admin address is known."""

    def __init__(self, url: str, admin_url: str = "") -> None:
        self._url = url
        self._admin_url = admin_url.rstrip("/")
        self._before: tuple[Account | None, Account | None] = (None, None)

    def open(self) -> None:
        """A level is about to begin: note where the books stand."""
        self._before = self._sidecar(), self._engine()

    def close(self, records: Sequence[RequestRecord]) -> Books:
        """The level is over, nothing of it is under way: compare what was booked."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            books = self._compared(records)
            if not books.unexplained or time.monotonic() > deadline:
                return books
            time.sleep(_AGAIN_S)  # counters are published a moment late; a real difference stays

    def _compared(self, records: Sequence[RequestRecord]) -> Books:
        now = self._sidecar(), self._engine()
        sidecar, engine = (
            None if before is None or after is None else after.since(before)
            for before, after in zip(self._before, now, strict=True)
        )
        return reconcile(
            account_of(records),
            sidecar=sidecar,
            engine=engine,
            estimated=any(record.tokens_estimated for record in records),
        )

    def _engine(self) -> Account | None:
        snapshot = fetch_view(self._url, _LIMIT_S)
        return account_of_engine(snapshot.view) if snapshot.up and snapshot.view is not None else None

    def _sidecar(self) -> Account | None:
        if not self._admin_url:
            return None
        try:
            answer = httpx.get(f"{self._admin_url}/metrics", timeout=_LIMIT_S, trust_env=False)
            if answer.status_code != 200:
                return None
            page = parse(answer.content, content_type=answer.headers.get("content-type", ""))
        except (httpx.HTTPError, httpx.InvalidURL, PageError):
            return None
        sums: Counter[str] = Counter()
        for series, value in page.samples():
            sums[series.name] += value  # type: ignore[assignment]
        if not any(name.startswith("goodput_") for name in sums):
            return None
        return account_of_sidecar(dict(sums))


def check_admin(url: str) -> None:
    """Raise `UserError` unless a sidecar's metrics page is there."""
    if Ledgers("", url)._sidecar() is None:
        raise UserError(
            f"--admin-url {url}: no sidecar answers there; give the address that goodput-sidecar run "
            "prints as admin"
        )
