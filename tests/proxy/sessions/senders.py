"""Connections that send frames, read by read, through real limits, requests and timers; on a clock and a loop of the
test. Only the bytes are left out: a `Sender` stands for session, pump and stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import inf

from proxy.enforcement.identity import Identity
from proxy.enforcement.throttle_actions import Reply
from proxy.streams.connection import Connection
from proxy.streams.limited_request import LimitedRequest
from quotas.admission.frame import in_order
from quotas.admission.limit import Limit
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.limit_kinds import REQUEST_RATE
from tests.proxy.streams.pair import World
from tests.quotas.algorithms.slow_lease import SlowLease


class Ledger:
    """What a limit has charged, beside what its rates have earned (`SlowLease`).

    over   by how much the charges in some time were above the integral of the rate, the burst and the frame that was
           charged last, at most; 0 or less: never
    """

    def __init__(self, limit: Limit, now_ns: int) -> None:
        self._model = SlowLease(limit.algorithm.rate, limit.algorithm.burst_ns)
        self._model.pass_time(now_ns)
        self._least: Fraction | float = inf
        self.charged = 0
        self.over: Fraction | float = -inf

    def charge(self, units: int, frame: int, now_ns: int) -> None:
        model = self._model
        model.pass_time(now_ns)
        self._least = min(self._least, self.charged - model.earned + model.burst)
        self.charged += units
        self.over = max(self.over, self.charged - model.earned - self._least - frame)

    def grant(self, rate: int, burst_ns: int, until_ns: int, floor: int, now_ns: int) -> None:
        self._model.grant(rate, burst_ns, until_ns, floor, now_ns)


@dataclass(eq=False)
class Wait:
    """A frame in the queue of a limit.

    number   of the frame
    size     units of the frame that are left
    again    it had its turn there before
    charged  what the limit has charged others meanwhile
    """

    sender: Sender
    number: int
    limit: Limit
    size: int
    again: bool
    charged: Counter[Sender] = field(default_factory=Counter)


class Scene:
    """Limits, senders, and time.

    late_ns   by how much timers are late, in turn
    work_ns   how long each read takes
    frames    how many begin in all
    """

    def __init__(
        self, limits: Iterable[Limit], *, late_ns: Sequence[int] = (0,), work_ns: int = 0, frames: int = 1 << 62
    ) -> None:
        self.world = World(late_ns=late_ns)
        self.clock, self.loop, self.wakeups = self.world.clock, self.world.loop, self.world.shared.wakeups
        self.work_ns = work_ns
        self.frames = frames
        self.ledgers = {limit: Ledger(limit, self.clock()) for limit in limits}
        #: When, who, where, how many units.
        self.charges: list[tuple[int, Sender, Limit, int]] = []
        self.held: dict[Sender, Wait] = {}
        self.waits: list[Wait] = []
        #: Frames, by number, and the limits in whose queues they had their turns.
        self.slices: set[tuple[int, Limit]] = set()

    def grant(self, limit: Limit, rate: int, burst_ns: int, lease_ns: int, floor: int) -> None:
        """As `Registry.set_rate`."""
        now_ns = self.clock()
        assert isinstance(limit.algorithm, LeasedBucket)
        limit.algorithm.grant(rate, burst_ns, now_ns + lease_ns, floor, now_ns)
        self.ledgers[limit].grant(rate, burst_ns, now_ns + lease_ns, floor, now_ns)
        self.wakeups.rate_changed(limit)

    def run(self) -> None:
        """Until all frames have passed, or their senders are dead."""
        while self.loop.next():
            pass
        assert (self.held, self.loop.pending) == ({}, [])

    def charge(self, sender: Sender, limit: Limit, units: int, frame: int) -> None:
        """A read of a frame that is charged `frame` units in all."""
        now_ns = self.clock()
        self.charges.append((now_ns, sender, limit, units))
        self.ledgers[limit].charge(units, frame, now_ns)
        for wait in self.held.values():
            if wait.limit is limit and wait.sender is not sender:
                wait.charged[sender] += units


class Sender:
    """One connection: a frame of each of these sizes, one read in each round of the loop; a pause after each frame.

    passed   how many of its frames have passed whole
    """

    def __init__(
        self,
        scene: Scene,
        limits: tuple[Limit, ...],
        sizes: Iterator[int],
        *,
        read_size: int = 1 << 40,
        pause_ns: int = 0,
    ) -> None:
        self.scene = scene
        self.limits = limits
        self.passed = 0
        self._sizes = sizes
        self._read_size = read_size
        self._pause_ns = pause_ns
        context = scene.world.context
        self._connection = Connection(
            context, Identity(scene.world.config, context.registry, context.metrics.entities, "")
        )
        self._connection.identity.identify("etl", scene.clock())
        self._request: LimitedRequest | None = None
        self._left = self._read = 0
        self._rests = False
        self._is_dead = False
        self._has_turn = False
        self.resume()

    def resume(self) -> None:
        """Read in the next round."""
        self._rests = False
        if not self._has_turn:
            self._has_turn = True
            self.scene.loop.call_soon(self._turn)

    def die(self) -> None:
        """Its client hangs up."""
        self._is_dead = True
        request, self._request = self._request, None
        if request is not None:
            if request.is_held:
                del self.scene.held[self]
                self.scene.wakeups.forget(request)
            request.close(self._connection, self.scene.clock())

    def release(self, request: LimitedRequest, reads: int) -> None:
        """See `HoldOwner`."""
        assert request is self._request
        assert not self._is_dead
        wait = self.scene.held.pop(self)
        self.scene.slices.add((wait.number, wait.limit))
        self._pass(request)
        if self.is_held:
            return
        self.resume()
        for _ in range(reads):
            self._read_on()

    @property
    def is_held(self) -> bool:
        return self in self.scene.held

    def _turn(self) -> None:
        self._has_turn = False
        self._read_on()
        if not self.is_held and not self._rests and not self._is_dead:
            self.resume()

    def _read_on(self) -> None:
        """One read, if there is something to read."""
        if self._is_dead or self._rests or self.is_held:
            return
        if self._request is None:
            size = next(self._sizes, None)
            if size is None or not self.scene.frames:
                self._rests = True
                return
            self.scene.frames -= 1
            client = self._connection.identity.client
            self._request = LimitedRequest(client, Reply.NOTICE, size)  # type: ignore[abstract]  # it needs no response
            self._left = size
        request, is_first = self._request, self._left == self._request.size
        self._read = min(self._left, self._read_size)
        request.charges = in_order(
            {
                limit: 1 if is_counted else self._read
                for limit in self.limits
                if (is_counted := _is_counted(limit)) <= is_first
            }
        )
        self.scene.clock.now_ns += self.scene.work_ns
        self._pass(request)

    def _pass(self, request: LimitedRequest) -> None:
        """Pass the latest read, or wait."""
        scene, now_ns = self.scene, self.scene.clock()
        before = list(request.charges)
        has_passed = request.pass_limits(self._connection, self._read, self._left, now_ns)
        for limit, units in before[: len(before) - len(request.charges)]:
            scene.charge(self, limit, units, 1 if _is_counted(limit) else request.size)
        if not has_passed:
            at = request.limit
            assert at is not None
            again = (request.number, at) in scene.slices
            wait = Wait(self, request.number, at, at.waiters.size_of(request), again)
            scene.held[self] = wait
            scene.waits.append(wait)
            scene.wakeups.add(request, self)
            return
        self._left -= self._read
        if not self._left:
            self._request = None
            self.passed += 1
            request.leave_debt(self._connection, now_ns)
            request.end(self._connection, now_ns)
            if self._pause_ns:
                self._rests = True
                scene.loop.call_later(self._pause_ns / 1e9, self.resume)


def _is_counted(limit: Limit) -> bool:
    """Whether it counts frames, not bytes."""
    return limit.name == REQUEST_RATE
