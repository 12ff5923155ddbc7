"""Connections that send frames, read by read, through real limits, requests and timers; on a clock and a loop of the
test. Only the bytes are left out: `Sender` stands for session, pump and stream.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from proxy.enforcement.identity import Identity
from proxy.enforcement.measures import Reply
from proxy.sessions.wakeups import Wakeups
from proxy.streams.connection import Connection
from proxy.streams.held_request import HeldRequest, HoldOwner
from quotas.admission.frame import in_order
from quotas.admission.limit import Limit
from quotas.algorithms.leased_bucket import LeasedBucket
from quotas.limit_kinds import REQUEST_RATE
from tests.proxy.streams.pair import World
from tests.quotas.algorithms.slow_lease import SECOND, SlowLease


@dataclass(frozen=True)
class Charge:
    """What one read of a frame was charged by a limit."""

    at_ns: int
    sender: Sender
    limit: Limit
    units: int


class Ledger:
    """What a limit has charged, beside what its rates have earned (`SlowLease`).

    most_over   the largest excess of what was charged in any time over the integral of the rate and the burst, less the
                frame that was charged last
    """

    def __init__(self, limit: Limit) -> None:
        bucket = limit.algorithm
        self.model = SlowLease(bucket.rate, bucket.burst_ns)
        self.charged = 0
        self.least = self.most_over = -self.model.burst

    def on_charge(self, units: int, frame: int, now_ns: int) -> None:
        model = self.model
        model.pass_time(now_ns)
        self.least = (
            min(self.least, self.charged - model.earned + model.burst) if self.charged else model.burst - model.earned
        )
        self.charged += units
        self.most_over = max(self.most_over, self.charged - model.earned - self.least - frame)


class Scene:
    """Limits, senders and time. `late_ns`: by how much timers are late, in turn; `work_ns`: how long each read takes."""

    def __init__(self, limits: Iterable[Limit], *, late_ns: Sequence[int] = (0,), work_ns: int = 0) -> None:
        self.world = World(late_ns=late_ns)
        self.clock, self.loop = self.world.clock, self.world.loop
        self.wakeups: Wakeups = self.world.shared.wakeups
        self.late_ns = max(late_ns)
        self.work_ns = work_ns
        self.ledgers = {limit: Ledger(limit) for limit in limits}
        self.charges: list[Charge] = []
        self.senders: list[Sender] = []
        self.waiting: dict[Sender, Wait] = {}
        self.waits: list[Wait] = []
