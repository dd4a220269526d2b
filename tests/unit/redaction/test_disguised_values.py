"""Private values in disguise do not slip by, and what only looks like one stays."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from sidecar.redaction.engine import RedactionFailed, Redactor
from sidecar.redaction.filter import Content, ContentFilter, Level
from sidecar.redaction.structure import Structure, is_secret

REDACTOR = Redactor()
MAIL = "dana.scully@example.com"
KEY = "ghp_a1B2c3D4e5F6g7H8i9J0k1L2m3N4o5P6q7R8"


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"see {b64('mail to ' + MAIL + ' today')} ok", b64("mail to " + MAIL)[6:20]),
        (f"auth={base64.urlsafe_b64encode(('k=' + KEY).encode()).decode()}", b64("k=" + KEY)[4:20]),
        (b64(b64("twice: " + MAIL)), b64(b64("twice: " + MAIL))[4:20]),
        (f"blob {MAIL.encode().hex()} end", MAIL.encode().hex()[4:20]),
        ("x" * 9000 + " " + b64("a text without end. " * 900 + MAIL), b64(MAIL)[2:14]),
        ("card 4111·1111·1111·1111", "1111"),
        ("card 4111|1111|1111|1111", "1111"),
        ("4 1 1 1 1 1 1 1 1 1 1 1 1 1 1 1", "1 1 1"),
        ("4-1-1-1-1-1-1-1-1-1-1-1-1-1-1-1", "1-1-1"),
        ("customer_4111111111111111", "1111"),
        ("paid with 4111111111111111.0", "1111"),
        ("4\u0336" + "1\u0336" * 15, "1\u03361"),
        ("dana.scully @ example.com", "scully"),
        ("dana.scully[@]example[.]com", "scully"),
        ("dana.scully@example(dot)com", "scully"),
        ("dana.scully_at_example.com", "scully"),
        ("dana.scully&#0000064;example.com", "scully"),
        ("dana.scully&#64example.com", "scully"),
        ("dana.scully%EF%BC%A0example.com", "scully"),
        ("dana.scully\\u{40}example.com", "scully"),
        ("\\ud835\\udfd2" + "\\ud835\\udfcf" * 15, "udfcf"),
        ("zhang.wei@163.com", "zhang"),
        ("<b>+31612345221</b>", "612345"),
        ("?to=+14155550132&x=1", "4155550132"),
        ("https://wa.me/14155550132", "4155550132"),
        ("+1_415_555_0132", "555"),
        ("+1\t415\t555\t0132", "555"),
        ("iban_DE89370400440532013000", "3704"),
        ("host_203.0.113.7", "203.0"),
        (f"KEY_{KEY}", "B2c3"),
        ("curl -u dana:s3cr3tpw https://h.example", "s3cr3t"),
        ("login --password s3cr3tpw", "s3cr3t"),
        ("Authorization: Bearer abcdefghijklmnop", "abcdefgh"),
        ("<password>s3cr3tpw</password>", "s3cr3t"),
        ("jdbc:oracle:thin:scott/tiger99@//h:1521/x", "tiger99"),
        ('"-----BEGIN PRIVATE KEY-----\\n" +\n"MIIEvQIBADANBgkq\\n" +\n"hkiG9w0BAQEF\\n"', "hkiG9w"),
        ("----- BEGIN PRIVATE KEY ----- MIIEvQIBADANBg", "MIIEvQ"),
    ],
)
def test_no_disguise_helps(text: str, left: str) -> None:
    assert left in text
    assert left not in REDACTOR.text(text)


@pytest.mark.parametrize(
    "text",
    [
        "pkg@1.2.3-beta.rc and vue@3.next",
        "git clone git@github.com:a/b.git",
        "w = a @ b.T + x @ self.kernel",
        "4000|4096|8192|2048|1024|4111",
        "seasons 1993-2005 of the cell programme",
        "hash 5f4dcc3b5aa765d61d8327deb882cf99 and " + "a3f1" * 16,
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        b64("nothing private in this sentence, none at all"),
        "run --token-budget 4096 --max-tokens 100 --password <password>",
        "def authorize(authorization: str, password: str) -> None:",
        "total 4,111,111.00 of 5555.0",
    ],
)
def test_what_only_looks_like_one_stays(text: str) -> None:
    assert REDACTOR.text(text) == text


@pytest.mark.parametrize(
    "piece", ["\\", "-----BEGIN PRIVATE KEY-----", "QUJD", "=40", "%41", "&#", "a@", "<"]
)
def test_the_time_grows_with_the_length_only(piece: str) -> None:
    def used(length: int) -> float:
        text = (piece * length)[:length]
        best = float("inf")
        for _ in range(3):
            began = time.thread_time()
            try:
                REDACTOR.find(text)
            except RedactionFailed:
                return 0.0  # given up in time, which is as good
            best = min(best, time.thread_time() - began)
        return best

    short = used(2_000)
    assert used(8_000) < 12 * max(short, 0.002)


def shown(value: Any, key: str = "") -> str:
    return json.dumps(Structure(REDACTOR).value(value, key))


def test_numbers_are_read_however_they_are_stored() -> None:
    assert "1111" not in shown({"card": [4111, 1111, 1111, 1111]})
    assert "1111" not in shown({"card": ["4111", "1111", "1111", "1111"]})
    assert "1111" not in shown({"a": 4111111111111111.0, "b": 4.111111111111111e15})
    same = {"shape": [64, 4096, 4096], "date": [2026, 11, 30], "loss": 0.5, "big": 1e300, "n": 10**30}
    assert json.loads(shown(same)) == same


def test_a_secret_is_known_by_its_key_wherever_that_stands() -> None:
    for value in (
        {"userPassword": "hunter two"},
        {"apiKeys": ["hunter two"]},
        {"credentials": {"a": {"b": "hunter two"}}},
        {"name": "password", "value": "hunter two"},
        {"properties": {"password": {"type": "string", "default": "hunter two", "enum": ["hunter two"]}}},
    ):
        assert "hunter" not in shown(value), value
    schema = {"properties": {"password": {"type": "string", "description": "at least 12 letters"}}}
    assert json.loads(shown(schema)) == schema
    assert not is_secret("max_tokens")
    assert not is_secret("")


def test_a_media_type_is_a_known_one_or_not_told() -> None:
    structure = Structure(REDACTOR)
    assert structure.media("image", "data:image/png;base64,AAAA")["mime_type"] == "image/png"
    assert "scully" not in json.dumps(structure.media("image", "data:dana/scully;base64,AAAA"))


def test_the_end_of_an_answer_that_was_cut_goes_too() -> None:
    content = ContentFilter(Level.REDACT, lambda: REDACTOR)
    text = "word " * 200 + "dana.scully@exam"
    whole = content.with_output(Content(), [(text, "stop")], cut_at=len(text) + 1)
    assert "word" in json.dumps(whole.output)
    cut = content.with_output(Content(), [(text, "stop"), ("short", "stop")], cut_at=len(text))
    assert "scully" not in json.dumps(cut.output)
    assert "word word" in json.dumps(cut.output)
    assert "short" in json.dumps(cut.output)
