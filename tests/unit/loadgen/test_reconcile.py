"""Three sides' books of one level: what agrees, what is explained, what is not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadgen.reconcile import Account, account_of, account_of_sidecar, reconcile
from sidecar.requests.records import Api, Outcome, RequestRecord

CLIENT = Account(100, 0, 5000, 9000, 20.0, 100)


def other(**changes: float | None) -> Account:
    values = {"requests": 100.0, "failed": 0.0, "output_tokens": 5000.0, "prompt_tokens": 9000.0}
    return Account(**{**values, "ttft_sum_s": 19.0, "ttft_count": 100.0, **changes})  # type: ignore[arg-type]


def test_equal_books_are_said_to_be_equal_and_the_way_is_named() -> None:
    books = reconcile(CLIENT, sidecar=other(), engine=other(ttft_sum_s=16.0, failed=None))
    assert books.unexplained == ()
    assert set(books.sides) == {"client", "sidecar", "engine"}
    text = "\n".join(books.notes)
    assert "engine counts the same 100" in text
    assert "client +10.0 ms over sidecar" in text
    assert "sidecar +30.0 ms over engine" in text
    assert "failed" not in books.sides["engine"]


@pytest.mark.parametrize(
    ("client", "engine", "explained"),
    [
        (Account(100, 8, 4000, 9000), other(requests=95, output_tokens=4100), True),
        (Account(100, 2, 5000, 9000), other(requests=95), False),
        (CLIENT, other(requests=101), False),
        (CLIENT, other(output_tokens=5200), False),
        (CLIENT, other(output_tokens=4000), False),
        (CLIENT, other(prompt_tokens=9004), True),
        (CLIENT, Account(), True),
    ],
)
def test_a_difference_is_explained_by_failures_or_not_at_all(
    client: Account, engine: Account, explained: bool
) -> None:
    books = reconcile(client, sidecar=None, engine=engine)
    assert (books.unexplained == ()) is explained


def test_chunks_counted_for_tokens_explain_a_difference() -> None:
    engine = other(output_tokens=6000)
    assert reconcile(CLIENT, sidecar=None, engine=engine, estimated=True).unexplained == ()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 500), st.integers(0, 500), st.integers(0, 500))
def test_every_difference_in_requests_is_either_noted_or_unexplained(
    sent: int, failed: int, theirs: int
) -> None:
    failed = min(failed, sent)
    books = reconcile(Account(sent, failed), sidecar=None, engine=Account(theirs))
    assert bool(books.unexplained) is not (sent - failed <= theirs <= sent)
    assert len(books.notes) + len(books.unexplained) == 1


def test_what_was_booked_since_and_a_keeper_that_restarted() -> None:
    assert other().since(other(requests=40.0)) == other(
        requests=60.0, output_tokens=0.0, prompt_tokens=0.0, ttft_sum_s=0.0, ttft_count=0.0
    )
    assert other().since(Account()) == other(), "a family appears with its first request"
    assert other(requests=3.0).since(other()) is None


def test_a_request_that_was_never_sent_is_in_nobodys_books() -> None:
    sent = RequestRecord(
        Api.CHAT, "m", True, 0, 10, Outcome.COMPLETED, first_ns=4, output_tokens=7, sent_ns=1
    )
    unsent = RequestRecord(Api.CHAT, "m", True, 0, 10, Outcome.ERROR)
    account = account_of([sent, unsent])
    assert (account.requests, account.failed, account.output_tokens) == (1, 0, 7)


def test_a_sidecars_page_without_requests_is_zero_not_unknown() -> None:
    assert account_of_sidecar({"goodput_build_info": 1.0}).requests == 0
