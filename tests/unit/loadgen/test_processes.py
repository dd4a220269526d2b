"""Child processes, interrupts and blocking work under a stop request."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

import pytest

from loadgen.processes import Child, Interrupt, patiently
from sidecar.errors import UserError
from tests.support.loadgen_runs import running


def test_blocking_work_returns_raises_and_can_be_left() -> None:
    assert patiently(lambda: 7, lambda: False) == 7
    with pytest.raises(ZeroDivisionError):
        patiently(lambda: 1 // 0, lambda: False)
    release = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        patiently(lambda: release.wait(60), lambda: True)
    release.set()


def test_an_interrupt_is_a_flag_first_and_an_exception_at_the_third() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupt() as stopped:
        assert not stopped()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stopped()
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_child_says_where_it_listens_and_is_stopped_with_its_own_children() -> None:
    script = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print('thing listening on http://x:1', p.pid, flush=True)\n"
        "time.sleep(60)"
    )
    with Child("thing", [sys.executable, "-c", script]) as child:
        address, grandchild = child.address("thing", limit_s=30).split()
        assert address == "http://x:1"
        assert running({int(grandchild)})
    assert not child.alive
    for _ in range(200):
        if not running({int(grandchild)}):
            break
        time.sleep(0.05)
    assert running({int(grandchild)}) == set()


def test_a_child_that_dies_says_why() -> None:
    script = "print('no such profile'); raise SystemExit(2)"
    with (
        Child("thing", [sys.executable, "-c", script]) as child,
        pytest.raises(UserError, match="no such profile"),
    ):
        child.address("thing", limit_s=30)


def test_waiting_for_a_child_can_be_interrupted() -> None:
    with Child("thing", [sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        with pytest.raises(KeyboardInterrupt):  # so that the command ends with 130, as later on
            child.address("thing", limit_s=30, stopped=lambda: True)
        with pytest.raises(UserError, match="did not listen"):
            child.address("thing", limit_s=0.1)
