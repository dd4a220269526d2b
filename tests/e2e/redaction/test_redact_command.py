"""``goodput-sidecar redact`` as a process: stdin in, what would leave out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


def redact(given: bytes, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "sidecar", "redact", *arguments],
        input=given,
        capture_output=True,
        timeout=60,
        check=False,
    )


def test_a_text() -> None:
    done = redact(b"mail jo@example.com, card 4111 1111 1111 1111", "--counts")
    assert done.returncode == 0
    assert done.stdout == b"mail [EMAIL], card [CARD]"
    assert done.stderr.strip() == b"CARD=1 EMAIL=1"


def test_a_request_body_keeps_its_structure() -> None:
    body = {"messages": [{"role": "user", "content": "I am jo@example.com"}], "stop": ["x@y.example"]}
    shown = json.loads(redact(json.dumps(body).encode()).stdout)
    assert shown["gen_ai.input.messages"][0]["parts"][0]["content"] == "I am [EMAIL]"
    assert shown["gen_ai.request.stop_sequences"] == ["[EMAIL]"]


def test_half_a_character_is_shown_as_one_that_can_be_written() -> None:
    done = redact(b'{"messages":[{"role":"user","content":"a \\ud800 jo@example.com"}]}')
    assert (done.returncode, done.stderr) == (0, b"")
    shown = json.loads(done.stdout)
    assert shown["gen_ai.input.messages"][0]["parts"][0]["content"] == "a \ufffd [EMAIL]"


def test_levels_and_limit() -> None:
    assert redact(b"a@b.example", "--level", "drop").stdout == b""
    assert json.loads(redact(b"a@b.example", "--level", "shape").stdout) == {"type": "text", "length": 11}
    assert redact(b"a@b.example", "--level", "full").stdout == b"a@b.example"
    card = b"x" * 50 + b" 4111 1111 1111 1111 tail"
    assert b"4111" not in redact(card, "--limit", "56").stdout


def test_key_deny_list_and_patterns(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("a key of sixteen bytes\n")
    (tmp_path / "deny").write_text("Falcon\n")
    (tmp_path / "more.yaml").write_text(
        "version: 9\npatterns:\n  - {id: t, kind: TICKET, pattern: 'T-\\d+'}\n"
    )
    done = redact(
        b"falcon T-12 a@b.example",
        *("--key-file", str(tmp_path / "key"), "--deny-file", str(tmp_path / "deny")),
        *("--patterns", str(tmp_path / "more.yaml")),
    )
    kinds = [word.partition(b":h=")[0] for word in done.stdout.split(b" ")]
    assert kinds == [b"[DENIED", b"[TICKET", b"[EMAIL"]


@pytest.mark.parametrize(
    ("given", "arguments", "status", "message"),
    [
        (b"\xff\xfe\x00", (), 1, b"dropped: undecodable"),
        (b'{"messages": [{"role": "user", "content": [{"type": "odd"}]}]}', (), 1, b"dropped: unknown_part"),
        (b"x", ("--regions", "QQ"), 2, b"error: redaction regions: 'QQ'"),
        (b"x", ("--key-file", "/nowhere/key"), 2, b"error: /nowhere/key: cannot read"),
    ],
)
def test_what_goes_wrong_is_one_line_and_no_text(
    given: bytes, arguments: tuple[str, ...], status: int, message: bytes
) -> None:
    done = redact(given, *arguments)
    assert done.returncode == status
    assert message in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert done.stdout == b""
