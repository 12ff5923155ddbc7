"""One conversation in three manners: whole, byte by byte, and with bytes of the next request behind each request.

    dialogue = await begin(stage, "byte by byte")
    await dialogue.say(produce(1))
    assert await dialogue.heard() == produce(1)
    await dialogue.answer(produced(1))
    assert await dialogue.told() == produced(1)

What stands behind, in the third manner, are heartbeats, which no limit holds. The dialogue answers them itself, each in
its turn, and passes over them on both sides.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

from proxy.sessions.lifecycle import State
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import PATIENCE_SECONDS, Peer, Stage, until
from tests.proxy.frames import correlation_of, heartbeat, heartbeat_answer

MANNERS = ("whole", "byte by byte", "with bytes behind")
_FIRST_BEHIND = 900_000
_CUT = 7


async def begin(stage: Stage, manner: str) -> Dialogue:
    """A new connection through the proxy."""
    client, broker = await stage.pair()
    return Dialogue(stage, client, broker, manner)


async def held(stage: Stage, count: int = 1) -> None:
    """Wait until so many sessions are held by a limit."""
    await until(lambda: stage.paused().get("quota", 0) == count)


def debts(stage: Stage) -> dict[tuple[str, str], float]:
    """By entity and limit, in seconds; of limits that owe something."""
    now_ns = stage.clock()
    owed = ((limit, limit.debt_ns(now_ns)) for limit in stage.registry.limits_in_use())
    return {(str(limit.entity), limit.name): debt_ns / 1_000_000_000 for limit, debt_ns in owed if debt_ns}


def alter(stage: Stage, spec: str, *, away: bool = False) -> None:
    """Set the limits of this SPEC while the proxy runs, or remove them; all others stay as they are."""
    changed = parse_spec(spec)
    entries = {entry.entity: entry for entry in stage.server.active_config.quotas.entries}
    before = entries.pop(changed.entity, None)
    limits = {} if before is None else dict(before.limits)
    for name, rate in changed.limits.items():
        limits.pop(name, None)
        if not away:
            limits[name] = rate
    unlimited = () if away else changed.unlimited
    if limits or unlimited:
        entries[changed.entity] = replace(before or changed, limits=limits, unlimited=unlimited)
    active_config = stage.server.active_config
    active_config.replace_quotas(replace(active_config.quotas, entries=tuple(entries.values())))


class Dialogue:
    """A client and the broker's side of its connection."""

    def __init__(self, stage: Stage, client: Peer, broker: Peer, manner: str) -> None:
        self.stage = stage
        self.client = client
        self.broker = broker
        self.session = stage.session_of(client)
        assert self.session.upstream is not None
        #: The proxy's end of the connection to the broker.
        self.upstream = self.session.upstream
        self._manner = manner
        self._behind = 0
        self._owed = b""
        #: Requests that have arrived and are not answered: those of the test are None.
        self._arrived: deque[int | None] = deque()

    async def say(self, data: bytes) -> None:
        """The client sends this, in its manner."""
        if self._manner == "byte by byte":
            async with asyncio.timeout(PATIENCE_SECONDS):
                for at in range(len(data)):
                    self.client.send_now(data[at : at + 1])
                    while not self._has_read():  # noqa: ASYNC110 - the proxy's reading has no event to wait for
                        await asyncio.sleep(0)
            return
        if self._manner == "with bytes behind":
            behind = heartbeat(_FIRST_BEHIND + self._behind)
            self._behind += 1
            data = self._owed + data + behind[:_CUT]
            self._owed = behind[_CUT:]
        await self.client.send(data)

    def _has_read(self) -> bool:
        session = self.session
        return session.connection.held is not None or session.state is not State.OPEN or not self.stage.unread(session)

    async def heard(self) -> bytes:
        """The next request of the test that arrives at the broker."""
        while True:
            frame = await self.broker.frame()
            number = correlation_of(frame)
            if number < _FIRST_BEHIND:
                self._arrived.append(None)
                return frame
            assert frame == heartbeat(number)
            self._arrived.append(number)
            if len(self._arrived) == 1:
                await self._answer_behind()

    async def answer(self, frame: bytes) -> None:
        """The broker answers the oldest request of the test."""
        assert self._arrived.popleft() is None
        await self.broker.send(frame)
        await self._answer_behind()

    async def _answer_behind(self) -> None:
        while self._arrived and (number := self._arrived[0]) is not None:
            self._arrived.popleft()
            await self.broker.send(heartbeat_answer(number))

    async def told(self) -> bytes:
        """The next response that the client gets to a request of the test."""
        while True:
            frame = await self.client.frame()
            number = int.from_bytes(frame[4:8], "big")
            if number < _FIRST_BEHIND:
                return frame
            assert frame == heartbeat_answer(number)
