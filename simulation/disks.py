"""The disks of brokers, and what `--disk-guard` may let pass by what it has read of them.

Replicas are on all brokers, or on none but the leader's; others than the proxies write, too (`fill`).
"""

from collections import deque
from fractions import Fraction
from typing import Any, Final

from quotas.adaptive.disk_guard import QUICKEST_SECONDS, STOP_SHARE, DiskMarks
from simulation import draws, kafka
from simulation.broker import Broker
from simulation.kernel import SECOND
from simulation.process import ProxyProcess
from simulation.scene import Scene
from simulation.taps import NO_LIMIT, Bound, Line

SOFT, HARD = Fraction(60, 100), Fraction(90, 100)
MARKS: Final = DiskMarks(SOFT, HARD, "60%..90%")
DIRECTORY: Final = "/data"
EMPTY: Final = 0.2
"""How full a disk is after everything is healed."""
LOOK_SECONDS: Final = 0.2
LATE_NS: Final = SECOND
"""After this a reading must have its effect."""
FLEET_NS: Final = 15 * SECOND
"""After this a factor must apply at the other members."""
TRANSACTIONS: Final = 0.005
"""The part of a disk that open transactions may fill after producers are stopped."""
BURST_SECONDS: Final = 0.1
REFUSED, FAILED = 31, 57


class Disks:
    """`used`: bytes, by broker. `blind`: proxies to which brokers refuse how full they are, by host."""

    def __init__(self, scene: Scene) -> None:
        self.scene, self.kernel = scene, scene.kernel
        random = scene.kernel.random
        self.total = random.choice([200_000_000, 400_000_000])
        self.is_replicated = random.random() < 0.5
        self.used: dict[int, float] = {}
        self.blind: set[str] = set()
        #: What others have written while a disk was above HARD is theirs.
        self._over: dict[int, float] = {}
        #: What a proxy has read last, by process and broker.
        self._read: dict[ProxyProcess, dict[int, int]] = {}
        self._passed: dict[ProxyProcess, Bound] = {}
        #: While a disk is full: what may still pass.
        self._rests: dict[ProxyProcess, float] = {}
        self._allowed: dict[ProxyProcess, deque[tuple[int, float]]] = {}
        self._factors: dict[ProxyProcess, deque[tuple[int, float]]] = {}
        self.kernel.every(LOOK_SECONDS, self._look)

    # ---- brokers

    def add(self, broker: Broker) -> None:
        """One that has come."""
        number = broker.number
        broker.handlers[kafka.LOG_DIRS] = lambda request: self._described(number, request.connection.host)
        self.used[number] = self.total * self.kernel.random.uniform(
            *self.kernel.random.choice([(0.45, 0.6), (0.6, 0.89)])
        )

    def written(self, number: int, size: float) -> None:
        """By the leader of a partition."""
        for each in self.used if self.is_replicated else (number,):
            self.used[each] += size
            if self.used[each] > self.total * HARD:
                self._over[each] = self._over.get(each, 0.0) + size

    def fill(self, number: int, size: float) -> None:
        """Others write that, or free it."""
        self.used[number] = max(0.0, self.used[number] + size)

    def heal(self) -> None:
        self.used = dict.fromkeys(self.used, self.total * EMPTY)

    def _described(self, number: int, host: str) -> tuple[Any, ...]:
        """The answer to DescribeLogDirs."""
        if host in self.blind:
            return 0, REFUSED, []
        usable = max(0, int(self.total - self.used[number]))
        return 0, 0, [(0, DIRECTORY, [], self.total, usable), (FAILED, "/broken", [], -1, -1)]

    # ---- what may pass

    def passed(self, host: str, size: int, line: Line) -> None:
        """Bytes of a Produce request have passed a proxy."""
        for proxy, bound in self._running_at(host):
            bound.add(size, line)
            if proxy in self._rests:
                self._rests[proxy] -= size

    def begun(self, host: str, line: Line) -> None:
        """A Produce request of a client begins, which may wait at the proxy."""
        for _, bound in self._running_at(host):
            bound.lines.begun(line)

    def _running_at(self, host: str) -> list[tuple[ProxyProcess, Bound]]:
        return [each for each in self._passed.items() if each[0].address == host and each[0].exit_code is None]

    def _look(self) -> None:
        now_ns = self.kernel.now_ns
        for proxy in self.scene.proxies:
            guard = getattr(proxy.server, "disk_guard", None)
            if guard is None or proxy.exit_code is not None or proxy.loop.is_stopped:
                continue
            bound = self._passed.setdefault(proxy, Bound(self.scene.limits.clock, NO_LIMIT))
            allowed = self._allowed.setdefault(proxy, deque())
            read = self._read.setdefault(proxy, {})
            read.update({broker: disk.used for (broker, _), disk in guard.rules.disks.items()})
            allowed.append((now_ns, self._rate(max(read.values(), default=0))))
            while allowed[0][0] < now_ns - LATE_NS:
                allowed.popleft()
            bound.set_rate(max(rate for _, rate in allowed))
            self._stop(proxy, bound)
            factors = self._factors.setdefault(proxy, deque())
            factors.append((now_ns, guard.decision.own_factor))
            while factors[0][0] < now_ns - FLEET_NS:
                factors.popleft()
        if self.scene.kinds <= draws.HARMLESS | draws.OF_DISKS:
            self._compare()

    def _stop(self, proxy: ProxyProcess, bound: Bound) -> None:
        """Only the rest of what has begun passes, and transactions that are open."""
        if bound.rate:
            self._rests.pop(proxy, None)
            return
        if proxy not in self._rests:
            lines = [each for each in self.scene.requests if each.sock.host == proxy.address]
            begun = sum(each.left_bytes for each in lines if not each.sock.is_closed)
            self._rests[proxy] = begun + bound.longest + TRANSACTIONS * self.total
        if self._rests[proxy] < 0:
            self.scene.fail(f"{proxy.address}: {-self._rests[proxy]:,.0f} bytes passed, and may not: a disk is full")

    def _rate(self, used: int) -> float:
        """Bytes per second that one member may let pass, by the fullest disk."""
        soft, hard = self.total * SOFT, self.total * HARD
        room = float(hard - used)
        if room >= hard - soft:
            return NO_LIMIT
        return 0.0 if room <= (hard - soft) * STOP_SHARE else room / QUICKEST_SECONDS / self.scene.size

    def _compare(self) -> None:
        """A fleet applies the lowest factor of its members."""
        for proxy, factors in self._factors.items():
            if factors[0][0] > self.kernel.now_ns - FLEET_NS + SECOND:
                continue
            most = max(factor for _, factor in factors)
            for other in self._factors:
                guard = other.server.disk_guard
                found = guard.decision.factor if guard is not None else 0
                if found > most + 0.002:
                    self.scene.fail(f"{other.address} has a disk factor of {found:.3f}, {proxy.address} {most:.3f}")

    def check(self, frame: int, lines: int) -> None:
        """At the end. Above what may pass: a burst and a frame of each member; two frames of each connection, of which
        one has begun and one was held for 15 s; transactions that were open.
        """
        for proxy, bound in self._passed.items():
            most = self._slack(bound.longest, bound.lines.most)
            if bound.worst > most:
                text = f"{proxy.address}: {bound.worst:,.0f} bytes passed above what full disks allow, {most:,.0f} may"
                self.scene.fail(text)
        most = self.scene.size * self._slack(frame, lines)
        for number, over in self._over.items():
            if over > most and not self.scene.kinds & draws.OF_DISKS:
                self.scene.fail(f"broker {number} has {over:,.0f} bytes above HARD, {most:,.0f} may be")

    def _slack(self, frame: int, lines: int) -> float:
        burst = float((HARD - SOFT) * self.total) / QUICKEST_SECONDS * BURST_SECONDS
        return burst + frame + 2 * lines * frame + TRANSACTIONS * self.total
