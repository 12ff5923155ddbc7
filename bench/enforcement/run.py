"""Runs the cells: one client library under one enforcement each, beside a consumer group and an innocent neighbour."""

import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic

from bench import greedy_consumers
from bench.enforcement import neighbour
from bench.enforcement.outcome import (
    BROKER,
    BURST_SECONDS,
    LIMIT,
    NAME,
    SELF_LIMITED,
    Outcome,
    duplicates_in,
    figures,
    rebalances_in,
    timeouts_in,
    whole_seconds,
)
from bench.flooding_clients import DISTINCT_BYTES, LIBRARIES, PYSPARK, RECORD_BYTES
from bench.load import LoadError
from bench.options import Options
from bench.peers import proxy
from bench.processes import PeerError, running
from bench.real_broker import Broker, flood, host_port, printed, tapped_broker
from bench.report import Figure
from demo.verify import TopicUnreadableError, read_topic
from deploy.local.broker_quota import client_quotas
from deploy.local.errors import PlaygroundError
from deploy.local.evenness import BIN_NS
from deploy.local.settings import Address
from quotas.modes import MODES

__all__ = ["NAME", "run"]

#: Keys and values of the noisy client. Its group earns a quarter of what it writes: it is always over its limit too.
NOISY_LIMITS = {"producer_byte_rate": LIMIT, "consumer_byte_rate": LIMIT // 4}
NEIGHBOUR = "neighbour"
_START_SECONDS = 30.0
_POLL_SECONDS = 0.05


def run(options: Options) -> list[Figure]:
    """Each library under each mode and under the broker's own quota; `pyspark` only if it is asked for by name.

    Draws the picture if it is asked for. Raises PeerError, LoadError.
    """
    libraries = [PYSPARK] if options.scenario == PYSPARK else [each for each in LIBRARIES if options.scenario in each]
    if not libraries:
        return []
    rounds, alone_seconds, seconds = options.rounds or 1, 2 if options.quick else 10, 4 if options.quick else 30
    outcomes: list[Outcome] = []
    try:
        with tapped_broker() as broker:
            options.progress("a broker that has just started is slow: a first cell that does not count")
            _cell(broker, libraries[0], MODES[0], "warm-up", 1, 2)
            for number in range(rounds):
                for library in libraries:
                    for enforcement in (*([] if library == PYSPARK else [SELF_LIMITED]), *MODES, BROKER):
                        options.progress(f"{library}, {enforcement}, {seconds} s, round {number + 1} of {rounds}")
                        name = f"{library}-{re.sub('[^a-z]+', '-', enforcement)}-{number}"
                        outcome = _cell(broker, library, enforcement, name, alone_seconds, seconds)
                        options.progress(_line(outcome))
                        outcomes.append(outcome)
    except (PlaygroundError, TopicUnreadableError, KafkaException) as error:
        raise PeerError(str(error)) from error
    if options.picture is not None:
        from bench.enforcement.picture import draw  # other benchmarks need not wait for matplotlib

        draw(outcomes, options.picture)
    return figures(outcomes)


def _cell(broker: Broker, library: str, enforcement: str, name: str, alone_seconds: int, seconds: int) -> Outcome:
    """The neighbour alone for `alone_seconds`, then beside the flood. `name`: the noisy client id, group and topic."""
    member_library = "java" if library == PYSPARK else library
    with _topics(broker, name, f"{name}-{NEIGHBOUR}") as (topic, neighbour_topic):
        with _enforced(broker, enforcement, name) as bootstrap:
            member = greedy_consumers.command(member_library, host_port(bootstrap), name, topic)
            beside = [sys.executable, "-m", neighbour.__name__, host_port(bootstrap), NEIGHBOUR, neighbour_topic]
            with running(member, None) as (_, member_output), running(beside, None) as (_, neighbour_output):
                _wait(lambda: f"Stabilized group {name} " in broker.log(), f"group {name} is stable")
                _wait(lambda: bool(printed(neighbour_output)), "the neighbour has written")
                alone_ns = time.monotonic_ns()
                time.sleep(alone_seconds)
                logged = len(broker.log())
                pace = LIMIT // RECORD_BYTES if enforcement == SELF_LIMITED else 0
                noisy = flood(broker.tap, library, bootstrap, name, topic, seconds, records_per_second=pace)
                log = broker.log()[logged:]
                output = noisy.output + printed(member_output)
                latencies = printed(neighbour_output)
        duplicates = duplicates_in(
            (value or b"")[:DISTINCT_BYTES] for _, value in read_topic(host_port(broker.address), topic, "read-back")
        )
    first_ns = noisy.frames[0].time_ns
    alone = neighbour.latencies_ns(latencies, alone_ns, alone_ns + alone_seconds * BIN_NS)
    together = neighbour.latencies_ns(latencies, first_ns, first_ns + seconds * BIN_NS)
    if not alone or not together:
        raise LoadError(f"{library}, {enforcement}: no record of the neighbour was acknowledged:\n{latencies[-500:]!r}")
    return Outcome(
        library,
        enforcement,
        whole_seconds([(frame.time_ns, frame.size) for frame in noisy.frames], seconds),
        timeouts=timeouts_in(output),
        duplicates=duplicates,
        rebalances=rebalances_in(log, name),
        alone_ns=alone,
        beside_ns=together,
    )


@contextmanager
def _topics(broker: Broker, *names: str) -> Iterator[tuple[str, ...]]:
    """Topics of one partition, deleted at the end: a cell writes up to 300 MB."""
    admin = AdminClient({"bootstrap.servers": host_port(broker.address), "log_level": 4})
    for created in admin.create_topics([NewTopic(name, 1) for name in names]).values():
        created.result(_START_SECONDS)
    yield names
    for deleted in admin.delete_topics(list(names)).values():
        deleted.result(_START_SECONDS)


@contextmanager
def _enforced(broker: Broker, enforcement: str, client_id: str) -> Iterator[Address]:
    """The bootstrap address for clients: that of a proxy, or of the broker with quotas of its own.

    Beside a client that paces itself, only its consumer has a limit.
    """
    if enforcement == BROKER:
        neighbours = {"producer_byte_rate": neighbour.LIMIT}
        with (
            client_quotas(broker.address, client_id, NOISY_LIMITS),
            client_quotas(broker.address, NEIGHBOUR, neighbours),
        ):
            yield broker.address
        return
    limits = [f"{key}={value}" for key, value in NOISY_LIMITS.items()]
    arguments = ["--throttle-mode", enforcement]
    if enforcement == SELF_LIMITED:
        limits, arguments = limits[1:], []
    quotas = [
        f"client-id={client_id},{','.join(limits)},burst_seconds={BURST_SECONDS}",
        f"client-id={NEIGHBOUR},producer_byte_rate={neighbour.LIMIT}",
    ]
    with proxy(broker.address, None, quotas=quotas, arguments=arguments) as peer:
        yield peer.address


def _wait(until: Callable[[], bool], what: str) -> None:
    """Raises LoadError."""
    deadline = time.monotonic() + _START_SECONDS
    while not until():
        if time.monotonic() > deadline:
            raise LoadError(f"not so after {_START_SECONDS:g} s: {what}")
        time.sleep(_POLL_SECONDS)


def _line(outcome: Outcome) -> str:
    bins = " ".join(f"{size / 1e6:.2f}" for size in outcome.bins)
    return (
        f"MB in each second: {bins}; timeouts {outcome.timeouts}, duplicates {outcome.duplicates}, "
        f"rebalances {outcome.rebalances}, neighbour's p99 {outcome.neighbour_p99_ms:.2f} ms, "
        f"{outcome.neighbour_ratio:.2f} times alone"
    )
