"""``meter`` and ``judge`` as a user runs them: real processes, files and pipes."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sidecar.cli import main

ROOT = Path(__file__).parents[3]
VLLM = ROOT / "tests" / "fixtures" / "vllm"


def sidecar(*args: str | Path, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "sidecar.cli", *map(str, args)],
        input=given,
        capture_output=True,
        cwd=ROOT,
        timeout=60,
    )


def told(*args: str | Path, given: bytes | None = None) -> dict[str, Any]:
    done = sidecar(*args, "--json", given=given)
    assert done.returncode == 0, done.stderr.decode()
    value: dict[str, Any] = json.loads(done.stdout)
    return value


def complaint(capsys: pytest.CaptureFixture[str], *args: str | Path) -> str:
    """What the command line says of a mistake: one line, and exit code 2."""
    assert main([str(arg) for arg in args]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("goodput-sidecar: error: ")
    return lines[0].removeprefix("goodput-sidecar: error: ")


def capture(tmp_path: Path, *, stall_s: float = 0.0, finish: bool = True, b64: bool = False) -> Path:
    """A recorded stream with times: first token at 0.3 s, then 20 ms apart, perhaps with one stall."""
    body = (VLLM / "0.32.0" / "sse" / "chat_usage.txt").read_text()
    events = [event + "\n\n" for event in body.split("\n\n") if event.strip()]
    lines = []
    at_s = 0.28
    for i, event in enumerate(events if finish else events[:4]):
        at_s += 0.02 + (stall_s if i == 3 else 0.0)
        data = {"data_b64": base64.b64encode(event.encode()).decode()} if b64 else {"data": event}
        lines.append(json.dumps({"at_s": round(at_s, 6), **data}))
    if not finish:
        lines.append(json.dumps({"at_s": 9.0, "end": "client_left"}))
    file = tmp_path / f"capture-{stall_s}-{finish}-{b64}.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_a_capture_with_times_is_measured_and_judged(tmp_path: Path) -> None:
    good = told("meter", capture(tmp_path))
    assert good["api"] == "chat"
    assert good["record"]["ttft_s"] == 0.32
    assert good["record"]["tpot_s"] == pytest.approx(0.02)
    assert good["record"]["output_tokens"] == 6
    assert (good["verdict"]["good"], good["bucket"], good["cannot_tell"]) == (True, None, [])
    assert told("meter", capture(tmp_path, b64=True))["record"] == good["record"]
    bad = told("meter", capture(tmp_path, stall_s=4.0))
    assert (bad["bucket"], bad["verdict"]["misses"]) == ("stall", ["tpot", "max_gap"])


def test_a_capture_without_times_says_what_cannot_be_known() -> None:
    value = told("meter", VLLM / "0.32.0" / "sse" / "responses_stream.txt")
    assert (value["api"], value["api_guessed"]) == ("responses", True)
    record = value["record"]
    assert (record["output_tokens"], record["choices"][0]["finish_reason"]) == (5, "max_output_tokens")
    assert [record[key] for key in ("ttft_s", "tpot_s", "e2e_s", "start_ns", "end_ns")] == [None] * 5
    assert (value["bucket"], value["verdict"]["judged"]) == (None, False)
    assert any("no times" in text for text in value["cannot_tell"])


def test_a_capture_without_times_whose_status_decides() -> None:
    body = (VLLM / "0.32.0" / "sse" / "chat_nonstream.json").read_bytes()
    assert told("meter", "-", "--status", "429", given=body)["bucket"] == "rejected"
    assert told("meter", "-", "--api", "chat", given=body)["record"]["output_tokens"] == 5


def test_the_readable_form() -> None:
    done = sidecar("meter", VLLM / "0.32.0" / "sse" / "messages_stream.txt")
    text = done.stdout.decode()
    assert done.returncode == 0
    assert "messages (told from the events)" in text
    assert "0: max_tokens" in text
    assert "cannot tell" in text


def test_what_meter_prints_judge_adds_up(tmp_path: Path) -> None:
    records = tmp_path / "records.jsonl"
    files = [
        capture(tmp_path),
        capture(tmp_path, stall_s=4.0),
        capture(tmp_path, finish=False),
        VLLM / "0.32.0" / "sse" / "chat_plain.txt",
    ]
    lines = [sidecar("meter", file, "--json").stdout for file in files]
    lines[0] = json.dumps(json.loads(lines[0])["record"]).encode() + b"\n"  # the record alone will do
    records.write_bytes(b"\n".join(lines))
    value = told("judge", records, "--window-s", "10")
    assert (value["requests"], value["eligible"], value["good"]) == (4, 3, 1)
    assert value["badput"] == {"abandoned": 1, "stall": 1}
    assert value["not_eligible"] == {"unjudged": 1}
    assert value["without_times"] == 1
    assert value["attainment"] == pytest.approx(1 / 3)
    assert (value["goodput_rps"], value["token_goodput_tps"]) == (0.1, 0.6)
    # By default the window is from the first start to the last end.
    assert told("judge", records)["window_s"] == 9.0
    strict = told("judge", records, "--slo", "ttft=100ms")
    assert strict["badput"] == {"abandoned": 1, "prefill": 2}
    shown = sidecar("judge", records).stdout.decode()
    assert "3 eligible, 1 good" in shown


def test_classes_of_an_slo_file_are_told_apart(tmp_path: Path) -> None:
    record = told("meter", capture(tmp_path))["record"]
    records = tmp_path / "records.jsonl"
    lines = [{**record, "request_class": name} for name in ("interactive", "batch", "batch")]
    records.write_text("\n".join(map(json.dumps, lines)))
    value = told("judge", records, "--slo", ROOT / "configs" / "slo.yaml")
    assert {name: sums["good"] for name, sums in value["classes"].items()} == {"interactive": 1, "batch": 2}


def test_nothing_eligible_is_no_attainment(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("\n")
    value = told("judge", tmp_path / "none.jsonl")
    assert (value["attainment"], value["goodput_rps"], value["window_s"]) == (None, None, None)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ('{"at_s": 0.1, "data": "x"}\nnonsense\n', ":2: is no JSON object"),
        ('{"at_s": 0.1, "data": "x"}\n{"at_s": 0.05, "data": "y"}\n', ":2: at_s is before"),
        ('{"at_s": "soon", "data": "x"}\n', ":1: at_s must be seconds"),
        ('{"at_s": 1e300, "data": "x"}\n', ":1: at_s must be seconds"),
        ('{"at_s": 1' + "0" * 400 + ', "data": "x"}\n', ":1: at_s must be seconds"),
        ('{"at_s": 0.1, "data": 5}\n', ":1: data must be a text"),
        ('{"at_s": 0.1, "data_b64": "?"}\n', ":1: data_b64 must be base64"),
        ('{"at_s": 0.1, "dat": "x"}\n', ":1: 'dat' is not known"),
        ('{"at_s": 0.1, "end": "later"}\n', ":1: end must be one of"),
        ('{"at_s": 0.1, "status": 42}\n', ":1: status must be"),
        ('{"at_s": 0.1, "headers": []}\n', ":1: headers must be"),
        ('{"at_s": 0.1, "data": "x", "data_b64": "eA=="}\n', ":1: data and data_b64 both"),
    ],
)
def test_mistakes_in_a_capture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    file = tmp_path / "capture.jsonl"
    file.write_text(text)
    message = complaint(capsys, "meter", file)
    assert message.startswith(str(file))
    assert says in message


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("nonsense", "is not JSON"),
        ("5", "must be a JSON object"),
        ('{"api": "chat"}', "outcome must be one of"),
        ('{"api": "chess", "outcome": "completed"}', "api must be one of"),
        ('{"api": "chat", "outcome": "completed", "gaps_ns": [0.5]}', "gaps_ns must be whole"),
        ('{"api": "chat", "outcome": "completed", "start_ns": 5, "end_ns": 1}', "end_ns must not be before"),
        ('{"api": "chat", "outcome": "completed", "streamed": "yes"}', "streamed must be true or false"),
        ('{"api": "chat", "outcome": "completed", "choices": [3]}', "choices must be"),
        ('{"api": ["chat"], "outcome": "completed"}', "api must be one of"),
        ('{"api": "chat", "outcome": "completed", "output_tokens": -3}', "output_tokens must be whole"),
        ('{"api": "chat", "outcome": "completed", "output_tokens": 1' + "0" * 400 + "}", "very many digits"),
        (
            '{"api": "chat", "outcome": "completed", "end_ns": 1' + "0" * 400 + ', "start_ns": 0}',
            "end_ns must",
        ),
        ('{"api": "chat", "outcome": "completed", "gaps_ns": [-4]}', "gaps_ns must be whole"),
        ('{"api": "chat", "outcome": "completed", "retry_after_s": NaN}', "retry_after_s must be a number"),
        (
            '{"api": "chat", "outcome": "completed", "start_ns": 5, "end_ns": 9, "first_ns": 4}',
            "first_ns must not be before start_ns",
        ),
        (
            '{"api": "chat", "outcome": "completed", "start_ns": 5, "end_ns": 9, "first_ns": 8, "last_ns":7}',
            "last_ns must not be before first_ns",
        ),
    ],
)
def test_mistakes_in_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, says: str
) -> None:
    file = tmp_path / "records.jsonl"
    file.write_text("\n" + line + "\n")
    message = complaint(capsys, "judge", file)
    assert message.startswith(f"{file}:2: ")
    assert says in message


def test_mistakes_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = sidecar("meter", tmp_path / "nowhere")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"Traceback" not in done.stderr
    file = capture(tmp_path)
    assert "cannot be read" in complaint(capsys, "meter", tmp_path / "nowhere")
    assert "--choices 0" in complaint(capsys, "meter", file, "--choices", "0")
    assert "--status 7" in complaint(capsys, "meter", file, "--status", "7")
    assert "did you mean ttft?" in complaint(capsys, "meter", file, "--slo", "ttfd=1")
    assert "cannot be read" in complaint(capsys, "judge", file, "--slo", tmp_path / "slo.yaml")
    assert "--window-s" in complaint(capsys, "judge", file, "--window-s", "-1")


def test_what_no_encoder_takes_and_what_has_no_end_are_met(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "answer.json"
    file.write_bytes(b'{"model":"\\ud800","choices":[{"message":{"content":"x"},"finish_reason":"stop"}]}')
    assert told("meter", file)["record"]["model"] == "\ufffd"
    assert b"\xef\xbf\xbd" in sidecar("meter", file).stdout
    if Path("/dev/zero").exists():
        assert "is longer than 64 MiB" in complaint(capsys, "judge", "/dev/zero")
