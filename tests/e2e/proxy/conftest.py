"""These tests run on the loop that production runs on; test_proxy_loops.py covers the other one."""

import asyncio

import pytest
import uvloop


@pytest.fixture
def event_loop_policy() -> asyncio.AbstractEventLoopPolicy:
    return uvloop.EventLoopPolicy()
