"""A real vLLM on the CPU for the tests of this folder, started once and ended by its own pid."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("real_vllm.sh")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def real_vllm() -> Iterator[str]:
    """Base URL of a running vLLM; skips with the reason when it can't be installed or started here."""
    port = _free_port()
    setup = subprocess.run(["bash", SCRIPT, "setup"], capture_output=True, text=True, timeout=600)
    if setup.returncode:
        pytest.skip(f"vLLM for the CPU can't be installed here: {setup.stderr.strip()[-300:]}")
    served = subprocess.run(
        ["bash", SCRIPT, "serve", str(port)], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, timeout=400
    )
    if served.returncode:
        pytest.skip("vLLM was installed but did not become healthy; see its server log")
    pid = int(served.stdout.split()[-1])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        os.kill(pid, signal.SIGTERM)
