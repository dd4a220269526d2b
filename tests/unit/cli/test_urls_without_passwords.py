"""URLs from outside: odd ones are refused in a word, passwords in them are refused and never repeated."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadgen.address import Target
from sidecar.config import load_settings
from sidecar.engine.scrape import ScrapeSettings
from sidecar.errors import UserError
from sidecar.proxy.settings import ProxySettings
from sidecar.spans.settings import otlp_settings
from sidecar.urls import has_user, shown, split_http

READERS = {
    "loadgen": lambda url: Target.of(url),
    "scrape": lambda url: ScrapeSettings(url).check(),
    "engine": lambda url: load_settings({"upstream": "http://a", "engine": url}, environ={}),
    "upstream": lambda url: load_settings({"upstream": url}, environ={}),
    "proxy": lambda url: ProxySettings(url),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "url",
    ["http://me:canary@host:1", "http://canary@host", "https://me:canary@[::1]:1/x", "ftp://me:canary@h"],
)
def test_a_password_is_refused_and_not_repeated(reader: str, url: str) -> None:
    with pytest.raises(UserError) as refused:
        READERS[reader](url)
    assert "canary" not in str(refused.value)


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "url", ["http://[", "http://[::1", "http://a:b", "http://a:99999", "http://", "http:///x"]
)
def test_half_urls_are_refused_in_a_word(reader: str, url: str) -> None:
    with pytest.raises(UserError):
        READERS[reader](url)


@pytest.mark.parametrize("url", ["http://[", "http://a:b", "nothing"])
def test_half_collectors_are_refused_in_a_word(url: str) -> None:
    with pytest.raises(UserError, match="OTEL_EXPORTER_OTLP_ENDPOINT"):
        otlp_settings({"OTEL_EXPORTER_OTLP_ENDPOINT": url})


def test_an_at_sign_elsewhere_is_no_user() -> None:
    assert not has_user("http://host/path@x?y=a@b#@")
    assert split_http("http://host/path@x") is not None


@given(st.text(), st.text(alphabet=st.characters(exclude_characters="/?#"), max_size=20))
def test_what_is_shown_holds_no_user(before: str, user: str) -> None:
    assert not has_user(shown(f"http://{user}@host")) or shown(f"http://{user}@host") == "http://...@host"
    split_http(before)
    assert shown(before) == before or has_user(before)
