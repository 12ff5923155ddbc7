"""What must hold in each run. Each function reports what does not to `World.fail`.

response    to each response that a client gets: it is whole, and leads nowhere but to proxies
healed      after the last fault: everyone is served again
at_rest     when all clients have left: nothing is left of them
ended       at the end: no record was lost or written twice, no limit was exceeded, usage records add up
"""

import gc
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from proxy.enforcement.identity import Identity
from proxy.sessions.session import Session
from proxy.streams.connection import Connection
from proxy.streams.handlers.fetch import FetchRequest
from proxy.streams.handlers.produce import ProduceRequest
from proxy.streams.memory import Holding
from proxy.streams.observer import Observer
from simulation import draws, hostile, http, kafka, records
from simulation.client import Client
from simulation.consumer import Consumer
from simulation.kernel import SECOND
from simulation.limits import is_shared, of_client, shared_by
from simulation.link import THROTTLES, Link, Sent
from simulation.network import Address
from simulation.process import ProxyProcess
from simulation.producer import Producer
from simulation.scene import ADMIN_PORT
from simulation.taps import Line
from simulation.world import World

#: The longest time in which everyone must be served after the last fault.
HEAL_SECONDS: Final = 90.0
REST_SECONDS: Final = 60.0
HOPELESS_SECONDS: Final = 20.0
PATIENCE_SECONDS: Final = 1.0
"""What a request may take beside its limits: a broker answers those of a connection one after the other."""
FETCH_SECONDS: Final = 0.75
"""How long a broker waits for records."""
LEASE_SECONDS: Final = 15.0
MOST_THROTTLE_SECONDS: Final = 5.0
"""`--max-throttle-ms`."""
JOIN_SECONDS: Final = 16.0
CHUNK_BYTES: Final = 524_288
USED: Final = 0.6
MOST_BUFFERED: Final = 1.25
"""With the part for short responses."""
START_SECONDS: Final = 3.0
SWEEP_SECONDS: Final = 2.0
OF_CONNECTIONS: Final = frozenset({Session, Connection, Identity, Observer, ProduceRequest, FetchRequest, Holding})
SHORT_MS: Final = 100
"""More than a soft mark, and than the throttle time of a bound of the proxy."""
LONGEST_OF_FLEET: Final = 0.1


def response(world: World, link: Link, sent: Sent, values: Sequence[Any]) -> None:
    """No address of a broker reaches a client, and an address that led to one node leads to no other. No client waits,
    or is told to wait, for longer than a limit can need.
    """
    world.checked["responses"] += 1
    if sent.api in THROTTLES:
        _throttled(world, link, sent, values[THROTTLES[sent.api][1]])
    else:
        _answered_at_once(world, link, sent)
    match sent.api:
        case kafka.PRODUCE:
            _produced(world, link, sent, values)
        case kafka.FETCH:
            _fetch_waited(world, link, sent)
        case kafka.METADATA:
            _, brokers, *_ = values
            _addresses(world, link, {(host, port): node for node, host, port, _ in brokers})
        case kafka.FIND_COORDINATOR:
            *_, node, host, port = values
            _addresses(world, link, {(host, port): node})


def _produced(world: World, link: Link, sent: Sent, values: Sequence[Any]) -> None:
    if values[2] and 0 in values[2]:
        world.fail(f"{link.client_id} was given the addresses of brokers beside a response")
    _waited(world, link, sent)
    of_broker = world.broker_throttles_ms.pop((link.client_id, sent.correlation), 0)
    if values[1] < of_broker:
        world.fail(f"{link.client_id} was told to wait for {values[1]} ms, and by its broker for {of_broker} ms")


def _addresses(world: World, link: Link, nodes: Mapping[Address, int]) -> None:
    proxy = next(each for each in world.proxies if each.address == link.address[0])
    for address, node in nodes.items():
        if address[0] != proxy.address:
            world.fail(f"{link.client_id} was given the address {address} by {proxy.address}")
        # The port of a node that is away may go to one that is there.
        if world.node_at.setdefault((proxy, address), node) != node and not world.kinds & draws.BREAKING:
            world.fail(f"{address} led to node {world.node_at[proxy, address]}, and now leads to {node}")


def _answered_at_once(world: World, link: Link, sent: Sent) -> None:
    """No limit on data holds what has none. The responses before it were due before."""
    waited = (world.kernel.now_ns - max(sent.sent_ns, link.answered_ns)) / SECOND
    if world.kinds <= draws.HARMLESS and waited > PATIENCE_SECONDS and not link.has_unanswered:
        world.fail(f"{link.client_id} waited {waited:.1f} s for the answer to a request with API key {sent.api}")


def _lines(world: World, link: Link, name: str, limit: str) -> list[Line]:
    """The connections of the same proxy that had frames for a limit, those that were closed as well."""
    is_request = limit != "consumer_byte_rate"
    lines = [each for each in world.lines[link.address[0]] if each.announced and each.is_request == is_request]
    return lines if is_shared(name) else [each for each in lines if each.client_id == link.client_id]


def _own(lines: list[Line], link: Link) -> int:
    """The longest frame of this client."""
    honest = [each for each in lines if each.client_id == link.client_id and each.sock.host != hostile.HOST]
    return max((each.announced for each in honest), default=0)


def _owed(world: World, link: Link, key: tuple[str, str]) -> float:
    """In seconds, how long a throttle time for a limit may be: for the frame that took it into debt, for the client's
    own, and for what waits. That is one frame of each connection, and not more than the client's own of each one.
    Connections that were closed since count as well: a notice is not taken back.
    """
    bound, lines = world.limits.bounds[key], _lines(world, link, *key)
    own = _own(lines, link)
    waiting = min(sum(each.announced for each in lines), len(lines) * own)
    return (max(bound.longest, world.flow.longest) + waiting + own) / bound.slowest


def _round(world: World, link: Link, key: tuple[str, str]) -> float:
    """In seconds, how long a frame may wait in the queue of a limit: for the frame that took it into debt, and for one
    frame of each connection and as many bytes as its own (`FairQueue`).
    """
    bound, lines = world.limits.bounds[key], _lines(world, link, *key)
    passing = sum(each.longest for each in lines) + len(lines) * _own(lines, link)
    return (max(bound.longest, world.flow.longest) + passing) / bound.slowest


def _throttled(world: World, link: Link, sent: Sent, throttle_ms: int) -> None:
    """Members of a fleet tell less than what is owed, and what a broker tells passes. Old versions are told how long
    their response was delayed, by limits that may have gone since.
    """
    if throttle_ms <= SHORT_MS or world.disks or draws.IDS in world.parts:
        return
    most = LONGEST_OF_FLEET
    if not world.is_fleet:
        most = max((_owed(world, link, each) for each in _limits_of(world, link)), default=0.0)
    if sent.version < THROTTLES[sent.api][0]:
        most = max(most, (world.kernel.now_ns - sent.sent_ns) / SECOND)
    of_brokers = max(each.most_throttle_ms for each in world.brokers)
    if throttle_ms > max(1_000 * most + SHORT_MS, of_brokers):
        world.fail(f"{link.client_id} was told to wait for {throttle_ms:,} ms; at most {most:.1f} s can be owed")


def _waited(world: World, link: Link, sent: Sent) -> None:
    """A request waits at each of its limits for one round; its response may be late by a throttle time. Members of a
    fleet may have half of their part, and a lease may have to run out first.
    """
    if not world.kinds <= draws.HARMLESS or world.disks or draws.IDS in world.parts:
        return
    most = sum(_round(world, link, each) for each in _limits_of(world, link))
    most = PATIENCE_SECONDS + (LEASE_SECONDS + 2 * world.size * most if world.is_fleet else most)
    if sent.version < THROTTLES[kafka.PRODUCE][0]:
        most += MOST_THROTTLE_SECONDS
    waited = (world.kernel.now_ns - max(sent.sent_ns, link.answered_ns)) / SECOND
    if waited > most:
        world.fail(f"{link.client_id} waited {waited:.1f} s; at most {most:.1f} s")


def _fetch_waited(world: World, link: Link, sent: Sent) -> None:
    """A fetch waits for records, and at the limits of consumers. Nothing that holds producers holds it."""
    if not world.kinds <= draws.HARMLESS | draws.OF_DISKS or world.is_fleet:
        return
    most = sum(_round(world, link, each) for each in _limits_of(world, link) if each[1] == "consumer_byte_rate")
    waited = (world.kernel.now_ns - max(sent.sent_ns, link.answered_ns)) / SECOND
    most += FETCH_SECONDS + PATIENCE_SECONDS
    if waited > most:
        world.fail(f"{link.client_id} waited {waited:.1f} s for a fetch; at most {most:.1f} s")


def _limits_of(world: World, link: Link) -> list[tuple[str, str]]:
    names = of_client(link.client_id), *shared_by(link.client_id)
    return [each for each in world.limits.bounds if each[0] in names or each[0].startswith("topic")]


def used(world: World) -> None:
    """Clients that want much more than their limit lets pass have nearly all of it, where nothing else holds them."""
    if world.is_fleet or world.disks or not world.kinds <= draws.WITHOUT_EFFECT:
        return
    for (name, limit), bound in world.limits.bounds.items():
        is_consumer = limit == "consumer_byte_rate"
        if is_shared(name) or (not is_consumer and world.limits.has_shared):
            continue
        mine = [each for each in world.clients if of_client(each.client_id) == name]
        wanted = sum(each.shape.mean_rate for each in mine if isinstance(each, Producer))
        if is_consumer:  # what is open keeps records from others
            readers = [each for each in mine if isinstance(each, Consumer) and not each.reads_committed]
            wanted = len(readers) * world.flow.total / world.options.seconds
        least = USED * bound.rate * (world.options.seconds - START_SECONDS)
        if wanted > 2 * bound.rate and bound.total < least:
            world.fail(f"{name}: {bound.total:,} bytes passed, and clients that want more may have {least:,.0f}")


def explained(world: World) -> None:
    """`/explain` gives each client's time to states that add up, and blames nobody without a cause."""
    for proxy in world.proxies:
        page = http.get(world.kernel, world.network, proxy.address, ADMIN_PORT, "/explain")
        for client in json.loads(page) if page else ():
            world.checked["clients in /explain"] += 1
            states = client["states"]
            if states and not 0.99 < sum(states.values()) < 1.01:
                world.fail(f"{client['client_id']}: the times of its states add up to {sum(states.values()):.3f}")
            if "quota" not in world.kinds and states.get("broker_quota"):
                world.fail(f"{client['client_id']}: brokers throttle it, says /explain, and none has a quota")
            if not world.disks and not world.limits.may_limit(client["client_id"]) and states.get("limit"):
                world.fail(f"{client['client_id']}: a limit holds it, says /explain, and it has none")


def healed(world: World) -> None:
    """Each producer has records acknowledged from now on, and each consumer reads."""
    for each in world.brokers:
        each.thaw()

    def served(number: int) -> int:
        client = world.clients[number]
        return (
            client.bytes if isinstance(client, Consumer) else len(client.acked) if isinstance(client, Producer) else 0
        )

    before = {number: served(number) for number, client in enumerate(world.clients) if _should_be_served(world, client)}
    late: list[int] = []
    for _ in range(int(HEAL_SECONDS)):
        late = [number for number, count in before.items() if served(number) == count]
        if not late:
            return
        world.kernel.run(1)
    names = ", ".join(f"{world.clients[number].client_id} ({number})" for number in late)
    world.fail(f"not served within {HEAL_SECONDS:g} s after the last fault: {names}")


def _should_be_served(world: World, client: Client) -> bool:
    """Not without acknowledgements, nor where a round of all frames at a limit takes longer than clients wait."""
    consumes = not isinstance(client, Producer)
    if client.is_stopped or (isinstance(client, Producer) and not client.shape.acks):
        return False
    tables = (*world.limits.file.values(), *world.limits.topic.values())
    rates = [rate for each in tables for name, rate in each.items() if (name == "consumer_byte_rate") == consumes]
    lines = [each for lines in world.lines.values() for each in lines if each.is_request != consumes]
    longest = max((each.announced for each in lines if each.sock.host != hostile.HOST), default=0)
    return not rates or len(world.clients) * len(world.brokers) * longest / min(rates) <= HOPELESS_SECONDS


def bounded(world: World) -> None:
    """What a process keeps for its connections and clients is bounded at all times."""
    for proxy in world.proxies:
        if not hasattr(proxy.server, "shared"):  # it starts
            continue
        buffered, most = proxy.server.shared.context.memory.used, world.max_buffered_bytes
        if buffered > MOST_BUFFERED * most:
            world.fail(f"{proxy.address} keeps {buffered:,} bytes; --max-buffered-bytes is {most:,}")
        if len(list(proxy.server.metrics.entities)) > world.max_entities + 1:
            world.fail(f"{proxy.address} has metrics of more than {world.max_entities} clients")


def at_rest(world: World) -> None:
    """No session, no byte, no waiter, no timer, no socket."""
    remains: list[str] = []

    def look() -> bool:
        remains[:] = [text for proxy in world.proxies for text in _remains(world, proxy)]
        return not remains

    world.kernel.run(1)
    steps = int(REST_SECONDS)
    for _ in range(steps):
        if look():
            return
        world.kernel.run(1)
    world.fail(f"left {REST_SECONDS:g} s after the last client: {'; '.join(remains)}")


def live_objects() -> Counter[str]:
    """Objects that only a connection has, by type, in this interpreter."""
    gc.collect()
    return Counter(type(each).__name__ for each in gc.get_objects() if type(each) in OF_CONNECTIONS)


def freed(world: World, before: Counter[str]) -> None:
    """Nothing refers to a connection that is closed, once the sweep has taken its next look."""
    world.kernel.run(SWEEP_SECONDS)
    world.checked["objects of connections"] += 1
    left = live_objects() - before
    if left and world.kinds.isdisjoint(draws.RESTARTING):  # a process that was killed keeps what it had
        world.fail(f"left of closed connections: {', '.join(f'{count} {name}' for name, count in left.items())}")


def _remains(world: World, proxy: ProxyProcess) -> list[str]:
    server = proxy.server
    shared = server.shared
    metrics, memory, wakeups = server.metrics, shared.context.memory, shared.wakeups
    found = {
        "sessions": len(server.sessions),
        "connections counted": metrics.connections.open,
        "buffered bytes": memory.buffered_bytes,
        "memory": memory.used,
        "paused directions": sum(metrics.connections.paused.values()),
        "pumps": len(shared.pumps.short) + len(shared.pumps.queued),
        "timers of limits": len(wakeups._timers) + len(wakeups._owners) + len(wakeups._delays),
        "waiters": sum(limit.waiters.waiting for limit in shared.context.registry.limits_in_use()),
        "requests in flight": metrics.connections.in_flight(),
        "sockets": world.network.open_sockets(proxy.address) - len(server.ports) - 1,
    }
    return [f"{count} {what}" for what, count in found.items() if count]


def ended(world: World) -> None:
    records.check(world)
    _limits(world)
    _usage(world)
    if world.disks:
        world.disks.check(world.flow.longest, world.flow.lines.most)
    if world.stored:
        world.stored.check()
    for proxy in world.proxies:
        for context in proxy.loop.errors:
            world.fail(f"reached the loop: {context}")


def _limits(world: World) -> None:
    """Above rate × T: a burst of each process; a frame of each member; a chunk of each connection that waits at a later
    limit or for a broker. Records count when a broker has the whole request: of a topic, a batch for each partition.
    Of a fleet, a process that starts again, and one that does not read the topic, may use its part of the limit until
    it has joined.
    """
    burst_seconds = float(len(world.started))
    if world.is_fleet:
        away_seconds = (len(world.started) - world.size) * JOIN_SECONDS
        away_seconds += sum(world.size * (each.lasts + JOIN_SECONDS) for _, each in world.faults if each.is_of_fleet)
        burst_seconds = 0.1 * burst_seconds + away_seconds / world.max_members
    for (name, limit), bound in world.limits.bounds.items():
        world.checked["limits"] += 1
        flow, frame = bound, max(world.flow.longest, bound.longest)
        chunk = min(CHUNK_BYTES, bound.longest)
        if limit == "bytes_in_rate":
            partitions = world.cluster.topics[name.split('"')[1]]
            flow, chunk = world.flow, min(frame, len(partitions) * bound.longest)
        most = bound.fastest * burst_seconds + world.size * frame + flow.lines.most * chunk
        if bound.worst > most:
            world.fail(f"{name} {limit}: {bound.worst:,.0f} bytes above its rate, {most:,.0f} are allowed")


def _usage(world: World) -> None:
    """What the records say was passed is what passed, by client; only a kill may lose some of it."""
    counted: dict[str, int] = {}
    for path in sorted(world.directory.glob("usage-*.jsonl")):
        last: dict[tuple[str, ...], int] = {}
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if record["kind"] == "usage" and record["direction"] == "produce" and record["topic"] is None:
                last[tuple(str(record[name]) for name in ("client_id", "user", "listener"))] = record["bytes"]
        for (client_id, *_), size in last.items():
            counted[client_id] = counted.get(client_id, 0) + size
    unfinished: dict[str, int] = {}
    for each in world.requests:
        unfinished[each.client_id] = unfinished.get(each.client_id, 0) + each.unfinished_bytes
    if world.max_entities == draws.SMALL_ENTITIES:  # further ones are counted together
        passed, missing = sum(world.produced.values()), sum(world.produced.values()) - sum(counted.values())
        _compare_usage(world, "all clients", passed, missing, sum(unfinished.values()), len(world.requests))
        return
    for client_id, passed in world.produced.items():
        lines = sum(each.client_id == client_id for each in world.requests)
        _compare_usage(world, client_id, passed, passed - counted.get(client_id, 0), unfinished[client_id], lines)


def _compare_usage(world: World, who: str, passed: int, missing: int, unfinished: int, lines: int) -> None:
    """What a connection to a broker had not taken when it broke was counted, and did not pass."""
    world.checked["sums of usage records"] += 1
    broken = CHUNK_BYTES * lines if world.kinds & draws.BREAKING else 0
    if missing < -broken or (not world.kills and missing > unfinished):
        world.fail(f"{who}: usage records lack {missing:,} of the {passed:,} bytes of Produce requests that passed")
