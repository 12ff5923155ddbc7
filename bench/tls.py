"""The proxy with TLS to the broker, from clients and on both sides, against HAProxy doing the same, and in plaintext.

Load and null broker encrypt, too, and each frame that is sent by itself is a record of its own. On two cores they share
one: throughput says nothing then, CPU of the peer does.
"""

import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.against_haproxy import FETCHES, KIB, MIB, OTHER, ROWS, WARM_UP_SECONDS, Scenario, cpu_figures, load_once
from bench.connections import FEW, extend_to, idle_connections, open_and_close
from bench.load import DepthOne, Load, check_answers
from bench.null_broker import null_broker
from bench.options import Options
from bench.peers import Peer, haproxy, proxy
from bench.processes import LOOPBACK, pin
from bench.report import Figure, compare
from bench.shapes import Produce
from deploy.local.security import PemFiles, Security

NAME = "tls"
PLAINTEXT = "plaintext"
#: Of TLS: from clients, to the broker.
SIDES = {PLAINTEXT: (False, False), "to the broker": (False, True), "from clients": (True, False), "both": (True, True)}
#: The largest wanted ratio to HAProxy doing the same, by bytes of a request; 0: a Fetch.
TARGETS = {16 * 1024: 1.3, MIB: 0.9, 0: 1.1}
#: Of smaller requests: the largest wanted ratio over that of plaintext in the same run.
OVER_PLAINTEXT = 1.15
#: The smallest wanted ratio of the rates of new connections.
NEW_CONNECTIONS = 0.5
#: Idle connections, of which the null broker holds one each.
MANY = 1_000
#: Clients whose ClientHello arrives at the same moment, and by how much they may prolong the longest wait of another
#: client in a second.
HELLOS, HELLOS_MS = 400, 25.0
SCENARIOS = (*ROWS, FETCHES[0])


@dataclass(frozen=True, slots=True)
class Pair:
    """This proxy and HAProxy with TLS on the same sides, and the context of their clients."""

    sides: str
    peers: tuple[Peer, Peer]
    context: ssl.SSLContext | None


def run(options: Options) -> list[Figure]:
    """Each scenario for each side, in turns, and new connections. Raises PeerError, LoadError."""
    rounds, seconds = options.rounds or (5 if options.quick else 11), 0.4 if options.quick else 1.5
    figures: list[Figure] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory()))
        pairs = list(_pairs(stack, options, Security(), directory))
        pin(options.cores.load)
        for scenario in SCENARIOS:
            if options.scenario.replace("_", " ") in scenario.name:
                options.progress(f"{scenario.name}: {rounds} rounds of {seconds:g} s, {2 * len(pairs)} peers")
                figures += _with_targets(scenario, list(_figures(scenario, pairs, rounds, seconds)))
        if options.scenario in "new connections":
            figures += _new_connections(pairs, rounds, seconds)
        if options.scenario in "idle connections":
            figures += compare(list(_idle(pairs)), other=OTHER)
        if options.scenario in "handshakes at once":
            figures += [_handshakes_at_once(pairs, peer, rounds) for peer in pairs[0].peers]
    return figures


def _pairs(stack: ExitStack, options: Options, security: Security, directory: Path) -> Iterator[Pair]:
    files, ca = security.issue(directory, "server", LOOPBACK, "localhost"), security.write_ca(directory / "ca.pem")
    settings = directory / "client.properties"
    settings.write_text(f"security.protocol=SSL\nssl.truststore.location={ca}\n")
    brokers = {
        is_tls: stack.enter_context(null_broker(core=options.cores.broker, certificate=files.both if is_tls else None))
        for is_tls in (False, True)
    }
    for sides, (clients, broker) in SIDES.items():
        arguments = _arguments(files, settings, clients=clients, broker=broker)
        core = options.cores.peer
        ours = stack.enter_context(proxy(brokers[broker], core, arguments=arguments, name="proxy", limits="one"))
        theirs = stack.enter_context(
            haproxy(brokers[broker], core, certificate=files.both if clients else None, ca=ca if broker else None)
        )
        yield Pair(sides, (ours, theirs), ssl.create_default_context(cafile=str(ca)) if clients else None)


def _arguments(files: PemFiles, settings: Path, *, clients: bool, broker: bool) -> list[str]:
    arguments = ["--ssl-certificate-location", f"{files.both}"] if clients else []
    return arguments + (["--command-config", f"{settings}"] if broker else [])


def _figures(scenario: Scenario, pairs: list[Pair], rounds: int, seconds: float) -> Iterator[Figure]:
    shape = scenario.shape.build()
    loads: dict[tuple[str, str], list[Load]] = {}
    for pair in pairs:
        for peer in pair.peers:
            check_answers(peer.address, shape, pair.context)
    for _ in range(rounds):
        for pair in pairs:
            for peer in pair.peers:
                loads.setdefault((pair.sides, peer.name), []).append(
                    load_once(scenario, shape, peer, seconds, pair.context)
                )
    for (sides, name), taken in loads.items():
        yield from cpu_figures(NAME, f"{scenario.name}; {sides}", scenario, name, taken)


def _with_targets(scenario: Scenario, figures: list[Figure]) -> list[Figure]:
    """The figures with their ratios to HAProxy, starting with plaintext."""
    compared = compare(figures, other=OTHER)
    size = scenario.shape.size if isinstance(scenario.shape, Produce) else 0
    target = TARGETS.get(size) or OVER_PLAINTEXT * (compared[0].ratio or 0.0)
    return [
        figure
        if figure.ratio is None or figure.metric != "CPU" or figure.scenario.endswith(PLAINTEXT)
        else replace(figure, ratio_target=target)
        for figure in compared
    ]


def _new_connections(pairs: list[Pair], rounds: int, seconds: float) -> list[Figure]:
    """Connect, TLS from clients, ApiVersions, close. Where the load is what limits the rate, CPU tells more."""
    pair = _from_clients(pairs)
    rates: dict[str, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for peer in pair.peers:
            taken = open_and_close(
                peer.address, seconds=max(2.0, 2 * seconds), cpu_clock=peer.cpu_clock, context=pair.context
            )
            rates.setdefault(peer.name, []).append(taken)
    scenario = f"new connections; {pair.sides}"
    figures = []
    for name, values in rates.items():
        rate, cpu_us = zip(*values, strict=True)
        rate_figure = Figure(NAME, scenario, "rate", "1/s", name, rate, ratio_target=NEW_CONNECTIONS, at_least=True)
        figures += [
            rate_figure,
            replace(rate_figure, metric="rate", unit="1/s of CPU", rounds=tuple(1e6 / each for each in cpu_us)),
        ]
    return compare(figures, other=OTHER)


def _idle(pairs: list[Pair]) -> Iterator[Figure]:
    """What a process holds alone for each connection beyond the first `FEW`."""
    for pair in pairs:
        for peer in pair.peers:
            with idle_connections() as held:
                extend_to(held, FEW, peer.address, pair.context)
                at_few = peer.private_bytes()
                extend_to(held, MANY, peer.address, pair.context)
                each = (peer.private_bytes() - at_few) / (MANY - FEW)
            yield Figure(NAME, f"idle connections; {pair.sides}", "memory each", "bytes", peer.name, (each,))


def _handshakes_at_once(pairs: list[Pair], peer: Peer, rounds: int) -> Figure:
    """An open connection at depth 1, for a second alone, then for one in which `HELLOS` clients begin a handshake."""
    pair = _from_clients(pairs)
    [address] = [each.address for each in pair.peers if each.name == peer.name]
    assert pair.context is not None
    outgoing = ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        pair.context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname=LOOPBACK).do_handshake()
    hello = outgoing.read()
    more_ms = []
    for _ in range(rounds):
        with DepthOne(address, Produce(KIB).build(), pair.context) as innocent, ExitStack() as stack:
            innocent.warm_up(WARM_UP_SECONDS)
            alone = innocent.run_for(1)
            clients = [stack.enter_context(socket.create_connection(address)) for _ in range(HELLOS)]
            innocent.warm_up(WARM_UP_SECONDS)
            for client in clients:
                client.sendall(hello)
            beside = innocent.run_for(1)
            more_ms.append((max(beside.latencies_ns) - max(alone.latencies_ns)) / 1e6)
    scenario = f"{HELLOS} handshakes at once; {pair.sides}"
    target = None if peer.name == OTHER else HELLOS_MS
    return Figure(NAME, scenario, "longest wait of another client", "ms more", peer.name, tuple(more_ms), target=target)


def _from_clients(pairs: list[Pair]) -> Pair:
    return next(pair for pair in pairs if pair.sides == "from clients")
