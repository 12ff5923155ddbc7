"""A fleet in virtual time on a log that loses, doubles, delays and reorders records. Its members pause, crash, leave,
join and begin to read again; their clocks are wrong by up to 1 %; they come to other quotas, one after the other. In
every second world they state any caps at times, whatever the policy says; in every third one they repeat.

After each event: do the uses of each key add up to at most WHOLE? Twice a second: do the rates add up to at most the
highest quota that is in force at a member?
"""

from functools import partial
from typing import Final

from quotas.fleet.caps import Caps
from quotas.fleet.member import Member
from quotas.fleet.parameters import WHOLE, Parameters
from quotas.fleet.policy import Demand
from quotas.fleet.record import encode
from simulation.fleet_topic import FleetTopic
from simulation.kernel import MS, SECOND, Kernel, MachineClock

QUOTAS: Final = {"user=a,producer_byte_rate": 50_000_000_000, "client-id=b,request_rate": 300_000}
LOWER: Final = 3
"""A changed quota is this part of the other."""


class Violation(AssertionError):
    """Members may use more than there is; with the seed."""


class Proxy:
    """One member, its clock and what its clients want.

    read   how many records of the log it has applied
    uses   parts that it may use, by key, as of its last event
    """

    def __init__(self, world: "World", read: int, *, is_covered: bool) -> None:
        self.clock = MachineClock(world.kernel, world.random.randint(-9_900, 9_900))
        self.member = Member("etl", world.parameters, world.nonce)
        if world.make is not Caps:  # a compiled class has no other
            self.member.caps = world.make("etl", world.parameters, world.nonce)
        self.read = read
        self.paused_until_ns = 0
        self.is_up = True
        self.wants = dict.fromkeys(QUOTAS, 0)
        self.uses = dict.fromkeys(QUOTAS, 0)
        for position, (key, quota) in enumerate(QUOTAS.items()):
            self.member.set_quota(key, quota, is_default=position > 0)
        self.member.begin(self.clock(), is_covered=is_covered)

    def demand(self) -> dict[str, Demand]:
        rates = {key: self.member.allowed(key, self.clock())[0] for key in QUOTAS}
        return {key: Demand(min(want, rates[key]), want > rates[key]) for key, want in self.wants.items() if want}


class World:
    """`size` proxies for `seconds`. Raises Violation.

    worst, mean   sums of uses, as parts of one
    """

    def __init__(self, seed: int, size: int, seconds: float, make: type[Caps] = Caps) -> None:
        self.seed, self.make = seed, make
        self.kernel = kernel = Kernel(seed)
        self.random = random = kernel.random
        self.topic = FleetTopic(kernel, self._delay)
        most = 201 if seed % 3 == 0 else size  # members that repeat what they have advertised
        self.parameters = Parameters(max_members=most, shares_fallback=False, ttl_ns=3 * SECOND, margin_ns=100 * MS)
        self.records = self.samples = self.sampled = 0
        self.worst = 0.0
        self.is_hard = random.random() < 0.5
        self.is_wild = seed % 2 == 1
        self.proxies: list[Proxy] = []
        for _ in range(size):
            self._add(0, is_covered=True)
        kernel.after(5, self._disturb)
        kernel.every(0.5, self._sample)
        kernel.run(seconds)
        self.mean = self.sampled / self.samples / WHOLE

    def nonce(self) -> int:
        return self.random.getrandbits(63)

    def __str__(self) -> str:
        return (
            f"seed {self.seed}: {len(self.proxies)} members, {self.records} records, "
            f"uses at most {100 * self.worst:.2f} %, {100 * self.mean:.0f} % in the mean"
        )

    def _delay(self) -> float:
        """Of a record on its way, or of a fetch: at times 12 s more than usual."""
        is_late = self.is_hard and self.random.random() < 0.01
        return self.topic.usual_delay() + (self.random.uniform(0, 12) if is_late else 0)

    # ---- what a proxy does

    def _add(self, read: int, *, is_covered: bool) -> None:
        proxy = Proxy(self, read, is_covered=is_covered)
        self.proxies.append(proxy)
        self._plan(proxy)
        self._fetch(proxy)

    def _plan(self, proxy: Proxy) -> None:
        if not proxy.is_up:
            return
        if proxy.paused_until_ns > self.kernel.now_ns:
            self.kernel.at(proxy.paused_until_ns, partial(self._plan, proxy))
            return
        for key, quota in QUOTAS.items():
            if self.random.random() < 0.02:
                proxy.wants[key] = round(quota * self.random.choice([0, 0.01, 0.05, 0.2, 0.5, 1, 2]))
        now_ns = proxy.clock()
        if self.is_wild and self.random.random() < 0.02:
            self._send(encode(proxy.member.caps.state(self._any_wishes(), now_ns)))
        else:
            self._send(proxy.member.plan(now_ns, proxy.demand()))
        self._check(proxy)
        self.kernel.after(self.random.uniform(0.02, 0.08), partial(self._plan, proxy))

    def _any_wishes(self) -> dict[str, tuple[int, int]]:
        random = self.random
        caps = [0, WHOLE, random.randint(0, WHOLE // len(self.proxies))]
        return {key: (random.choice(caps), random.randint(0, WHOLE)) for key in QUOTAS if random.random() < 0.7}

    def _send(self, record: bytes | None) -> None:
        if record is None:
            return
        self.records += 1
        self.topic.post(record, lost=0.03, doubled=0.05)

    def _fetch(self, proxy: Proxy) -> None:
        if proxy.is_up:
            end = len(self.topic.records)
            self.kernel.after(self._delay() / 2, partial(self._arrive, proxy, proxy.read, end))

    def _arrive(self, proxy: Proxy, read: int, end: int) -> None:
        if not proxy.is_up:
            return
        if proxy.paused_until_ns > self.kernel.now_ns:
            self.kernel.at(proxy.paused_until_ns, partial(self._arrive, proxy, read, end))
            return
        if read == proxy.read:  # it has not begun to read again since
            now_ns = proxy.clock()
            for record, _ in self.topic.records[read:end]:
                proxy.member.apply(record, now_ns)
                self._check(proxy)
            proxy.read = end
        self.kernel.after(0.01, partial(self._fetch, proxy))

    # ---- what happens to it

    def _disturb(self) -> None:
        random, proxy = self.random, self.random.choice(self.proxies)
        match random.choice(["pause", "pause", "pause", "crash", "leave", "again", "quota", "noise"]):
            case "pause":
                proxy.paused_until_ns = self.kernel.now_ns + random.choice([500, 2_000, 4_000, 8_000]) * MS
            case "crash":
                self._replace(proxy)
            case "leave":
                for record in proxy.member.leave(proxy.clock()):
                    self._send(record)
                self._replace(proxy)
            case "again":
                proxy.read, is_covered = self._first_position()
                proxy.member.begin(proxy.clock(), is_covered=is_covered)
                self._check(proxy)
            case "quota":
                key, quota = random.choice(list(QUOTAS.items()))
                new = random.choice([quota, quota // LOWER])
                for each in self.proxies:
                    self.kernel.after(random.uniform(0, 3), partial(self._set_quota, each, key, new))
            case "noise":
                record, _ = random.choice(self.topic.records or [(b"", 0)])
                place = random.randrange(len(record) + 1)
                noise = [b"", b"{}", b"[" * 5_000, record[:place], record.replace(b"etl", b"else")]
                self.topic.append(random.choice(noise))
        self.kernel.after(random.uniform(0.3, 3), self._disturb)

    def _replace(self, proxy: Proxy) -> None:
        """Another proxy starts in its place."""
        proxy.is_up = False
        self.proxies.remove(proxy)
        read, is_covered = self._first_position()
        self._add(read, is_covered=is_covered)

    def _first_position(self) -> tuple[int, bool]:
        """Where one begins to read: at the end, or `history_ns` ago by the broker, which may be wrong."""
        if self.random.random() < 0.3:
            return len(self.topic.records), False
        allowed_ns = self.parameters.history_ns - self.parameters.overdue_ns
        wrong_ns = self.random.randint(-allowed_ns, allowed_ns) * 9 // 10
        return self.topic.position_at((self.kernel.wall_ns() - self.parameters.history_ns + wrong_ns) // MS), True

    def _set_quota(self, proxy: Proxy, key: str, quota: int) -> None:
        if proxy.is_up:
            proxy.member.set_quota(key, quota, is_default=key != next(iter(QUOTAS)))

    # ---- the bound

    def _check(self, proxy: Proxy) -> None:
        self._note(proxy)
        for key in QUOTAS:
            if sum(each.uses[key] for each in self.proxies) > WHOLE:
                for each in self.proxies:
                    self._note(each)  # leases may be over since
            used = sum(each.uses[key] for each in self.proxies)
            self.worst = max(self.worst, used / WHOLE)
            if used > WHOLE:
                raise Violation(f"seed {self.seed}, {self.kernel.seconds:.3f} s: {key} is used by {used / WHOLE}")

    def _note(self, proxy: Proxy) -> None:
        now_ns = proxy.clock()
        for name in QUOTAS:
            key = proxy.member.caps.keys[name]
            if proxy.paused_until_ns <= self.kernel.now_ns:
                proxy.member.allowed(name, now_ns)
                proxy.uses[name] = key.use
            else:  # it passes nothing by itself, nor looks at its lease
                proxy.uses[name] = key.use if now_ns < key.lease_ns else 0

    def _sample(self) -> None:
        running = [proxy for proxy in self.proxies if proxy.paused_until_ns <= self.kernel.now_ns]
        for name in QUOTAS:
            keys = [proxy.member.caps.keys[name] for proxy in running]
            rates = sum(proxy.member.allowed(name, proxy.clock())[0] for proxy in running)
            in_force = max((min(key.quota, key.least) for key in keys), default=0)
            if rates > in_force:
                raise Violation(f"seed {self.seed}, {self.kernel.seconds:.3f} s: {name}: {rates} of {in_force}")
        self.samples += 1
        self.sampled += sum(proxy.uses[next(iter(QUOTAS))] for proxy in self.proxies)
