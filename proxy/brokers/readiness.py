"""Whether the brokers can be reached: a bootstrap server answered ApiVersions, which is allowed before SASL."""

import asyncio
from collections.abc import Callable, Sequence

from proxy.config.config import Address, format_address
from proxy.observability.admin import Status

#: An answer is believed for this long, so that probes of many watchers cost the brokers little.
FRESH_FOR_NS = 3_000_000_000
PROBE_TIMEOUT_SECONDS = 3.0
_MAX_ANSWER = 1_048_576
#: ApiVersions v0, correlation id 1, a null client id.
_API_VERSIONS_REQUEST = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"


class Readiness:
    """Asks when somebody wants to know, at most once every few seconds."""

    def __init__(self, servers: Sequence[Address], clock: Callable[[], int]) -> None:
        self._servers = servers
        self._clock = clock
        self._asked_ns: int | None = None
        self._last = Status(False, "not asked yet")
        self._lock = asyncio.Lock()

    async def check(self) -> Status:
        """Ready or not, and why."""
        async with self._lock:
            if self._asked_ns is None or self._clock() - self._asked_ns >= FRESH_FOR_NS:
                self._last = await self._ask()
                self._asked_ns = self._clock()
            return self._last

    async def _ask(self) -> Status:
        """Ask all servers at once: the first good answer decides."""
        probes = [asyncio.ensure_future(_answers(server)) for server in self._servers]
        failures = []
        try:
            for probe in asyncio.as_completed(probes):
                status = await probe
                if status.ok:
                    return status
                failures.append(status.reason)
        finally:
            for task in probes:
                task.cancel()
        return Status(False, "no bootstrap server answers ApiVersions: " + "; ".join(sorted(failures)))


async def _answers(server: Address) -> Status:
    name = format_address(server)
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
            await _probe(server)
    except TimeoutError:
        return Status(False, f"{name}: no answer within {PROBE_TIMEOUT_SECONDS:g} s")
    except (OSError, EOFError, ValueError) as error:
        return Status(False, f"{name}: {error}")
    return Status(True, f"{name} answers")


async def _probe(server: Address) -> None:
    """Raises OSError, EOFError or ValueError when this is no Kafka broker that answers."""
    reader, writer = await asyncio.open_connection(*server)
    try:
        writer.write(_API_VERSIONS_REQUEST)
        length = int.from_bytes(await reader.readexactly(4), "big", signed=True)
        if not 10 <= length <= _MAX_ANSWER:
            raise ValueError("its answer is not Kafka's")
        answer = await reader.readexactly(length)
        if answer[:6] != b"\x00\x00\x00\x01\x00\x00":
            raise ValueError("its answer to ApiVersions is an error")
    finally:
        writer.close()
