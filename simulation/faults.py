"""What each kind of fault does: a function of the world makes it, and returns what heals it, if time alone does not."""

import signal
from collections.abc import Callable
from typing import Final

from proxy.internal_clients.failures import LogFailed
from simulation import probe
from simulation.broker import Broker
from simulation.draws import DRAIN_SECONDS, PROBED, Fault
from simulation.fleet_topic import SimLog
from simulation.hostile import HOST, Hostile, Once
from simulation.kernel import MS, SECOND, nothing
from simulation.world import World

MAKERS: Final[dict[str, Callable[[World, Fault], object]]] = {}
LAG_SECONDS: Final = 8.0
"""In which the members notice that a topic is another one."""


def inject(world: World, fault: Fault) -> None:
    if world.is_fleet and fault.follows_record:
        log, ends_ns = _log(world, fault), world.kernel.now_ns + int(fault.lasts * SECOND)

        def sent() -> None:
            log.on_sent = nothing
            if world.kernel.now_ns < ends_ns:
                _make(world, fault._replace(lasts=(ends_ns - world.kernel.now_ns) / SECOND))

        log.on_sent = sent
    else:
        _make(world, fault)


def _make(world: World, fault: Fault) -> None:
    world.kernel.note(str(fault))
    heal = MAKERS[fault.kind](world, fault)
    world.kernel.after(fault.lasts, heal if callable(heal) else nothing)


def _kind(make: Callable[[World, Fault], object]) -> Callable[[World, Fault], object]:
    MAKERS[make.__name__.strip("_")] = make
    return make


def _broker(world: World, fault: Fault) -> Broker:
    return world.brokers[fault.chosen(len(world.brokers))]


def _set(world: World, thing: object, name: str, value: object) -> Callable[[], object]:
    """Returns what sets it back to what it was before all faults, since those of one kind may overlap."""
    before = world.before_faults.setdefault((thing, name), getattr(thing, name))
    setattr(thing, name, value)
    return lambda: setattr(thing, name, before)


def _probe(world: World, fault: Fault, node: int | None = None) -> Callable[[], object]:
    """A client that waits for this fault. Returns what makes it leave."""
    proxy = world.proxies[fault.chosen(len(world.proxies))]
    return probe.begin(world, fault.kind, proxy, fault.lasts, node).stop


MAKERS.update(dict.fromkeys(PROBED, _probe))


def _both(*heals: Callable[[], object]) -> Callable[[], object]:
    return lambda: [heal() for heal in heals]


# ---- brokers


@_kind
def slow(world: World, fault: Fault) -> object:
    """It takes 200 times as long."""
    broker = _broker(world, fault)
    if broker.slow_factor > 1:
        return None
    return _both(_set(world, broker, "slow_factor", 200.0), _probe(world, fault, broker.number))


@_kind
def freeze(world: World, fault: Fault) -> object:
    """It answers nothing."""
    broker = _broker(world, fault)
    if broker.is_frozen:
        return None
    broker.is_frozen = True
    return _both(broker.thaw, _probe(world, fault, broker.number))


@_kind
def quota(world: World, fault: Fault) -> object:
    """It enforces a quota of its own."""
    return _set(world, _broker(world, fault), "quota", 50_000)


@_kind
def idle(world: World, fault: Fault) -> None:
    """It closes its idle connections."""
    _broker(world, fault).close_idle()


@_kind
def leaders(world: World, fault: Fault) -> None:
    """Others lead its partitions."""
    world.cluster.move_leaders(_broker(world, fault).number)


@_kind
def join(world: World, fault: Fault) -> None:
    """A fourth one comes; its id shares its port of the proxy with another one."""
    if len(world.brokers) == world.FIRST_BROKERS:
        world.add_broker()


def _ended(world: World, fault: Fault, *, moves: bool, in_response: bool) -> object:
    broker = _broker(world, fault)
    if not broker.is_up or len(world.cluster.addresses) == 1:
        return None
    host, port = broker.address
    # The first one stays: others may never find a cluster that has moved as a whole.
    address = (f"10.0.2.{100 + broker.number}" if moves and broker.number else host, port)
    broker.dies_in_response = in_response
    if not in_response:
        broker.stop()

    def back() -> None:
        broker.dies_in_response = False
        if not broker.is_up:
            broker.start(address)

    return back


@_kind
def die(world: World, fault: Fault) -> object:
    """It dies, and comes back."""
    return _ended(world, fault, moves=False, in_response=False)


@_kind
def move(world: World, fault: Fault) -> object:
    """It dies, and comes back at another address."""
    return _ended(world, fault, moves=True, in_response=False)


@_kind
def cut(world: World, fault: Fault) -> object:
    """It dies in the middle of a response, and comes back."""
    return _ended(world, fault, moves=False, in_response=True)


# ---- the network


@_kind
def delay(world: World, fault: Fault) -> object:
    """New connections are slow."""
    return _set(world, world.network, "delay_ns", (20 * MS, 200 * MS))


@_kind
def partial(world: World, fault: Fault) -> object:
    """Most reads and writes are cut short."""
    return _set(world, world.network, "partial", 0.9)


@_kind
def silent(world: World, fault: Fault) -> object:
    """A broker's host answers no new connection."""
    host, _ = _broker(world, fault).address
    world.network.silent.add(host)
    return lambda: world.network.silent.discard(host)


# ---- clients


@_kind
def hostile(world: World, fault: Fault) -> object:
    """One that stalls, lies about lengths and hangs up."""
    proxy = world.proxies[fault.chosen(len(world.proxies))]
    world.hostile.append(Hostile(world.kernel, world.network, HOST, "etl", [proxy.listens_at]))
    return world.hostile[-1].stop


@_kind
def names(world: World, fault: Fault) -> None:
    """A new client for each request: `greedy`, whom only the limit of all names holds, and others between."""
    proxy = world.proxies[fault.chosen(len(world.proxies))]
    numbers = iter(range(int(10 * fault.lasts)))

    def come() -> None:
        number = next(numbers, None)
        if number is not None:
            world.kernel.after(0.1, come)
            name, size = ("greedy", 100_000) if number % 4 == 0 else (f"name-{number}", 100)
            Once(world.kernel, world.network, "10.0.3.252", name, proxy.listens_at, size)

    come()


@_kind
def leave(world: World, fault: Fault) -> None:
    """One leaves, and another one comes."""
    if len(world.clients) > 1:
        world.clients[1 + fault.chosen(len(world.clients) - 1)].stop()
    world.add_client(len(world.clients))


# ---- proxies


@_kind
def reload(world: World, fault: Fault) -> None:
    """The quotas change: the file is written, and read again; by one member of some fleets only later."""
    late = world.proxies[fault.chosen(len(world.proxies))] if world.is_fleet and fault.pick > 0.5 else None
    world.change_quotas(late, fault.lasts if late else 0.0)


@_kind
def lift(world: World, fault: Fault) -> object:
    """There are no quotas for some time."""
    return world.lift_quotas()


@_kind
def pause(world: World, fault: Fault) -> None:
    """It is stopped, and goes on later (SIGSTOP)."""
    world.proxies[fault.chosen(len(world.proxies))].pause(fault.lasts)


@_kind
def drain(world: World, fault: Fault) -> None:
    """It ends in order, and starts again (SIGTERM)."""
    number = fault.chosen(len(world.proxies))
    world.proxies[number].send_signal(signal.SIGTERM)
    world.kernel.after(DRAIN_SECONDS, lambda: world.restart(number))


@_kind
def kill(world: World, fault: Fault) -> object:
    """It is killed, and starts again (SIGKILL)."""
    number = fault.chosen(len(world.proxies))
    world.kill(number)
    return lambda: world.restart(number)


# ---- disks


@_kind
def fill(world: World, fault: Fault) -> object:
    """Others than the proxies write to a broker's disk, and delete it again."""
    if not world.disks:
        return None
    disks, number = world.disks, _broker(world, fault).number
    disks.fill(number, disks.total * fault.pick / 2)
    return lambda: disks.fill(number, -disks.total * fault.pick / 2)


@_kind
def blind(world: World, fault: Fault) -> object:
    """Brokers refuse to tell one proxy how full their disks are."""
    if not world.disks:
        return None
    blind, host = world.disks.blind, world.proxies[fault.chosen(len(world.proxies))].address
    blind.add(host)
    return lambda: blind.discard(host)


# ---- the topic of quotas


@_kind
def alter(world: World, fault: Fault) -> None:
    """A quota changes, by Kafka's API through one proxy."""
    proxy = world.proxies[fault.chosen(len(world.proxies))]
    if world.stored and proxy.exit_code is None:
        world.stored.alter(proxy)


@_kind
def write(world: World, fault: Fault) -> None:
    """A quota changes, by the command."""
    if world.stored:
        world.stored.write(doubled=fault.pick / 2)


@_kind
def broken(world: World, fault: Fault) -> None:
    """Someone writes what no proxy may apply."""
    if world.stored:
        world.stored.write_broken()


@_kind
def away(world: World, fault: Fault) -> object:
    """No proxy can reach it."""
    return _set(world, world.stored, "is_away", True) if world.stored else None


@_kind
def compact(world: World, fault: Fault) -> None:
    """Only the newest record of each entity is kept."""
    if world.stored:
        world.stored.compact()


# ---- the fleet's topic, and that of quotas


def _log(world: World, fault: Fault) -> SimLog:
    return world.logs[world.proxies[fault.chosen(len(world.proxies))].address]


@_kind
def deaf_topic(world: World, fault: Fault) -> object:
    """It takes records and delivers none."""
    topics = ([world.topic] if world.is_fleet else []) + ([world.stored.topic] if world.stored else [])
    return _set(world, topics[fault.chosen(len(topics))], "is_deaf", True) if topics else None


@_kind
def rough_topic(world: World, fault: Fault) -> object:
    """Records get lost, or arrive late or twice, and some are not from members."""
    topic = world.topic
    for noise in (b"{}", b"[" * 5_000, topic.records[-1][0][:-1] if topic.records else b""):
        topic.append(noise)
    return _both(_set(world, topic, "lost", 0.1), _set(world, topic, "doubled", 0.3), _set(world, topic, "late", 0.2))


@_kind
def lost_topic(world: World, fault: Fault) -> None:
    """It is deleted, and created again."""
    if world.stored and (not world.is_fleet or fault.pick < 0.5):
        world.stored.recreate(LAG_SECONDS)
    else:
        world.topic.recreate(LAG_SECONDS)


@_kind
def deaf(world: World, fault: Fault) -> object:
    """No record reaches one member."""
    return _set(world, _log(world, fault), "is_deaf", True)


@_kind
def cut_off(world: World, fault: Fault) -> object:
    """No record reaches one member, and none of its own reaches the topic."""
    log = _log(world, fault)
    return _both(_set(world, log, "is_deaf", True), _set(world, log, "is_mute", True))


@_kind
def broken_log(world: World, fault: Fault) -> object:
    """One member's connection to the topic breaks."""
    return _set(world, _log(world, fault), "error", LogFailed("unreachable", "the connection is broken"))
