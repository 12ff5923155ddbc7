"""The replay beside the proxy itself: the same traffic through its sessions, on a clock of the test."""

import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import pytest

from pipeline.usage.jobs.replay import Engine, Offer, groups
from pipeline.usage.quotas_in_force import load
from tests.proxy.frames import batch, produce_records, produced
from tests.proxy.streams.pair import Pair, World

SECONDS = 120
NS = 1_000_000_000


@dataclass(frozen=True)
class Client:
    """What a client sends: requests per second on average, and their size; busy: seconds with traffic of each 30."""

    client_id: str
    per_second: float
    size: int
    topics: tuple[str, ...] = ("rows",)
    messages: int = 1
    busy: int = 30
    sidecar: str = "pod"


@dataclass(frozen=True)
class Sent:
    """One request."""

    at_ns: int
    client: Client
    topic: str
    frame: bytes


def traffic(loads: list[Client]) -> list[Sent]:
    """Requests at random times, in order."""
    found: list[Sent] = []
    for number, client in enumerate(loads):
        rng, at = random.Random(number), 0.0
        while (at := at + rng.expovariate(client.per_second)) < SECONDS:
            if at % 30 < client.busy:
                topic = rng.choice(client.topics)
                records = {topic: [batch(client.messages, client.size)]}
                sent = produce_records(len(found), records, client_id=client.client_id)  # type: ignore[arg-type]
                found.append(Sent(int(at * NS), client, topic, sent))
    return sorted(found, key=lambda each: each.at_ns)


def held_by_the_proxy(sent: list[Sent], quotas: str, *, burst_s: Fraction | None = None) -> dict[str, float]:
    """Seconds for which each client was held. burst_s: of limits that have none of their own."""
    entries = list(load(quotas))
    if burst_s is not None:
        entries = [replace(each, options=replace(each.options, burst_seconds=burst_s)) for each in entries]
    world = World(entries)
    pairs: dict[Client, Pair] = {each.client: Pair(world) for each in sent}
    answered: dict[Client, int] = defaultdict(int)
    held: dict[str, float] = defaultdict(float)
    started_ns = world.clock.now_ns

    def pass_to(at_ns: int) -> None:
        before_ns = world.clock.now_ns
        for each, pair in pairs.items():
            if pair.is_held:
                held[each.client_id] += (at_ns - before_ns) / NS
        world.clock.now_ns = max(at_ns, before_ns)

    def answer() -> None:
        for each, pair in pairs.items():
            for correlation_id in pair.in_flight:
                answered[each] += 1
                pair.broker_sends(produced(correlation_id))
            pair.to_client.clear()
            pair.to_broker.clear()

    def serve(before_ns: int) -> None:
        while (due_ns := min((each.due_ns for each in world.loop.pending), default=before_ns + 1)) <= before_ns:
            pass_to(due_ns)
            world.loop.next()
            answer()

    for each in sent:
        serve(started_ns + each.at_ns)
        pass_to(started_ns + each.at_ns)
        pairs[each.client].client_sends(each.frame)
        answer()
    serve(started_ns + 10 * SECONDS * NS)
    return dict(held)


def offers(sent: list[Sent], fleet: str | None = None) -> Iterator[Offer]:
    """What records of these say, with the proxy's own jitter: a reading each 8 to 10 s, topics each 60 s or so."""
    found = []
    for number, client in enumerate(dict.fromkeys(each.client for each in sent)):
        own = [each for each in sent if each.client is client]
        common = ("u", client.client_id, "produce")
        rng = random.Random(100 + number)
        begin = at = 0
        while at < SECONDS * 1000:
            since, at = at, at + rng.randint(8_000, 10_000)
            now = [each for each in own if since <= each.at_ns // 1_000_000 < at]
            size = sum(len(each.frame) for each in now)
            if now:
                found.append((since, Offer(since, at, *common, size, len(now), client.sidecar, fleet)))
            if at - begin >= 56_000 or at >= SECONDS * 1000:
                for topic in client.topics:
                    of = [each for each in own if begin <= each.at_ns // 1_000_000 < at and each.topic == topic]
                    size, records = sum(len(each.frame) for each in of), client.size * len(of)
                    whole = Offer(begin, at, *common, size, len(of), client.sidecar, fleet)
                    part = replace(whole, topic=topic, record_bytes=records, messages=client.messages * len(of))
                    found.append((begin - 10_000, part))
                begin = at
    return (offer for _, offer in sorted(found, key=lambda each: each[0]))


def held_by_the_replay(sent: list[Sent], quotas: str, fleet: str | None = None) -> dict[str, float]:
    engine = Engine(load(quotas))
    rows = [row for each in offers(sent, fleet) for row in engine.add(each)]
    held: dict[str, float] = defaultdict(float)
    for row in (*rows, *engine.end()):
        held[row[3]] += row[7] / 1000
    return dict(held)


OWN = '[[quota]]\nclient-id = "a"\nproducer_byte_rate = 40000\n'
CASES = {
    "own": (OWN, [Client("a", 20, 3_000), Client("b", 20, 3_000)]),
    "own and total": (
        OWN + "[[quota]]\ntotal = true\nproducer_byte_rate = 120000\n",
        [Client("a", 20, 3_000), Client("b", 30, 3_000, busy=20), Client("c", 20, 2_000)],
    ),
    "small beside large": (
        "[[quota]]\ntotal = true\nproducer_byte_rate = 100000\n",
        [Client("a", 4, 30_000), Client("b", 10, 1_000), Client("c", 2, 500)],
    ),
    "topic": (
        '[[quota]]\ntopic = "rows"\nbytes_in_rate = 50000\n',
        [Client("a", 20, 3_000, ("rows", "free")), Client("b", 20, 2_000), Client("c", 20, 3_000, ("free",))],
    ),
    "messages": (
        "[[quota]]\ntotal = true\nmessages_in_rate = 300\n",
        [Client("a", 20, 1_000, messages=14), Client("b", 10, 1_500, messages=20)],
    ),
    "request rate": ('[[quota]]\nclient-id = "a"\nrequest_rate = 12\n', [Client("a", 20, 500), Client("b", 20, 500)]),
    "request cost": (
        f'{OWN}request_cost = "6kB"\n[[quota]]\ntotal = true\nproducer_byte_rate = 120000\nrequest_cost = "4kB"\n',
        [Client("a", 20, 3_000), Client("b", 20, 5_000)],
    ),
    "default": (
        '[[quota]]\nclient-id = "<default>"\nproducer_byte_rate = 40000\n',
        [Client("a", 20, 3_000), Client("b", 10, 5_000), Client("c", 5, 3_000)],
    ),
    "group": (
        '[[resource-group]]\nname = "g"\nclient-id = ["a", "b"]\nproducer_byte_rate = 70000\n',
        [Client("a", 20, 3_000, busy=25), Client("b", 10, 4_000), Client("c", 20, 3_000)],
    ),
    "group of topics": (
        '[[resource-group]]\nname = "g"\ntopic = ["rows", "more"]\nbytes_in_rate = 70000\n',
        [Client("a", 20, 3_000, ("rows", "more")), Client("b", 10, 4_000, ("more",)), Client("c", 9, 3_000, ("free",))],
    ),
    "threshold": (
        '[[quota]]\ntotal = true\n"total.bytes.in.per.sec.threshold" = 60000\naction = "throttle"\n'
        '[[quota]]\ntopic = "rows"\n"bytes.in.per.sec.threshold" = 40000\n',
        [Client("a", 20, 3_000), Client("b", 20, 2_000)],
    ),
    "exempt": (
        '[[quota]]\ntopic = "rows"\nbytes_in_rate = 50000\nexempt-client-id = "a"\n',
        [Client("a", 20, 3_000), Client("b", 20, 4_000)],
    ),
}


@pytest.mark.claim("fleet", "simulate holds each client within 10 % as long as the proxy does with the same traffic")
@pytest.mark.parametrize("case", CASES)
def test_the_replay_holds_each_client_as_long_as_the_proxy(case: str) -> None:
    quotas, loads = CASES[case]
    sent = traffic(loads)
    expected = held_by_the_proxy(sent, quotas)
    found = held_by_the_replay(sent, quotas)
    assert max(expected.values()) > 10
    for name in {*expected, *found}:
        assert found.get(name, 0) == pytest.approx(expected.get(name, 0), rel=0.1, abs=2)


@pytest.mark.claim("fleet", "simulate holds each client within 10 % as long as the proxy does with the same traffic")
def test_the_members_of_a_fleet_share_one_bucket() -> None:
    loads = [Client("a", 10, 3_000, sidecar=f"pod-{n}") for n in range(3)] + [Client("b", 10, 3_000, sidecar="pod-0")]
    quotas = OWN + '[[quota]]\nclient-id = "b"\nproducer_byte_rate = 20000\nscope = "process"\n'
    sent = traffic(loads)
    expected = held_by_the_proxy(sent, quotas, burst_s=Fraction(1, 10))
    assert held_by_the_replay(sent, quotas, "east/etl") == pytest.approx(expected, rel=0.1)
    assert held_by_the_replay(sent, quotas).keys() == {"b"}, "each pod alone is below the limit"


def test_fetches_are_charged_to_their_own_limits() -> None:
    engine = Engine(load('[[quota]]\nclient-id = "a"\nconsumer_byte_rate = 1000\nrequest_rate = 5\n'))
    reads = [Offer(0, 900_000, "u", "a", "fetch", 1_800_000, 900), Offer(0, 900_000, "u", "b", "fetch", 9_000_000)]
    rows = [row for each in reads for row in engine.add(each)] + list(engine.end())
    assert {(row[4], row[5]) for row in rows} == {("fetch", "consumer_byte_rate")}
    assert sum(row[7] for row in rows) / 1000 == pytest.approx(1_800, rel=0.05)


def test_clients_that_share_a_limit_are_one_group() -> None:
    quotas = OWN + (
        '[[quota]]\ntopic = "rows"\nbytes_in_rate = 50000\n'
        '[[resource-group]]\nname = "g"\nclient-id = ["c", "d"]\nproducer_byte_rate = 70000\n'
    )
    members: list[tuple[str, str | None, str, str, str | None]]
    members = [("pod", None, "u", name, None) for name in "abcdef"]
    members += [("pod", None, "u", name, topic) for name, topic in (("a", "rows"), ("b", "rows"), ("e", "free"))]
    members += [(f"pod-{n}", fleet, "u", "a", None) for n, fleet in enumerate(("x", "x", "y", None))]
    found = defaultdict(set)
    for sidecar, _, client, _, group in groups(load(quotas), members):
        found[group].add((sidecar, client))
    together = [{("pod", "a"), ("pod", "b")}, {("pod", "c"), ("pod", "d")}, {("pod-0", "a"), ("pod-1", "a")}]
    assert sorted(found.values(), key=sorted) == [*together, {("pod-2", "a")}, {("pod-3", "a")}]
