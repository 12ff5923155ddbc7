"""When a member reads, states and begins again, in the event loop. Its failures stop no traffic.

Nothing that is safe or not is decided here (`quotas.fleet.caps` does): a record may be lost, late or there twice, and a
rate that is not renewed ends in its bucket.
"""

import asyncio
import secrets
import socket
from asyncio import AbstractEventLoop, Task, TimerHandle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from proxy.config.cautions import BELOW_FLOOR
from proxy.config.config import Config
from proxy.config.floor import FLOORS, REMEDY
from proxy.fleet.log import Log, LogChanged, LogFailed, LogRefused
from proxy.fleet.shared_limits import SharedLimit, SharedLimits
from proxy.observability.fleet import FleetMetrics
from proxy.observability.logs import EventLog, RateLimited
from proxy.retries import MOST_SECONDS, Retries
from quotas.fleet.member import Member
from quotas.fleet.parameters import Parameters
from quotas.registry.registry import Registry

TICK_SECONDS: Final = 0.05
REST_SECONDS: Final = 1.0
"""Between ticks of a member at rest. A wake-up of the process costs more than what it does, so that a member reads with
its ticks, and at once only what it has written itself.
"""
SILENT_NS: Final = 20_000_000_000
"""Without an own record read back for so long, the log is opened again: a library may have stopped trying."""
MAX_SENDING: Final = 32
"""Records on their way; further ones are dropped, as a log may do."""
EXIT_SECONDS: Final = 2.0
BUSY_NS: Final = 1_000_000
"""What applying records may take without a pause after it."""
SAME_EVENT_NS: Final = 600_000_000_000

_log = EventLog("proxy.fleet")


class Fleet:
    """Runs from `start` to `close`."""

    def __init__(
        self, member: Member, limits: SharedLimits, log: Log, metrics: FleetMetrics, clock: Callable[[], int]
    ) -> None:
        self.member = member
        self.limits = limits
        self.metrics = metrics
        self.clock = clock
        self._topic = log
        self._name = member.caps.name
        self._is_joined = False
        self._is_open = False
        #: Why the log is not the one that was read so far, if that was found while a record was sent.
        self._changed = ""
        self._heard_ns = 0
        #: The newest records, and when they were sent.
        self._sent: dict[bytes, int] = {}
        self._sending: set[Task[None]] = set()
        #: Set by each tick.
        self._ticked = asyncio.Event()
        #: Whether the newest own record has not been read back.
        self._is_owed = False
        self._lines = RateLimited(SAME_EVENT_NS)
        self._retries = Retries()
        self._following: Task[None] | None = None
        self._timer: TimerHandle | None = None

    def start(self, loop: AbstractEventLoop) -> None:
        self._following = loop.create_task(self._follow_forever())
        self.limits.on_wait = partial(self._wake, loop)
        self._arm(loop)

    async def close(self) -> None:
        """Give back what is held, for at most `EXIT_SECONDS`. The limits stay at what they are without the topic."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        if self._is_open:
            record = self.member.leave(self.clock())
            self.limits.apply(self.clock())
            try:
                async with asyncio.timeout(EXIT_SECONDS):
                    await self._topic.append(record)
            except (LogFailed, TimeoutError) as error:
                _log.warning("fleet_left_unheard", error=str(error), effect="others use its part after 16 s")
        tasks = [task for task in (self._following, *self._sending) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._topic.close()

    # ---- stating

    def _arm(self, loop: AbstractEventLoop) -> None:
        seconds = REST_SECONDS if self._is_at_rest else TICK_SECONDS
        self._timer = loop.call_later(seconds, self._tick_and_arm, loop)

    @property
    def _is_at_rest(self) -> bool:
        return self._is_joined and self.limits.are_at_rest

    def _wake(self, loop: AbstractEventLoop) -> None:
        """A request waits for a shared limit: a member at rest claims its part now."""
        if self._is_at_rest and self._timer is not None:
            self._timer.cancel()
            self._timer = loop.call_later(0, self._tick_and_arm, loop)

    def _tick_and_arm(self, loop: AbstractEventLoop) -> None:
        try:
            self.tick()
        finally:
            self._arm(loop)

    def tick(self) -> None:
        """Set what has changed by time, and state what there is to state."""
        now_ns = self.clock()
        demand = self.limits.demand(now_ns)
        record = self.member.plan(now_ns, demand) if self._is_open else None
        for shared in self.limits.small_shares(demand):
            self._report_small_share(shared, now_ns)
        self._apply(now_ns)  # lower caps apply here before others read of them
        if record is not None:
            self._send(record, now_ns)
        self._note_state(now_ns)
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
        if place.offset < position and self._is_open:  # what was read there has gone
            self._begin(is_covered=False)
            self._changed = f"a record was appended at {place.offset}, and {position} had been read before"

    # ---- reading

    async def _follow_forever(self) -> None:
        while True:
            try:
                await self._follow_and_close()
            except LogFailed as error:
                self._report(error, self._retries.failed(error.reason))
            except (Exception, asyncio.CancelledError):  # a defect here must end neither the fleet nor the proxy
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
        self._heard_ns = self.clock()
        self._is_open = True
        while True:
            if not self._is_owed:  # what others have written since comes at once, with the next tick
                self._ticked.clear()
                await self._ticked.wait()
            records = await self._topic.read()
            began_ns = self.clock()
            self.take(records)
            took_ns = self.clock() - began_ns
            if took_ns >= BUSY_NS:  # whatever others write, sessions have half of the loop's time
                await asyncio.sleep(took_ns / 1e9)
            if self._changed:
                raise LogChanged("behind", self._changed)
            if self.clock() - self._heard_ns > SILENT_NS:
                raise LogFailed("silent", f"no own record came back for {SILENT_NS // 1_000_000_000} s")

    def take(self, records: Sequence[bytes]) -> None:
        """Apply records that were read just now."""
        now_ns = self.clock()
        for record in records:
            sent_ns = self._sent.pop(record, None)
            if sent_ns is not None:
                self._heard_ns, self._is_owed = now_ns, False
                self._retries.worked()
                self.metrics.delivery.observe((now_ns - sent_ns) / 1e9)
            self.member.apply(record, now_ns)
        self.metrics.read += len(records)
        self._apply(now_ns)
        if self.member.caps.name != self._name:
            self._report_clash()

    def _begin(self, *, is_covered: bool) -> None:
        self.member.begin(self.clock(), is_covered=is_covered)
        self._apply(self.clock())

    # ---- what is shown

    def _apply(self, now_ns: int) -> None:
        for shared in self.limits.apply(now_ns):
            if shared.rate < shared.configured:
                self._report_lower_quota(shared, now_ns)

    def _note_state(self, now_ns: int) -> None:
        is_joined = self.member.caps.is_joined(now_ns)
        if is_joined == self._is_joined:
            return
        self._is_joined = self.metrics.is_joined = is_joined
        shares = self.member.caps.parameters.shares_fallback
        rest = f"1/{self.member.caps.parameters.max_members} of each limit" if shares else "its floor"
        if is_joined:
            _log.info("fleet_joined", fleet=self.member.caps.fleet, member=self._name, members=len(self.member.heard))
        else:
            effect = f"this proxy uses at most {rest}, until it reads the topic again"
            _log.warning("fleet_away", fleet=self.member.caps.fleet, effect=effect)

    def _report(self, error: LogFailed, is_new: bool) -> None:
        """Once for each reason, until it works again."""
        self.metrics.errors[error.reason] += 1
        if not is_new:
            return
        log = _log.error if isinstance(error, LogRefused) else _log.warning
        name = {LogRefused: "fleet_topic_refused", LogChanged: "fleet_topic_changed"}.get(type(error), "fleet_failed")
        effect = f"it is tried again, every {MOST_SECONDS:g} s or so at last; this is not repeated in the log"
        log(name, reason=error.reason, message=error.message, effect=effect)

    def _report_clash(self) -> None:
        names = {"member": self._name, "now": self.member.caps.name}
        self._name = self.member.caps.name
        effect = "another process wrote a record in this name: this proxy goes on from its floor, under a new name"
        hint = "a copy of this machine or container runs, or someone else may write to the topic"
        _log.error("fleet_name_clash", fleet=self.member.caps.fleet, **names, effect=effect, hint=hint)

    def _report_lower_quota(self, shared: SharedLimit, now_ns: int) -> None:
        stated = self.member.stated_quotas(shared.key)
        names = ",".join(stated.get(min(stated, default=0), ())[:5])
        limit = {"limit": shared.limit.name, "entity": str(shared.limit.entity)}
        rates = {"here": float(shared.configured), "applies": float(shared.rate)}
        hint = "the lowest applies to all: give all members the same quotas"
        fields = {**limit, **rates, "stated_by": names, "hint": hint}
        self._lines.event(_log.warning, "fleet_quotas_differ", shared.key, now_ns, **fields)

    def _report_small_share(self, shared: SharedLimit, now_ns: int) -> None:
        """One line for all names of a `<default>`."""
        limit, members, share = shared.limit, shared.claimants, int(shared.fair)
        effect = (
            f"{members} members use it, and this one's share is {share}/s: too low for one producer, whose records may "
            f"expire; smallest shares: {FLOORS}"
        )
        about = {"entities": f"{limit.entity} {limit.name}={shared.rate:g}", "effect": effect, "hint": REMEDY}
        key = BELOW_FLOOR, str(limit.origin), limit.name
        self._lines.event(_log.warning, BELOW_FLOOR, key, now_ns, fleet=shared.fleet, **about)


def fleet_of(config: Config, registry: Registry, clock: Callable[[], int]) -> Fleet | None:
    """The membership of this process; None: it shares nothing. `registry`: before any limit is looked up. `clock`: of
    the registry, too; it goes on while the machine sleeps.
    """
    options = config.fleet
    if options.name is None:
        return None
    from proxy.fleet.topic_log import TopicLog  # aiokafka, if a fleet is configured
    from proxy.own_client import OwnClient

    parameters = Parameters(max_members=options.max_members, shares_fallback=options.fallback == "share")
    host = config.usage.sidecar_name or socket.gethostname()
    member = Member(options.name, parameters, lambda: secrets.randbits(63), host)
    limits = SharedLimits(member, registry, clock)
    registry.lend_by(limits)
    log = TopicLog(OwnClient(config, "kafka-quota-proxy-fleet"), options.topic)
    return Fleet(member, limits, log, FleetMetrics(), clock)
