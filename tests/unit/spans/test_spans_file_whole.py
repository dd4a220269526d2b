"""A spans file holds whole lines, whatever the disk does."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sidecar.errors import SettingsError
from sidecar.spans.export import LinesSink
from sidecar.spans.model import Kind, Span
from sidecar.spans.transport import Undelivered


def a_span() -> Span:
    return Span("ab" * 16, "cd" * 8, "", "chat m", Kind.SERVER, 1, 2, {"gen_ai.request.model": "m"})


@contextmanager
def no_file_longer_than(count: int) -> Iterator[None]:
    """As a full disk does, the kernel takes what still fits and refuses the rest."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def lines(path: Path) -> list[object]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("room", [1, 10, 300, 700])
def test_half_a_line_is_cut_off_again(tmp_path: Path, room: int) -> None:
    path = tmp_path / "spans.jsonl"
    sink = LinesSink(path, {"service.name": "s"})
    span = a_span()
    sink.send([span])
    before = path.stat().st_size
    with no_file_longer_than(before + room % before):
        for _ in range(3):
            with pytest.raises(Undelivered):
                sink.send([span])
        assert path.stat().st_size == before
    sink.send([span])
    sink.close()
    assert path.stat().st_size == 2 * before
    assert len(lines(path)) == 2


def test_a_full_device_is_no_delivery_and_closes_quietly() -> None:
    sink = LinesSink(Path("/dev/full"), {})
    with pytest.raises(Undelivered):
        sink.send([a_span()])
    sink.close()


def test_the_file_is_its_owners_only_and_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "spans.jsonl"
    for count in (1, 2):
        sink = LinesSink(path, {})
        sink.send([a_span()])
        sink.close()
        assert len(lines(path)) == count
    assert os.stat(path).st_mode & 0o777 == 0o600


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot write"):
        LinesSink(tmp_path / "none" / "spans.jsonl", {})
