"""Conversations run on both event loops: a test that asks for `open_stage` runs once on each."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from tests.proxy.conversation import Stage

LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> LoopFactories:
    if "open_stage" in getattr(item, "fixturenames", ()):
        return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}
    return {"asyncio": asyncio.new_event_loop}


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
