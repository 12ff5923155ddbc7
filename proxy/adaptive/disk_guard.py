"""Asks brokers how full their disks are, and slows or stops producers: `--disk-guard`.

`quotas.adaptive.disk_guard` decides. Ten times a second its rate goes to the one limit that all producers share, and
readings are taken when they are due. Until the first ones are there, for at most `FIRST_SECONDS`, no Produce request
passes.
"""

import asyncio
from asyncio import AbstractEventLoop, Task, TimerHandle
from collections.abc import Callable
from heapq import nlargest
from typing import Any, Final

from proxy.background.host import Host
from proxy.background.retries import Retries
from proxy.internal_clients.log_dirs import DiskAnswer, LogDirs
from proxy.observability.entities import Entities
from proxy.observability.logs import EventLog
from proxy.observability.metrics import DISK_STATES, DiskFigures
from quotas.adaptive.disk_guard import Decision, DiskGuard, DiskMarks, Reading, State
from quotas.adaptive.producer_guard import ProducerGuard
from quotas.fleet.member import Member
from quotas.registry.registry import Registry
from quotas.time_units import NS_PER_SECOND

TICK_SECONDS: Final = 0.1
FIRST_SECONDS: Final = 10.0
#: Proxies that started together ask at different times: a poll is due up to this part earlier.
_JITTER: Final = 0.1
#: How long refused batches may take to come back.
_COME_BACK_NS: Final = 30 * NS_PER_SECOND
#: The part of the worst disk that open transactions may fill after producers are stopped.
_TRANSACTIONS_SHARE: Final = 200
FACT: Final = "disk_factor"
"""What a member of a fleet advertises: its factor in thousandths, rounded down."""
_EVENTS: Final = {State.OPEN: "disk_guard_open", State.SLOWING: "disk_guard_slowing", State.FULL: "disk_guard_full"}
_EFFECT: Final = "the disk guard keeps its last state, and counts what passes"

_log = EventLog(__name__)


class DiskGuardTask:
    """Runs from `start` to `close`. `member`: of the fleet, if there is one.

    rules       decide; they have the readings
    producers   the limit and what streams see; the registry has it only while it is active
    decision    the latest one
    waits       the first readings are not there yet
    """

    def __init__(
        self,
        log_dirs: LogDirs,
        marks: DiskMarks,
        producers: ProducerGuard,
        host: Host,
        registry: Registry,
        entities: Entities,
        enforces: Callable[[], bool],
        member: Member | None,
    ) -> None:
        self.producers: Final = producers
        self._host: Final = host
        self._registry: Final = registry
        self._entities: Final = entities
        self._enforces: Final = enforces
        self._member: Final = member
        #: The lowest factor of the other members, and how many members there are; when that was read.
        self._fleet: tuple[float, int] = 1.0, 1
        self._fleet_ns = -NS_PER_SECOND
        self._log_dirs: Final = log_dirs
        now_ns = host.clock()
        self.rules: Final = DiskGuard(marks, now_ns)
        self.decision: Decision = self.rules.decide(0, now_ns)
        self.waits = True
        self._polled_ns = self._opened_ns = now_ns
        self._retries = Retries(host.random)
        self._polling: Task[None] | None = None
        self._timer: TimerHandle | None = None
        self._was_enforcing = enforces()

    # ---- in the event loop

    def start(self, loop: AbstractEventLoop) -> None:
        """Hold producers until the first readings are there."""
        self.producers.message = "disk guard: the disks of the brokers are not known yet"
        self._registry.guard_producers(self.producers)
        self._set_rate(0, self._host.clock())
        self._polling = loop.create_task(self._first())
        self._tick(loop)

    def close(self) -> None:
        for each in (self._timer, self._polling):
            if each is not None:
                each.cancel()

    def _tick(self, loop: AbstractEventLoop) -> None:
        self._timer = loop.call_later(TICK_SECONDS, self._tick, loop)
        now_ns = self._host.clock()
        self.tick(now_ns)
        due_ns = self._polled_ns + int(self.decision.poll_ns * (1 - _JITTER * self._host.random.random()))
        if (self._polling is None or self._polling.done()) and now_ns >= due_ns:
            self._polling = loop.create_task(self.poll())

    async def _first(self) -> None:
        try:
            async with asyncio.timeout(FIRST_SECONDS):
                await self.poll()
        except TimeoutError:
            self._failed("timeout", f"no broker answered within {FIRST_SECONDS:g} s", None)
        self.waits = False
        if not self.rules.disks:
            effect = "producers are not limited until the brokers answer"
            _log.warning("disk_guard_blind", effect=effect, marks=self.rules.marks.text)
        self.tick(self._host.clock())

    async def poll(self) -> None:
        """Ask all brokers."""
        asked_ns = self._polled_ns = self._host.clock()
        try:
            answers = await self._log_dirs.answers()
        except Exception as error:  # noqa: BLE001 - a defect that one answer shows must not end the polling
            self._failed(*self._log_dirs.explain(error))
            return
        self.take(answers, asked_ns)

    def take(self, answers: list[DiskAnswer], asked_ns: int) -> None:
        """Use these answers, asked for at `asked_ns`."""
        failures = [each.failure for each in answers if each.failure is not None]
        for each in answers:
            if each.failure is None:
                self.rules.take(each.broker, [Reading(*directory) for directory in each.directories], asked_ns)
        for failure in failures:
            self._failed(*self._log_dirs.explain(failure))
        if answers and not failures:
            if self._retries.is_failing:
                _log.info("disk_guard_recovered")
            self._retries.worked()
        self.tick(self._host.clock())

    def _failed(self, reason: str, message: str, hint: str | None) -> None:
        if self._retries.failed(reason):
            _log.warning("disk_guard_failed", reason=reason, message=message, hint=hint, effect=_EFFECT)

    # ---- from readings to the limit

    def tick(self, now_ns: int) -> None:
        """Decide, and set the rate of the limit."""
        before = self.decision
        self.decision = found = self.rules.decide(self._entities.produced_bytes(), now_ns, *self._others(now_ns))
        if self._member is not None:
            self._member.facts[FACT] = int(1000 * found.own_factor)
        if self.waits:
            self._set_rate(0, now_ns)
            return
        self.producers.message = self.message
        self._note(before, found, now_ns)
        was_enforcing, self._was_enforcing = self._was_enforcing, self._enforces()
        if self._was_enforcing and not was_enforcing:
            self.producers.renew()
            self._registry.guard_producers(self._registry.guard)
        if found.rate is None:
            self._open(now_ns)
            return
        self._opened_ns = 0
        if self._registry.guard is None:
            self.producers.renew()
            self._registry.guard_producers(self.producers)
        self._set_rate(found.rate, now_ns)

    @property
    def message(self) -> str:
        """For clients: which disk, how full, and the mark that holds them."""
        worst = self.decision.worst
        if worst is None or self.decision.own_factor > self.decision.factor:
            return f"disk guard {self.rules.marks.text}: a disk is nearly full, by another member of the fleet"
        return f"disk guard {self.rules.marks.text}: {worst}"

    @property
    def state(self) -> str:
        """In a word: `starting`, `open`, `slowing` or `full`."""
        return DISK_STATES[0 if self.waits else 1 + self.decision.state]

    def figures(self, most: int) -> DiskFigures:
        """For the metrics, with the fullest disks."""
        now_ns = self._host.clock()
        found = [
            (disk.broker, disk.directory, disk.used / disk.total, (now_ns - disk.read_ns) / NS_PER_SECOND, disk.fill)
            for disk in self.rules.disks.values()
        ]
        disks = nlargest(most, found, key=lambda disk: disk[2])
        return DiskFigures(self.state, self.decision.factor, self.is_stale, self.producers.refused, disks)

    @property
    def is_stale(self) -> bool:
        """Whether a broker has given no reading for long, or none is there."""
        return not self.waits and (bool(self.decision.stale) or not self.rules.disks)

    def page(self) -> dict[str, Any]:
        """For the page /config."""
        found, worst = self.decision, self.decision.worst
        return {
            "state": self.state,
            "marks": self.rules.marks.text,
            "factor": round(found.factor, 4),
            "rate": found.rate,
            "worst": None if worst is None else worst._asdict(),
            "stale_brokers": [*found.stale],
            "is_stale": self.is_stale,
        }

    def _others(self, now_ns: int) -> tuple[float, int]:
        member = self._member
        if member is not None and now_ns - self._fleet_ns >= NS_PER_SECOND:
            facts = member.live_facts(now_ns)
            del facts[member.caps.name]
            found = [value for each in facts.values() if isinstance(value := each.get(FACT), int)]
            self._fleet = min(max(min(found, default=1000), 0), 1000) / 1000, 1 + len(facts)
            self._fleet_ns = now_ns
        return self._fleet

    def _open(self, now_ns: int) -> None:
        """Nothing is limited."""
        if self._registry.guard is not None:
            self._registry.guard_producers(None)
            self._opened_ns = now_ns
        elif self._opened_ns and now_ns - self._opened_ns >= _COME_BACK_NS:
            self._registry.guard_producers(None, may_have_refused=False)
            self._opened_ns = 0

    def _set_rate(self, rate: int, now_ns: int) -> None:
        self._registry.set_rate(self.producers.limit, *self.producers.terms(rate, now_ns), now_ns)
        if not rate:
            self.producers.stay_stopped(now_ns)

    def _note(self, before: Decision, found: Decision, now_ns: int) -> None:
        """Log each change of the state, and tell what may pass then."""
        if found.state is not before.state:
            if found.state is State.FULL:
                # When the proxy starts, no transaction is open.
                smallest = min((disk.total for disk in self.rules.disks.values()), default=0)
                self.producers.stopped(smallest // _TRANSACTIONS_SHARE if before.worst else 0, now_ns)
            else:
                self.producers.resumed()
            worst_text = None if found.worst is None else str(found.worst)
            level = _log.info if found.state is State.OPEN else _log.warning
            fields = {"factor": round(found.factor, 3), "rate": found.rate, "marks": self.rules.marks.text}
            level(_EVENTS[found.state], worst=worst_text, **fields)
        new = [str(each) for each in found.stale if each not in before.stale]
        if new:
            _log.warning("disk_guard_stale", brokers=",".join(new), effect=_EFFECT)
