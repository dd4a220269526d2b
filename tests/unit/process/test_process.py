"""What a serving process asks of the operating system and of the interpreter."""

from __future__ import annotations

import asyncio
import gc
import resource
import sys

import pytest

from sidecar.process import raise_file_limit, run_on_best_loop, settle_memory


def test_an_import_that_fails_inside_is_seen_and_not_run_twice() -> None:
    runs = 0

    async def main() -> None:
        nonlocal runs
        runs += 1
        raise ImportError("grpc is not installed")

    with pytest.raises(ImportError, match="grpc"):
        run_on_best_loop(main())
    assert runs == 1


@pytest.mark.parametrize(("installed", "module"), [(True, "uvloop"), (False, "asyncio")])
def test_uvloop_where_it_is_installed(monkeypatch: pytest.MonkeyPatch, installed: bool, module: str) -> None:
    loops: list[str] = []

    async def main() -> None:
        loops.append(type(asyncio.get_running_loop()).__module__.partition(".")[0])

    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    run_on_best_loop(main())
    assert loops == [module]


def test_files_up_to_the_hard_limit() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_settled_objects_are_no_longer_collected() -> None:
    try:
        settle_memory()
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
