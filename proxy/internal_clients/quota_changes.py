"""What Kafka's quota API does to the topic of quotas: one change after the other, each answered once it is in force."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Final

from proxy.background.host import Host
from proxy.internal_clients.failures import LogFailed
from proxy.internal_clients.quotas_topic import QuotasTopic, Records
from proxy.observability.logs import one_line
from quotas.stored.record import Record
from quotas.stored.table import Table
from quotas.time_units import NS_PER_SECOND

CHANGE_SECONDS: Final = 10.0
"""How long a change may take: clients wait for 30 s."""
MAX_CHANGING: Final = 100


class QuotaChanges:
    """A `proxy.streams.connection.QuotaApi`."""

    def __init__(self, topic: QuotasTopic, host: Host) -> None:
        self._topic, self._host = topic, host
        self._one_change = asyncio.Lock()
        self._changing: set[asyncio.Task[None]] = set()

    @property
    def is_read(self) -> bool:
        return self._topic.is_read

    @property
    def table(self) -> Table:
        return self._topic.table

    def submit(self, decide: Callable[[Records], Sequence[Record]], done: Callable[[str], None]) -> None:
        if len(self._changing) >= MAX_CHANGING:
            asyncio.get_running_loop().call_soon(done, f"more than {MAX_CHANGING} changes are under way")
            return
        self._start(self._change(decide, done))

    def compute(self, work: Callable[[], bytes], done: Callable[[bytes], None]) -> None:

        async def computing() -> None:
            done(await asyncio.to_thread(work))

        self._start(computing())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        """asyncio itself does not keep tasks."""
        task = asyncio.ensure_future(work)
        self._changing.add(task)
        task.add_done_callback(self._changing.discard)

    async def _change(self, decide: Callable[[Records], Sequence[Record]], done: Callable[[str], None]) -> None:
        topic, problem = self._topic, ""
        timed_out = "other changes are under way, and nothing was written"
        try:
            async with asyncio.timeout(CHANGE_SECONDS), self._one_change:
                at = datetime.fromtimestamp(self._host.wall_clock() // NS_PER_SECOND, UTC).isoformat()
                through = f", through {self._host.name}"
                # In threads, here and below: each entity takes 0.5 ms in all, and operators send hundreds at once.
                decided = await asyncio.to_thread(decide, topic.table.records)
                records = [
                    replace(each, author=replace(each.author, at=at, origin=each.author.origin + through))
                    for each in decided
                ]
                timed_out = "it may still apply"
                if records:
                    await topic.write(records)
        except TimeoutError:
            problem = f"not read back from --quotas-topic {topic.name} within {CHANGE_SECONDS:g} s; {timed_out}"
        except LogFailed as error:
            problem = one_line(error.message)
        except Exception as error:  # noqa: BLE001 - the client must have an answer
            problem = f"{type(error).__name__}: {error}"
        done(problem)
