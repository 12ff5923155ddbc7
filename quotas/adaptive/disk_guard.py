"""How much producers may write while the disks of brokers fill up: from readings of the disks to one rate.

A disk has two marks. Below SOFT nothing happens. Between the marks the factor falls from 1 to 0 with the room that is
left, so producers slow down more and more, and the disk approaches HARD without reaching it. Just below HARD they stop.

    factor = (HARD - used) / (HARD - SOFT)      rate = factor * the rate at which producers came

Growth in proportion to the room decays exponentially, whatever else it is proportional to: replication, a hot
partition, other proxies. So neither the replication factor nor the place of a partition needs to be known.

Between two readings a disk counts as `used` plus all bytes that this proxy has passed since, starting `LAG_NS` before
the reading, for what brokers and followers had not written yet. So a flood is stopped before it is seen on a disk. What
a broker writes for others than this proxy is seen with its next reading.

A mark counts as passed at once, but as left only after two readings that are lower by a margin. A broker that gives no
readings keeps its last one, and what passes still counts: it will copy that when it comes back. Therefore nothing but a
new reading can raise a factor.
"""

from collections import deque
from dataclasses import dataclass
from enum import IntEnum
from fractions import Fraction
from heapq import nsmallest
from math import exp
from typing import Final, NamedTuple

from quotas.time_units import NS_PER_SECOND

LAG_NS: Final = 5 * NS_PER_SECOND
"""How long what has passed may be on its way to a disk: in the broker's queue, or to a follower."""
STALE_NS: Final = 300 * NS_PER_SECOND
SLOWEST_POLL_NS: Final = 60 * NS_PER_SECOND
FASTEST_POLL_NS: Final = 5 * NS_PER_SECOND
CONFIRMING_POLL_NS: Final = NS_PER_SECOND
"""While only what has passed since the last reading says that a mark is reached."""
MARGIN: Final = Fraction(5, 100)
STOP_SHARE: Final = Fraction(2, 100)
"""Producers stop when so much of the room between the marks is left: a rate close to 0 only makes requests expire."""
QUICKEST_SECONDS: Final = 30
SLOWEST_SECONDS: Final = 900
"""How fast producers may be at factor 1: a disk takes so long from SOFT to HARD at that rate, at least and at most."""
MAX_DISKS: Final = 10_000
#: Of these the factor is computed each time: those with the least room.
_TIGHTEST: Final = 50
#: More growth than this for each byte that passes comes from others, and is not this proxy's.
_MOST_GAIN: Final = 4
_GAIN_SECONDS: Final = 600
_FILL_SECONDS: Final = 60


class State(IntEnum):
    """Of a disk, and of the guard: that of its worst disk."""

    OPEN = 0
    SLOWING = 1
    FULL = 2


@dataclass(frozen=True, slots=True)
class DiskMarks:
    """`soft` and `hard`: used fractions of a disk, or free bytes with `is_free`; `text`: as operators write them."""

    soft: Fraction
    hard: Fraction
    text: str
    is_free: bool = False

    def __str__(self) -> str:
        return self.text

    def used(self, total: int) -> tuple[int, int, int]:
        """The marks of a disk in used bytes, and by how much usage has to be lower before one counts as left."""
        if not self.is_free:
            return int(total * self.soft), int(total * self.hard), int(total * MARGIN)
        soft, hard = max(0, total - int(self.soft)), max(1, total - int(self.hard))
        return soft, hard, (hard - soft) // 2


class Reading(NamedTuple):
    """One directory of a broker; sizes in bytes."""

    directory: str
    total: int
    usable: int


class Worst(NamedTuple):
    """The disk that decides.

    used_ratio        with what is on its way; `read_ratio`: at its latest reading
    full_in_seconds   None: it does not fill
    """

    broker: int
    directory: str
    used_ratio: float
    read_ratio: float
    age_seconds: float
    full_in_seconds: float | None

    def __str__(self) -> str:
        late = self.used_ratio - self.read_ratio
        more = f", {100 * late:.1f} % of it on its way" if late >= 0.001 else ""
        return f"broker {self.broker} at {100 * self.used_ratio:.1f} %{more}, in {self.directory}"


class Decision(NamedTuple):
    """What applies until the next one.

    factor   0 to 1; `own_factor` is without those of other members of the fleet
    rate     bytes per second that producers may write together; 0: none; None: nothing is limited
    worst    None while there is no reading
    stale    brokers without a new reading for `STALE_NS`, in order
    poll_ns  until the next readings should be taken, from the last ones on
    """

    state: State
    factor: float
    own_factor: float
    rate: int | None
    worst: Worst | None
    stale: tuple[int, ...]
    poll_ns: int


class Disk:
    """One directory of a broker.

    fill        bytes per second by which it grows, averaged; below 0 while it shrinks
    gain        bytes by which it grows for each byte that passes this proxy
    estimated   its used bytes, with those that are on their way
    """

    def __init__(self, broker: int, reading: Reading, marks: DiskMarks, now_ns: int, passed: tuple[int, int]) -> None:
        self.broker: Final = broker
        self.fill = 0.0
        self.state = State.OPEN
        self._lower = 0
        # As if a thousandth of it had been written by this proxy, byte for byte: so the first readings change little.
        self._grown = self._passed = 1 + reading.total / 1000
        self._take(reading, marks, now_ns, passed)

    def take(self, reading: Reading, marks: DiskMarks, now_ns: int, passed: tuple[int, int]) -> None:
        """A new reading, asked for at `now_ns`; `passed`: bytes until `LAG_NS` before that, and until then."""
        seconds = (now_ns - self.read_ns) / NS_PER_SECOND
        if seconds > 0:
            growth, kept = reading.total - reading.usable - self.used, exp(-seconds / _GAIN_SECONDS)
            self._grown = self._grown * kept + growth
            self._passed = self._passed * kept + passed[1] - self._passed_then + 1
            self.fill += (growth / seconds - self.fill) * (1 - exp(-seconds / _FILL_SECONDS))
        self._take(reading, marks, now_ns, passed)

    def _take(self, reading: Reading, marks: DiskMarks, now_ns: int, passed: tuple[int, int]) -> None:
        self.directory, self.total, usable = reading
        self.used = self.estimated = self.total - usable
        self.soft, self.hard, self.margin = marks.used(self.total)
        self.read_ns, (self.passed, self._passed_then) = now_ns, passed
        self.stop = self.hard - int((self.hard - self.soft) * STOP_SHARE)
        held = self._state_at(self.used + self.margin)
        if self._state_at(self.used) >= self.state:
            self.state, self._lower = self._state_at(self.used), 0
        elif held < self.state:
            self._lower += 1
            if self._lower == 2:
                self.state, self._lower = held, 0
        else:
            self._lower = 0

    def _state_at(self, used: int) -> State:
        return State.FULL if used >= self.stop else State.SLOWING if used >= self.soft else State.OPEN

    @property
    def gain(self) -> float:
        return max(0.0, self._grown) / self._passed

    def estimate(self, passed: int, now_ns: int) -> int:
        """Count what has passed. Never less than before, until the next reading."""
        since, is_fresh = passed - self.passed, now_ns - self.read_ns < SLOWEST_POLL_NS + LAG_NS
        # A byte may be written once on each disk. A broker that has vanished gets its usual part of what passes.
        weight = min(max(self.gain, 1.0), _MOST_GAIN) if is_fresh else min(self.gain, 1.0)
        self.estimated = max(self.estimated, self.used + int(since * weight))
        return self.estimated

    def factor(self, passed: int, now_ns: int) -> float:
        """1 below SOFT, 0 where producers stop."""
        used = self.estimate(passed, now_ns)
        if self.state is State.FULL or used >= self.stop:
            return 0.0
        return min(1.0, (self.hard - used) / max(1, self.hard - self.soft))

    def speed(self, speed: float, members: int) -> float:
        """The rate at factor 1, for producers that came at `speed`."""
        room = (self.hard - self.soft) / max(min(self.gain, _MOST_GAIN * members), members)
        return min(max(speed, room / SLOWEST_SECONDS), room / QUICKEST_SECONDS)

    @property
    def room(self) -> tuple[int, float]:
        """Disks in this order have less and less reason to slow producers."""
        return -self.state, (self.hard - self.used) / max(1, self.hard - self.soft)

    def full_in_seconds(self) -> float | None:
        """Until HARD, at the rate of filling; None: it does not fill."""
        return max(0, self.hard - self.used) / self.fill if self.fill > 0 else None


class DiskGuard:
    """The readings of all brokers, and what follows from them. `passed`: bytes that producers have sent so far."""

    def __init__(self, marks: DiskMarks, now_ns: int) -> None:
        self.marks: Final = marks
        self.disks: dict[tuple[int, str], Disk] = {}
        #: What had passed, each time that it was asked.
        self._history: deque[tuple[int, int]] = deque([(now_ns, 0)])
        #: Of producers, when the guard began to slow them; None: it does not.
        self._speed: float | None = None
        self._tightest: list[Disk] = []

    def take(self, broker: int, readings: list[Reading], asked_ns: int) -> None:
        """The answer of one broker: all its directories whose sizes are known. Others of this broker are forgotten: it
        was started without them. Those that have failed are no longer written.
        """
        passed = self._passed_at(asked_ns - LAG_NS), self._passed_at(asked_ns)
        found = {(broker, reading.directory): reading for reading in readings}
        for key in [key for key in self.disks if key[0] == broker and key not in found]:
            del self.disks[key]
        for key, reading in found.items():
            disk = self.disks.get(key)
            if disk is not None:
                disk.take(reading, self.marks, asked_ns, passed)
            elif len(self.disks) < MAX_DISKS:
                self.disks[key] = Disk(broker, reading, self.marks, asked_ns, passed)
        self._tightest = nsmallest(_TIGHTEST, self.disks.values(), key=lambda disk: disk.room)

    def decide(self, passed: int, now_ns: int, others: float = 1.0, members: int = 1) -> Decision:
        """Call it ten times a second. `others`: the lowest factor of the other `members` of a fleet."""
        self._note(passed, now_ns)
        disks = self._tightest
        factors = [disk.factor(passed, now_ns) for disk in disks]
        state = max((disk.state for disk in disks), default=State.OPEN)
        own = min(factors, default=1.0)
        factor, rate = min(own, others), None
        if factor >= 1 and state is State.OPEN:
            self._speed = None
        else:
            state = State.FULL if not factor else max(state, State.SLOWING)
            if self._speed is None:
                self._speed = self._usual_rate()
            rate = self._rate(factors, others, members, self._speed)
        stale = tuple(sorted({disk.broker for disk in self.disks.values() if now_ns - disk.read_ns >= STALE_NS}))
        return Decision(state, factor, own, rate, self._worst(factors, now_ns), stale, self._poll_ns(own, now_ns))

    # ---- inside

    def _rate(self, factors: list[float], others: float, members: int, speed: float) -> int:
        rates = [
            min(factor, others) * disk.speed(speed, members)
            for disk, factor in zip(self._tightest, factors, strict=True)
            if min(factor, others) < 1 or disk.state
        ]
        return int(min(rates, default=others * speed))

    def _worst(self, factors: list[float], now_ns: int) -> Worst | None:
        if not factors:
            return None
        found = zip(self._tightest, factors, strict=True)
        disk, _ = min(found, key=lambda each: (each[1], each[0].room))
        age_seconds = (now_ns - disk.read_ns) / NS_PER_SECOND
        used, read = min(1.0, disk.estimated / max(1, disk.total)), disk.used / max(1, disk.total)
        return Worst(disk.broker, disk.directory, used, read, age_seconds, disk.full_in_seconds())

    def _poll_ns(self, own: float, now_ns: int) -> int:
        """A quarter of the time until a disk reaches SOFT, if it fills as it did, or with all that passes."""
        if any(disk.state for disk in self._tightest):
            return FASTEST_POLL_NS
        if own < 1:
            return CONFIRMING_POLL_NS
        rate = self._recent_rate(now_ns)
        rooms = ((disk.soft - disk.used) / max(disk.fill, rate, 1.0) for disk in self._tightest)
        quarter_ns = int(min(rooms, default=0.0) / 4 * NS_PER_SECOND)
        return min(max(quarter_ns, FASTEST_POLL_NS), SLOWEST_POLL_NS)

    def _note(self, passed: int, now_ns: int) -> None:
        history = self._history
        history.append((now_ns, passed))
        while history[1][0] < now_ns - 2 * SLOWEST_POLL_NS:
            history.popleft()

    def _passed_at(self, at_ns: int) -> int:
        """What had passed at that time, or somewhat earlier."""
        return next((passed for noted_ns, passed in reversed(self._history) if noted_ns <= at_ns), self._history[0][1])

    def _usual_rate(self) -> float:
        """The most bytes per second over ten seconds of the last two minutes: producers may just be pausing."""
        history, most, oldest = self._history, 0.0, 0
        for noted_ns, passed in history:
            while noted_ns - history[oldest][0] > 10 * NS_PER_SECOND:
                oldest += 1
            since_ns, before = history[oldest]
            most = max(most, (passed - before) / max(1.0, (noted_ns - since_ns) / NS_PER_SECOND))
        return most

    def _recent_rate(self, now_ns: int) -> float:
        """Bytes per second in the last ten seconds."""
        since_ns = max(now_ns - 10 * NS_PER_SECOND, self._history[0][0])
        seconds = max(0.1, (now_ns - since_ns) / NS_PER_SECOND)
        return (self._history[-1][1] - self._passed_at(since_ns)) / seconds
