"""A backfill that uses what online producers leave, in virtual time: eleven scenarios, each with four controllers.

Three brokers are queues, each with a rate that may change. Requests of online producers are timed; those of the
backfill only fill the queues. A response takes what the broker needs anyway, which rises as it gets busy, and what is
queued before it. The controllers set the backfill's rate once a second:

    yields     the product's (`quotas.adaptive.yielding`)
    static     a rate that an operator would choose: half of what is left on a usual day
    AIMD       halves its rate if the 99th percentile of the last second is above the target, else adds 2 MB/s
    hindsight  knows each second what the brokers can do in it, and what online producers will send
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, NamedTuple

from quotas.adaptive.yielding import USED, Signal, Terms, Yielding, evened_out
from quotas.time_units import NS_PER_SECOND

BROKERS: Final = 3
STEP_SECONDS: Final = 0.1
STEPS: Final = round(1 / STEP_SECONDS)
SECONDS: Final = 600
MB: Final = 1_000_000
LEAST, MOST, TARGET_SECONDS = 1 * MB, 200 * MB, 0.05
TARGET_NS: Final = round(TARGET_SECONDS * NS_PER_SECOND)
BASE_SECONDS: Final = 0.005
USUAL: Final = 100 * MB
"""What a broker can append in a second."""
WINDOW_BYTES: Final = 10 * MB
"""Of the backfill in flight to one broker: its clients wait for responses before they send more."""
BUSIEST: Final = 0.93
"""A broker that is busier than this answers later than the target."""
STATIC: Final = 100 * MB
Profile = Callable[[float], float]


def _always(value: float) -> Profile:
    return lambda _: value


_USUAL: Final = (_always(USUAL),) * BROKERS
_ONLINE, _WANTED, _BASE, _REQUESTS = _always(30 * MB), _always(60 * MB), _always(BASE_SECONDS), _always(60)


def _between(first: float, last: float, inside: float, outside: float) -> Profile:
    return lambda second: inside if first <= second < last else outside


@dataclass(frozen=True)
class Scenario:
    """By the second: what each broker can append, what online producers send to each, what the backfill wants of all,
    how long a response takes at least, and how many online requests each broker gets. `outlier`: the share of requests
    that take longer for no reason, and by how much.
    """

    name: str
    must_yield: bool
    capacity: Sequence[Profile] = _USUAL
    online: Profile = _ONLINE
    wanted: Profile = _WANTED
    base: Profile = _BASE
    requests: Profile = _REQUESTS
    outlier: tuple[float, float] = (0.0, 0.0)
    backfills: int = 1
    joins: float = 0.0


_ALL_OF_IT: Final = _always(1_000 * MB)
SCENARIOS: Final = (
    Scenario(
        "disks slow for all",
        True,
        (_between(250, 400, 45 * MB, USUAL),) * BROKERS,
        wanted=_ALL_OF_IT,
    ),
    Scenario(
        "one slow broker",
        True,
        (_always(USUAL), _between(250, 400, 40 * MB, USUAL), _always(USUAL)),
        wanted=_ALL_OF_IT,
    ),
    Scenario("the backfill is the cause", True, online=_always(50 * MB), wanted=_ALL_OF_IT),
    Scenario("online burst", True, online=_between(250, 400, 80 * MB, 30 * MB), wanted=_ALL_OF_IT),
    Scenario("idle noise", False, online=_always(1 * MB), requests=_always(25), outlier=(0.008, 0.06)),
    Scenario("single outliers", False, outlier=(0.002, 2.0)),
    Scenario("too few samples", False, online=_always(1 * MB), requests=_always(3), outlier=(0.5, 0.2)),
    Scenario("one slow flush", False, base=lambda t: 0.6 if t % 60 > 58.5 else BASE_SECONDS),
    Scenario("drift of 5 ms a minute", False, base=lambda t: min(BASE_SECONDS + 0.005 * t / 60, 0.03)),
    Scenario(
        "clients come and go",
        False,
        online=lambda t: 30 * MB if t % 40 < 20 else 0.0,
        requests=lambda t: 60 if t % 40 < 20 else 0,
    ),
    Scenario("cold start", False, base=lambda t: 0.5 if t < 2 else BASE_SECONDS),
)
TWO: Final = Scenario("two backfills, the second one 200 s later", True, wanted=_ALL_OF_IT, backfills=2, joins=200)


class Controller:
    """Sets the rate of one backfill, once a second. This one knows the best rate in advance."""

    def __init__(self) -> None:
        self.rate: float = LEAST
        self.used = 0.0

    def know(self, best: float) -> None:
        """What the rate should be in the next second."""
        self.rate = best

    def answered(self, broker: int, sent_ns: int, took_ns: int) -> None:
        """A response to an online producer."""

    def decide(self, now_ns: int) -> None:
        """At the end of a second in which `used` of the rate was."""


class Static(Controller):
    def know(self, best: float) -> None:
        self.rate = STATIC


class Aimd(Controller):
    def __init__(self) -> None:
        super().__init__()
        self._times: list[int] = []

    def know(self, best: float) -> None: ...

    def answered(self, broker: int, sent_ns: int, took_ns: int) -> None:
        self._times.append(took_ns)

    def decide(self, now_ns: int) -> None:
        times, self._times = sorted(self._times), []
        is_slow = times and times[math.ceil(0.99 * len(times)) - 1] > TARGET_NS
        self.rate = max(LEAST, self.rate / 2) if is_slow else min(MOST, self.rate + 2 * MB)


class Yields(Controller):
    def __init__(self) -> None:
        super().__init__()
        self.rule = Yielding(Terms(LEAST, MOST, TARGET_NS), LEAST, 0)
        self.signals = [Signal(TARGET_NS) for _ in range(BROKERS)]

    def know(self, best: float) -> None:
        self.rate = self.rule.rate

    def answered(self, broker: int, sent_ns: int, took_ns: int) -> None:
        self.signals[broker].answered(sent_ns, took_ns)

    def decide(self, now_ns: int) -> None:
        before = self.rule.cut_ns
        windows = {str(broker): signal.take(before, TARGET_NS) for broker, signal in enumerate(self.signals)}
        self.rate = self.rule.decide(windows, now_ns, is_used=self.used >= USED)


@dataclass
class _Broker:
    """A queue: what is queued, and how much of that is the backfill's; how busy it was lately; requests to be sent."""

    queued: float = 0.0
    of_backfill: float = 0.0
    busy: float = 0.0
    due: float = 0.0

    def pass_step(self, online: float, backfill: float, capacity: float) -> float:
        """Bytes that come in this step; returns the part of the backfill that its clients send."""
        room = max(0.0, WINDOW_BYTES - self.of_backfill)
        part = min(1.0, room / backfill) if backfill else 0.0
        served = capacity * STEP_SECONDS
        self.of_backfill += part * backfill
        self.queued += online + part * backfill
        self.busy += 0.4 * (min(1.0, self.queued / served) - self.busy)
        left = max(0.0, 1 - served / self.queued) if self.queued else 0.0
        self.queued *= left
        self.of_backfill *= left
        return part

    def response(self, base: float, capacity: float) -> float:
        """How long a request takes that is sent now."""
        busy = min(self.busy, 0.99)
        return base + BASE_SECONDS * 0.5 * busy**2 / (1 - busy) + self.queued / capacity


class Result(NamedTuple):
    """What one controller did in one scenario.

    slow_minutes   in which more than 1 % of the online responses of a broker took longer than the target
    slow           the share of all online responses that took longer than the target
    used           what the backfill sent, of what it could have sent in hindsight
    converged      seconds until its rate in ten seconds was first above 80 % of that in hindsight
    fairness       Jain's index of what several backfills sent while all were there
    cuts           how often the rate was lowered
    """

    scenario: str
    controller: str
    slow_minutes: float
    slow: float
    used: float
    converged: float
    fairness: float
    cuts: int


class _Run:
    """One controller for each backfill, in one scenario."""

    def __init__(self, scenario: Scenario, make: Callable[[], Controller], seed: int) -> None:
        self.scenario = scenario
        self.controllers = [make() for _ in range(scenario.backfills)]
        self.random = Random(seed)  # noqa: S311 - a seed must give the same run
        self.brokers = [_Broker() for _ in range(BROKERS)]
        #: By step: responses that arrive then.
        self.arriving: dict[int, list[tuple[int, int, int]]] = {}
        #: Of each broker in this second: responses, and those above the target.
        self.times = [[0, 0] for _ in range(BROKERS)]

    def result(self, name: str) -> Result:
        count, scenario = len(self.controllers), self.scenario
        slow, cuts, answered, late = 0, 0, 0, 0
        passed, best, together = list[float](), list[float](), [0.0] * count
        for second in range(SECONDS):
            best.append(self._best(second))
            there = [each for n, each in enumerate(self.controllers) if second >= scenario.joins * n]
            sent = self._second(second, there, best[-1])
            passed.append(sum(sent))
            slow += any(found >= 20 and above >= 3 and above > 0.01 * found for found, above in self.times)
            answered += sum(found for found, _ in self.times)
            late += sum(above for _, above in self.times)
            for n, (each, size) in enumerate(zip(there, sent, strict=True)):
                together[n] += size * (second >= scenario.joins + 200)
                before = each.rate
                each.used = size / each.rate
                each.decide((second + 1) * NS_PER_SECOND)
                cuts += each.rate < before
            _even_out(there)
        fairness = sum(together) ** 2 / (count * sum(each**2 for each in together))
        used = sum(passed) / sum(best)
        return Result(
            scenario.name, name, slow / 60, late / max(1, answered), used, _converged(passed, best), fairness, cuts
        )

    def _second(self, second: int, there: Sequence[Controller], best: float) -> list[float]:
        """What each backfill sends in it."""
        scenario, sent = self.scenario, [0.0] * len(there)
        self.times = [[0, 0] for _ in range(BROKERS)]
        for each in there:
            each.know(best / len(there))
        for step in range(second * STEPS, (second + 1) * STEPS):
            at = step * STEP_SECONDS
            asks = [min(each.rate, scenario.wanted(at) / len(there)) * STEP_SECONDS / BROKERS for each in there]
            for number, broker in enumerate(self.brokers):
                capacity = scenario.capacity[number](at)
                part = broker.pass_step(scenario.online(at) * STEP_SECONDS, sum(asks), capacity)
                for n, ask in enumerate(asks):
                    sent[n] += part * ask
                broker.due += scenario.requests(at) * STEP_SECONDS
                while broker.due >= 1:
                    broker.due -= 1
                    self._ask(number, step, broker.response(scenario.base(at), capacity))
            for response in self.arriving.pop(step, ()):
                for each in there:
                    each.answered(*response)
        return sent

    def _ask(self, number: int, step: int, seconds: float) -> None:
        """An online request."""
        share, more = self.scenario.outlier
        seconds = seconds * self.random.uniform(0.8, 1.2) + more * (self.random.random() < share)
        sent_ns, took_ns = round(step * STEP_SECONDS * NS_PER_SECOND), round(seconds * NS_PER_SECOND)
        self.times[number][0] += 1
        self.times[number][1] += took_ns > TARGET_NS
        self.arriving.setdefault(step + math.ceil(seconds / STEP_SECONDS), []).append((number, sent_ns, took_ns))

    def _best(self, second: float) -> float:
        """The rate of all backfills at which no broker is busier than `BUSIEST`."""
        scenario = self.scenario
        least = min(
            BUSIEST * scenario.capacity[n](at) - scenario.online(at)
            for n in range(BROKERS)
            for at in (second, second + 0.9)
        )
        here = 1 + sum(second >= scenario.joins * n for n in range(1, scenario.backfills))
        return min(MOST * here, max(LEAST, BROKERS * least), scenario.wanted(second))


def _even_out(controllers: Sequence[Controller]) -> None:
    used = [each for each in controllers if isinstance(each, Yields) and each.used >= USED]
    for each, rate in zip(used, evened_out([each.rule.rate for each in used]), strict=True):
        each.rule.move_to(rate)


def _converged(passed: Sequence[float], best: Sequence[float]) -> float:
    for second in range(10, len(passed)):
        if sum(passed[second - 10 : second]) >= 0.8 * sum(best[second - 10 : second]):
            return second
    return math.inf


CONTROLLERS: Final[dict[str, type[Controller]]] = {
    "yields": Yields, "static": Static, "AIMD": Aimd, "hindsight": Controller,
}  # fmt: skip


def results(scenario: Scenario, seed: int = 1) -> dict[str, Result]:
    """By controller."""
    return {name: _Run(scenario, make, seed).result(name) for name, make in CONTROLLERS.items()}


def rows(seed: int = 1) -> Iterator[Result]:
    for scenario in (*SCENARIOS, TWO):
        yield from results(scenario, seed).values()


def main() -> None:
    """Print the table."""
    print(
        "| scenario | controller | slow minutes | slow responses | left-over used | converged after | fairness | cuts |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for each in rows():
        converged = "never" if math.isinf(each.converged) else f"{each.converged:.0f} s"
        print(
            f"| {each.scenario} | {each.controller} | {each.slow_minutes:.1f} | {each.slow:.1%} | {each.used:.0%} |"
            f" {converged} | {each.fairness:.2f} | {each.cuts} |"
        )


if __name__ == "__main__":
    main()
