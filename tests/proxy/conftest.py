"""Tests run on uvloop; one file for each behaviour also on plain asyncio, and in the nightly profile every stage."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Any

import pytest
import pytest_asyncio

from proxy.event_loops import new_loop
from tests.proxy.conversation import Stage

LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]

#: Files whose stages run on both event loops: forwarding, the life of a session, holds, and bad input.
BOTH_LOOPS = {
    "test_forwarding.py",
    "test_session.py",
    "test_holding.py",
    "test_bad_input.py",
    "test_closed_connections.py",
}


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> LoopFactories:
    is_nightly = config.getoption("--hypothesis-profile", default=None) == "nightly"
    if "open_stage" in getattr(item, "fixturenames", ()) and (is_nightly or item.path.name in BOTH_LOOPS):
        return {kind: partial(new_loop, kind) for kind in ("uvloop", "asyncio")}
    return {"uvloop": partial(new_loop, "uvloop")}


@pytest_asyncio.fixture
async def open_stage() -> AsyncIterator[Callable[..., Stage]]:
    """Opens proxies between scripted peers (see `Stage`); afterwards nothing may be left of any session."""
    stages: list[Stage] = []

    def opened(**options: Any) -> Stage:
        stage = Stage(**options)
        stages.append(stage)
        return stage

    yield opened
    for stage in stages:
        stage.close()
    for stage in stages:
        stage.check_at_rest()
