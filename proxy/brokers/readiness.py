"""Whether new connections are served: the proxy accepts them, and a bootstrap server answers ApiVersions.

ApiVersions is allowed before SASL. Until a server has answered once, the proxy probes without being asked, because no
other request could fail before the first client arrives. A check returns within `ANSWER_WITHIN_SECONDS`: a probe runs
in the background, and a check that does not wait for it returns the previous result, however old that is.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode

from protocol.api_versions import MAX_ITEMS, MAX_RESPONSE
from protocol.errors import ProtocolError
from protocol.messages import decode
from proxy.brokers.connect import ask_broker
from proxy.brokers.health import Health
from proxy.brokers.upstream import BrokerFailed
from proxy.config.addresses import Address, format_address
from proxy.files.tls import TlsContexts
from proxy.observability.logs import one_line

#: A check probes again only after this time, so that frequent checks cost the brokers little.
FRESH_FOR_NS = 3_000_000_000
ANSWER_WITHIN_SECONDS = 0.5
PROBE_TIMEOUT_SECONDS = 3.0
PROBE_EVERY_SECONDS = 10.0
#: ApiVersions v0, correlation id 1, a null client id.
_API_VERSIONS_REQUEST = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"
_BODY = 4  # after the correlation id


class Status(NamedTuple):
    """Whether a check passed, and one sentence for people."""

    ok: bool
    reason: str


@dataclass(eq=False)
class Readiness:
    """Probes the bootstrap servers when checked, at most once every `FRESH_FOR_NS`, one probe at a time.

    `not_ready` returns the reason while this proxy serves no new connection, because it drains or memory is used up,
    and then no broker is probed; otherwise it returns None. `remark` returns what else people should know, or "".
    `tls`: see `ask_broker`. `health` is informed of the results. `clock` returns monotonic nanoseconds.
    """

    servers: Sequence[Address]
    tls: TlsContexts
    health: Health
    clock: Callable[[], int]
    not_ready: Callable[[], str | None] = lambda: None
    remark: Callable[[], str] = str
    _answered_ns: int | None = None
    _has_worked: bool = False
    _probe: "asyncio.Future[None] | None" = None

    def __post_init__(self) -> None:
        names = ", ".join(map(format_address, self.servers))
        self._last = Status(False, f"no bootstrap server has answered ApiVersions yet; probed: {names}")

    async def run(self) -> None:
        """Probe until a server answers."""
        while not self._last.ok:
            await asyncio.wait({self._probing()})
            if not self._last.ok:
                await asyncio.sleep(PROBE_EVERY_SECONDS)

    async def check(self) -> Status:
        """The status with its reason, within `ANSWER_WITHIN_SECONDS`."""
        reason = self.not_ready()
        if reason is not None:
            return Status(False, reason)
        if self._answered_ns is None or self.clock() - self._answered_ns >= FRESH_FOR_NS:
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._probing()), ANSWER_WITHIN_SECONDS)
        remark = self.remark()
        return Status(self._last.ok, f"{self._last.reason}; {remark}") if remark else self._last

    async def check_started(self) -> Status:
        """Whether a server has answered since the start, which is what Kubernetes checks for replicas. While brokers
        are away no replica serves clients better than another, and without replicas the clients lose their proxy as
        well.
        """
        if self._has_worked:
            return Status(True, "a bootstrap server has answered since the start")
        return await self.check()

    def close(self) -> None:
        if self._probe is not None:
            self._probe.cancel()

    def _probing(self) -> "asyncio.Future[None]":
        """The probe under way, or a new one."""
        if self._probe is None or self._probe.done():
            self._probe = asyncio.ensure_future(self._probe_all())
        return self._probe

    async def _probe_all(self) -> None:
        """Probe all servers concurrently: the first good answer decides."""
        probes = [asyncio.ensure_future(self.probe(server)) for server in self.servers]
        failures, status = list[str](), Status(False, "the probe of the bootstrap servers failed")
        try:
            for probe in asyncio.as_completed(probes):
                status = await probe
                if status.ok:
                    break
                failures.append(status.reason)
            else:
                status = Status(False, "no bootstrap server answers ApiVersions: " + "; ".join(sorted(failures)))
        finally:
            for task in probes:
                task.cancel()
            self._last, self._answered_ns = status, self.clock()
            self._has_worked = self._has_worked or status.ok

    async def probe(self, server: Address) -> Status:
        """The status of one server, with a hint."""
        name, begun_ns = format_address(server), self.clock()
        try:
            _check(await ask_broker(server, self.tls, _API_VERSIONS_REQUEST, PROBE_TIMEOUT_SECONDS, MAX_RESPONSE))
        except BrokerFailed as error:
            self.health.failed(name, error.reason, str(error))
            hint = self.health.hint(error.reason)
            return Status(False, f"{name}: {one_line(str(error))}" + (f" ({hint})" if hint else ""))
        self.health.worked(name, begun_ns, is_probe=True)
        return Status(True, f"{name} answers")


def _check(answer: bytes) -> None:
    """Raises BrokerFailed if this is an error, or not an answer to ApiVersions."""
    try:
        error = decode(ApiVersionsResponse, answer, _BODY, MAX_ITEMS).error_code
    except ProtocolError as problem:
        raise BrokerFailed("connect_failed", f"its response to ApiVersions is not Kafka's: {problem}") from problem
    if error is not ErrorCode.none:
        raise BrokerFailed("connect_failed", f"its response to ApiVersions is an error: {error.name}")
