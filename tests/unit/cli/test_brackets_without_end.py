"""Thousands of opening brackets are refused like any other rubbish, wherever JSON or YAML is read."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sidecar.config import load_settings
from sidecar.derive.autoscale import load_capacity
from sidecar.engine.exposition import PageError, parse
from sidecar.errors import UserError
from sidecar.models import names_in
from sidecar.redaction.checks import jwt
from sidecar.redaction.patterns import load_patterns
from sidecar.requests.apis import request_facts
from sidecar.requests.capture import parse_capture
from sidecar.requests.records import Api, End
from sidecar.requests.slo import load_slo
from sidecar.requests.stream import StreamMeter

DEEP = ("[" * 100_000, '{"a":' * 100_000, '{"a":[' * 50_000)


def settings(path: Path) -> object:
    return load_settings({}, file=path, environ={})


@pytest.mark.parametrize("deep", DEEP, ids=("lists", "objects", "both"))
def test_nothing_that_reads_falls_over(deep: str, tmp_path: Path) -> None:
    data = deep.encode()
    with pytest.raises(PageError):
        parse(data)
    names_in(data)
    for api in Api:
        request_facts(api, data)
        meter = StreamMeter(api, start_ns=0, capture_chars=100)
        meter.on_headers(200, [("content-type", "application/json")], 1)
        meter.feed(data, 2)
        meter.finish(End.EOF, 3)
        meter = StreamMeter(api, start_ns=0, capture_chars=100)
        meter.on_headers(200, [("content-type", "text/event-stream")], 1)
        meter.feed(b"data: " + data + b"\n\n", 2)
        meter.finish(End.EOF, 3)
    parse_capture(data, "capture")


@pytest.mark.parametrize("deep", [text[:6000] for text in DEEP], ids=("lists", "objects", "both"))
@pytest.mark.parametrize("read", [load_capacity, load_slo, load_patterns, settings])
def test_files_are_refused_in_a_word(deep: str, read: Callable[[Path], object], tmp_path: Path) -> None:
    path = tmp_path / "deep"
    path.write_text(deep, "utf-8")
    with pytest.raises(UserError, match="deep"):
        read(path)


def test_a_token_of_brackets_is_no_jwt() -> None:
    head = base64.urlsafe_b64encode(b"[" * 100_000).decode().rstrip("=")
    text = f"{head}.{head[:40]}.{head[:43]}"
    assert list(jwt(text, 0, len(text), "", ())) == []


def test_a_message_does_not_repeat_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "capacity.json"
    path.write_text(json.dumps({"format": "x" * 100_000}), "utf-8")
    with pytest.raises(UserError) as refused:
        load_capacity(path)
    assert len(str(refused.value)) < 2000
    assert str(refused.value).startswith(f"{path}: format: must be 1")
