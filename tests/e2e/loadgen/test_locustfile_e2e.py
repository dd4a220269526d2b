"""GoodputUser in a locustfile of one's own, run by plain ``locust``."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadgen.stats import quantiles_of
from tests.support.loadgen_runs import ROOT, fake_llm

LOCUSTFILE = """\
import json, os
import gevent
from locust import events
from loadgen.user import GoodputUser, record_hook
from loadgen.workload.lengths import Lengths
from loadgen.workload.spec import Workload

ended = []
environments = []
events.init.add_listener(lambda environment, **_: environments.append(environment))


class Chat(GoodputUser):
    model = "fake"
    workload = Workload(prompt_tokens=Lengths("fixed", 20), output_tokens=Lengths("fixed", 6))


@record_hook().add_listener
def keep(record, **_):
    ended.append([record.outcome, record.ttft_ns, record.e2e_ns, record.output_tokens])
    if len(ended) == 12:
        gevent.spawn(environments[0].runner.quit)


@events.quitting.add_listener
def tell(environment, **_):
    total = environment.stats.total
    median = total.get_response_time_percentile(0.5)
    told = [total.num_requests, total.num_failures, total.min_response_time, median]
    with open(os.environ["TOLD"], "w") as file:
        json.dump({"total": told, "records": ended}, file)
"""


def locust(tmp_path: Path, url: str) -> tuple[int, list[float], list[list[object]]]:
    """Exit status, Locust's totals (requests, failures, least and median response time in ms), a listener's
    records.

    The run ends by itself after a dozen requests.
    """
    (tmp_path / "locustfile.py").write_text(LOCUSTFILE)
    command = [sys.executable, "-m", "locust", "-f", str(tmp_path / "locustfile.py"), "--headless"]
    command += ["-u", "3", "-r", "3", "-t", "30s", "--host", url, "--stop-timeout", "5"]
    ran = subprocess.run(
        command,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "TOLD": str(tmp_path / "told")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (tmp_path / "told").exists(), ran.stderr
    told = json.loads((tmp_path / "told").read_text())
    return ran.returncode, told["total"], told["records"]


def test_locust_hears_of_a_request_when_its_answer_has_ended(tmp_path: Path) -> None:
    """Locust's own clients fire at the headers, 50 ms in; the answer takes at least five gaps more."""
    with fake_llm("ok", "--ttft-s", "0.05", "--itl-s", "0.04") as url:
        status, total, records = locust(tmp_path, url)
    assert status == 0
    assert total[0] == len(records) >= 12
    assert total[1] == 0
    assert total[2] >= 0.9 * (50 + 5 * 40)
    # Locust's percentiles have two digits, ours three; both of the same answers.
    exact_s = sorted(float(record[2]) / 1e9 for record in records)[(len(records) - 1) // 2]  # type: ignore[arg-type]
    ours = quantiles_of(float(record[2]) for record in records).p50_s  # type: ignore[arg-type]
    assert total[3] % 10 == 0
    assert ours == pytest.approx(exact_s, rel=0.002)
    for outcome, ttft_ns, e2e_ns, tokens in records:
        assert outcome == "completed"
        assert tokens == 6
        assert 0 < ttft_ns < e2e_ns  # type: ignore[operator]


def test_an_error_event_inside_a_stream_is_a_failure_to_locust_too(tmp_path: Path) -> None:
    with fake_llm("breaks") as url:
        status, total, records = locust(tmp_path, url)
    assert status == 1
    assert total[0] == total[1] == len(records) >= 12
    assert {record[0] for record in records} == {"error"}
