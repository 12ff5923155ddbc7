"""When a member reads, advertises and starts again, in the event loop. Its failures do not stop traffic.

Safety is decided in `quotas.fleet.caps`, not here: a record may be lost, late or duplicated, and a rate that is not
renewed expires in its bucket.
"""

import asyncio
from asyncio import AbstractEventLoop, Task, TimerHandle
from collections.abc import Sequence
from functools import partial
from typing import Final

from proxy.background.host import Host
from proxy.background.retries import MOST_SECONDS, Retries
from proxy.config.config import Config
from proxy.fleet.differences import Differences
from proxy.fleet.log import Log
from proxy.fleet.shared_limits import SharedLimits
from proxy.internal_clients.failures import LogChanged, LogFailed, LogRefused
from proxy.observability.fleet_counts import FleetCounts
from proxy.observability.logs import EventLog
from quotas.fleet.caps import MAX_ENTRIES
from quotas.fleet.member import Member
from quotas.fleet.parameters import Parameters
from quotas.registry.registry import Registry

TICK_SECONDS: Final = 0.05
REST_SECONDS: Final = 1.0
"""Between ticks of a member at rest. Waking up the process costs more than the work that follows, so a member reads
with its ticks, and reads at once only what it has written itself.
"""
SILENT_NS: Final = 20_000_000_000
"""If a member reads back none of its own records for this long, it opens the log again: a library may have given up."""
MAX_SENDING: Final = 32
"""The most records in flight. Further ones are dropped, which a log may do as well."""
EXIT_SECONDS: Final = 2.0
BUSY_NS: Final = 1_000_000
"""How long applying records may take before a pause must follow."""

_log = EventLog("proxy.fleet")


class Fleet:
    """Runs from `start` to `close`."""

    def __init__(self, member: Member, limits: SharedLimits, log: Log, metrics: FleetCounts, host: Host) -> None:
        self.member = member
        self.limits = limits
        self.metrics = metrics
        self.differences = Differences(member)
        self.clock = host.clock
        self._topic = log
        self._name = member.caps.name
        self._is_open = False
        #: Why the log is not the one that was read so far, if that was found while a record was sent.
        self._changed = ""
        #: Why the topic cannot be used; "" while it is.
        self._failure = ""
        self._read_back_ns = 0
        #: The newest records, and when they were sent.
        self._sent: dict[bytes, int] = {}
        self._sending: set[Task[None]] = set()
        #: Set by each tick.
        self._ticked = asyncio.Event()
        #: Whether the newest own record has not been read back.
        self._is_owed = False
        self._retries = Retries(host.random)
        self._following: Task[None] | None = None
        self._timer: TimerHandle | None = None

    def start(self, loop: AbstractEventLoop) -> None:
        self._following = loop.create_task(self._follow_forever())
        self.limits.on_wait = self.member.facts.on_change = partial(self._wake, loop)
        self._arm(loop)

    async def close(self) -> None:
        """Return this member's shares, within `EXIT_SECONDS`. The limits keep the rates that they have without the
        topic.
        """
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if self._is_open:
            records = self.member.leave(self.clock())
            self.limits.apply(self.clock())
            try:
                async with asyncio.timeout(EXIT_SECONDS):
                    for record in records:
                        await self._topic.append(record)
            except (LogFailed, TimeoutError) as error:
                _log.warning(
                    "fleet_leave_failed", error=str(error), effect="the other members use its share after 16 s"
                )
        tasks = [task for task in (self._following, *self._sending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._topic.close()

    # ---- advertising

    def _arm(self, loop: AbstractEventLoop) -> None:
        seconds = REST_SECONDS if self._is_at_rest else TICK_SECONDS
        self._timer = loop.call_later(seconds, self._tick_and_arm, loop)

    @property
    def _is_at_rest(self) -> bool:
        return self.metrics.is_joined and self.limits.are_at_rest

    def _wake(self, loop: AbstractEventLoop) -> None:
        """A request waits for a shared limit, or a fact has changed: a member at rest advertises it now."""
        if self._is_at_rest and self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_later(0, self._tick_and_arm, loop)

    def _tick_and_arm(self, loop: AbstractEventLoop) -> None:
        try:
            self.tick()
        finally:
            self._arm(loop)

    def tick(self) -> None:
        """Apply what has changed with time, and advertise what is due."""
        now_ns = self.clock()
        demand = self.limits.demand(now_ns)
        record = self.member.plan(now_ns, demand) if self._is_open else None
        for shared in self.limits.small_shares(demand):
            self.differences.report_small_share(shared, now_ns)
        self._apply(now_ns)  # lower caps apply here before other members read them
        if record is not None:
            self._send(record, now_ns)
        self._note_state(now_ns)
        self.differences.check(now_ns)
        self._ticked.set()

    def _send(self, record: bytes, now_ns: int) -> None:
        if len(self._sending) >= MAX_SENDING:
            return
        self._sent[record] = now_ns
        self._is_owed = True
        if len(self._sent) > 2 * MAX_SENDING:
            del self._sent[next(iter(self._sent))]
        self.metrics.sent += 1
        task = asyncio.ensure_future(self._append(record))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)

    async def _append(self, record: bytes) -> None:
        position = self._topic.position
        try:
            place = await self._topic.append(record)
        except LogFailed as error:
            self._report(error, self._retries.is_new(error.reason))
            return
        if place.offset < position and self._is_open:  # the records that were read there are gone
            self._begin(is_covered=False)
            self._changed = f"a record was appended at {place.offset}, and {position} had been read before"

    # ---- reading

    async def _follow_forever(self) -> None:
        while True:
            try:
                await self._follow_and_close()
            except LogFailed as error:
                self._report(error, self._retries.failed(error.reason))
            except (Exception, asyncio.CancelledError):  # a bug here must not end the fleet or the proxy
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                self.metrics.errors["defect"] += 1
                if self._retries.failed("defect"):
                    _log.exception("fleet_failed")
            await asyncio.sleep(self._retries.pause_seconds())

    async def _follow_and_close(self) -> None:
        try:
            await self._follow()
        finally:
            self._is_open = False
            await self._topic.close()

    async def _follow(self) -> None:
        """Join, and read until the log fails."""
        await self._topic.open()
        self._begin(is_covered=False)
        first = self.member.plan(self.clock(), {})
        assert first is not None  # noqa: S101 - after `begin`
        place = await self._topic.append(first)
        history_ms = self.member.caps.parameters.history_ns // 1_000_000
        is_covered = await self._topic.seek(place.time_ms - history_ms)
        self._begin(is_covered=is_covered)
        self._changed = ""
        self._read_back_ns = self.clock()
        self._is_open, self._failure = True, ""
        while True:
            if not self._is_owed:  # records of other members are read together, with the next tick
                self._ticked.clear()
                await self._ticked.wait()
            records = await self._topic.read()
            began_ns = self.clock()
            self.take(records)
            took_ns = self.clock() - began_ns
            if took_ns >= BUSY_NS:  # however much others write, sessions get half of the loop's time
                await asyncio.sleep(took_ns / 1e9)
            if self._changed:
                raise LogChanged("behind", self._changed)
            if self.clock() - self._read_back_ns > SILENT_NS:
                raise LogFailed("silent", f"no own record came back for {SILENT_NS // 1_000_000_000} s")

    def take(self, records: Sequence[bytes]) -> None:
        """Apply records that were read just now."""
        now_ns = self.clock()
        for record in records:
            sent_ns = self._sent.pop(record, None)
            if sent_ns is not None:
                self._read_back_ns, self._is_owed = now_ns, False
                self._retries.worked()
                self.metrics.delivery.observe((now_ns - sent_ns) / 1e9)
            refused = self.member.apply(record, now_ns)
            if refused:
                self.differences.report_refused(refused, record, now_ns)
        self.metrics.read += len(records)
        self._apply(now_ns)
        if self.member.caps.name != self._name:
            self._report_clash()

    def _begin(self, *, is_covered: bool) -> None:
        self.member.begin(self.clock(), is_covered=is_covered)
        self._apply(self.clock())

    # ---- what is shown

    @property
    def why_away(self) -> str:
        """Why this member has not joined; "" if it has."""
        now_ns = self.clock()
        if self.member.caps.is_joined(now_ns):
            return ""
        if self.differences.overflows(now_ns):
            return f"it starts over, because more than {MAX_ENTRIES} shares are advertised"
        return self._failure or "it waits until the shares that it may have missed have expired"

    def _apply(self, now_ns: int) -> None:
        self.differences.note(self.limits.apply(now_ns))

    def _note_state(self, now_ns: int) -> None:
        is_joined = self.member.caps.is_joined(now_ns)
        if is_joined == self.metrics.is_joined:
            return
        self.metrics.is_joined = is_joined
        shares = self.member.caps.parameters.shares_fallback
        rest = f"1/{self.member.caps.parameters.max_members} of each limit" if shares else "its floor"
        if is_joined:
            _log.info("fleet_joined", fleet=self.member.caps.fleet, member=self._name, members=len(self.member.seen))
        else:
            effect = f"this proxy uses at most {rest}, until it reads the topic again"
            _log.warning("fleet_away", fleet=self.member.caps.fleet, effect=effect)

    def _report(self, error: LogFailed, is_new: bool) -> None:
        """Once for each reason, until it works again."""
        self._failure = error.message
        self.metrics.errors[error.reason] += 1
        if not is_new:
            return
        log = _log.error if isinstance(error, LogRefused) else _log.warning
        name = {LogRefused: "fleet_topic_refused", LogChanged: "fleet_topic_changed"}.get(type(error), "fleet_failed")
        effect = f"the proxy tries again, eventually every {MOST_SECONDS:g} s; this is not logged again"
        log(name, reason=error.reason, message=error.message, effect=effect)

    def _report_clash(self) -> None:
        names = {"member": self._name, "now": self.member.caps.name}
        self._name = self.member.caps.name
        effect = "another process wrote a record under this name; this proxy continues from its floor, under a new name"
        hint = "a copy of this machine or container may be running, or another program writes to the topic"
        about = {"fleet": self.member.caps.fleet, **names, "effect": effect, "hint": hint}
        self.differences.forgeries.event(_log.error, "fleet_name_clash", "clash", self.clock(), **about)


def fleet_of(config: Config, registry: Registry, host: Host, log: Log | None = None) -> Fleet | None:
    """The membership of this process; None if it shares nothing. Call it before any limit is looked up in `registry`.
    The host's clock is also that of the registry; it continues while the machine sleeps.
    """
    options = config.fleet
    if options.name is None:
        return None
    parameters = Parameters(max_members=options.max_members, shares_fallback=options.fallback == "share")
    name = config.usage.sidecar_name or host.name
    member = Member(options.name, parameters, lambda: host.random.getrandbits(63), name)
    limits = SharedLimits(member, registry, host.clock)
    registry.grant_by(limits)
    if log is None:
        from proxy.fleet.topic_log import TopicLog  # aiokafka, if a fleet is configured
        from proxy.internal_clients.client import InternalClient

        log = TopicLog(InternalClient(config, "kafka-quota-proxy-fleet"), options.topic)
    return Fleet(member, limits, log, FleetCounts(), host)
