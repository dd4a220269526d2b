from __future__ import annotations

from typing import Any

import pytest

from sidecar.errors import SettingsError
from sidecar.proxy.settings import ProxySettings


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:8000", ("127.0.0.1", 8000)),
        ("http://vllm/", ("vllm", 80)),
        ("http://[::1]:8000", ("::1", 8000)),
    ],
)
def test_upstream_address(url: str, address: tuple[str, int]) -> None:
    assert ProxySettings(url).address() == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8000",
        "https://a:1",
        "http://",
        "http://a/v1",
        "http://a:99999",
        "http://u:p@a",
        "http://a?x=1",
    ],
)
def test_wrong_upstreams_name_the_key(url: str) -> None:
    with pytest.raises(SettingsError, match="upstream: "):
        ProxySettings(url)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listen_port", 70000),
        ("max_head_bytes", 0),
        ("max_connections", -1),
        ("buffer_bytes", 0),
        ("connect_timeout_s", 0.0),
        ("idle_timeout_s", float("nan")),
        ("capture_chars", -1),
        ("host", "other"),
        ("trace", "on"),
        ("class_header", "a b"),
    ],
)
def test_wrong_values_name_the_key(key: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=f"^{key}: "):
        ProxySettings("http://a", **{key: value})


@pytest.mark.parametrize("listen", ["127.0.0.1", "0.0.0.0", "::", "localhost"])
def test_no_proxy_before_itself(listen: str) -> None:
    with pytest.raises(SettingsError, match=r"^upstream: .* is where the proxy itself listens"):
        ProxySettings("http://127.0.0.1:8080", listen_host=listen, listen_port=8080)


@pytest.mark.parametrize("url", ["http://127.0.0.1:8081", "http://vllm:8080", "http://10.0.0.1:8080"])
def test_a_like_address_elsewhere_is_fine(url: str) -> None:
    assert ProxySettings(url, listen_host="0.0.0.0", listen_port=8080).upstream == url
