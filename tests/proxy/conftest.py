"""Tests run on uvloop; one file for each behaviour also on plain asyncio, and in the nightly profile every stage."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial, partialmethod
from typing import Any

import pytest
import pytest_asyncio

from proxy.internal_clients.event_loops import new_loop
from proxy.observability.catalogue import events
from proxy.observability.logs import EventLog
from tests.proxy.conversation import OpenBroker, OpenStage, ScriptedBroker, Stage

LoopFactories = Mapping[str, Callable[[], asyncio.AbstractEventLoop]]

EVENTS = events()
#: Files whose stages run on both event loops: the life of a session, and holds.
BOTH_LOOPS = {"test_session.py", "test_holding.py", "test_closed_connections.py"}


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> LoopFactories:
    is_nightly = config.getoption("--hypothesis-profile", default=None) == "nightly"
    if "open_stage" in getattr(item, "fixturenames", ()) and (is_nightly or item.path.name in BOTH_LOOPS):
        return {kind: partial(new_loop, kind) for kind in ("uvloop", "asyncio")}
    return {"uvloop": partial(new_loop, "uvloop")}


@pytest.fixture(autouse=True)
def each_event_is_in_the_catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the proxy logs in any test of this folder has its entry in the catalogue, and the level of that entry."""
    write = EventLog._write

    def checked(log: EventLog, level: int, name: str, /, **fields: Any) -> None:
        assert logging.getLevelName(level).lower() in EVENTS[name].level.split(" or "), name
        write(log, level, name, **fields)

    for method, level in (("debug", 10), ("info", 20), ("warning", 30), ("error", 40)):
        monkeypatch.setattr(EventLog, method, partialmethod(checked, level))
    monkeypatch.setattr(EventLog, "exception", partialmethod(checked, logging.ERROR, exc_info=True))


@pytest_asyncio.fixture
async def open_broker() -> AsyncIterator[OpenBroker]:
    """Opens brokers besides that of the stage, at a free port or at this host and port."""
    brokers: list[ScriptedBroker] = []

    def opened(*address: Any) -> ScriptedBroker:
        brokers.append(ScriptedBroker(*address))
        return brokers[-1]

    yield opened
    for broker in brokers:
        broker.close()


@pytest_asyncio.fixture
async def open_stage(open_broker: OpenBroker) -> AsyncIterator[OpenStage]:
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
