"""These tests run on production's event loop; the behaviour tests also on the one it falls back to."""

import asyncio
from collections.abc import Callable, Mapping

import pytest
import uvloop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    factories: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {"uvloop": uvloop.new_event_loop}
    if item.path.stem in ("test_proxy_behaviour", "test_proxy_edges"):
        factories["asyncio"] = asyncio.new_event_loop
    return factories
