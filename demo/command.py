"""`make demo`: real flights, a real Spark job, a real broker, and a quota that a person can see hold.

Three runs of the same job: through the proxy without a quota, through the proxy with one, and straight to the broker
under the broker's own quota of the same size. A tap in front of the broker measures all three alike; a relay in front
of the proxy reads along what clients receive. Then every record is read back and compared, and the usage pipeline makes
its report of the records that the two proxies wrote.
"""

import argparse
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console

from demo import flights, usage_report
from demo.address_scan import ScanningRelay
from demo.picture import dark, draw
from demo.produce_flights import read_flights
from demo.progress import RunProgress
from demo.proxy_process import ProxyFailedError, ProxyProcess, reserve_port
from demo.report import (
    TABLE_NOTES,
    Check,
    ScanResult,
    no_address_seen,
    nothing_lost,
    quota_held,
    results_table,
    verdict_rows,
)
from demo.runs import Plan, Run, run_job
from demo.verify import Tally, TopicUnreadableError, compare, read_topic
from deploy.local import artifacts
from deploy.local.artifacts import PROJECT
from deploy.local.broker_quota import client_quotas
from deploy.local.cluster import KafkaCluster
from deploy.local.errors import BrokerFailed, PlaygroundError
from deploy.local.java import find_java
from deploy.local.tap import Tap
from pipeline.failures import JobFailedError
from pipeline.options import count, positive
from pipeline.spark_session import SparkStartError, spark_session

CLIENT_ID = "flights-etl"
# As many as Spark has cores here. A request carries at most one batch of 16 KiB for each: 0.7 % of a second's 5 MB.
PARTITIONS = 2
# The default is one second: then second 1 may carry 10 MB, and what a machine too busy for that leaves of it comes in
# second 2, which the evenness contract judges. With a tenth the limit shows from the start.
BURST_SECONDS = 0.1
NODE = 1
KAFKA_VERSION = "4.3.1"
USAGE_TOPIC = "kafka-quota-proxy-usage"
# Where the relay listens, with the proxy's port numbers: the address that clients receive instead of the broker's
# 127.0.0.2.
CLIENTS_SEE = "127.0.0.8"
PROXY_LISTENS = "127.0.0.1"

_EXAMPLES = """\
examples:
  python -m demo                                what make demo runs: one to two minutes
  python -m demo --rows 40000 --limit 2         a short one
  make demo ARGS="--output /tmp/demo"

exit code: 0 if all three checks pass, 1 if one fails or a process ends, 2 for a wrong option, 130 after Ctrl-C.
"""
EXPECTED_ERRORS = (
    PlaygroundError,
    SparkStartError,
    ProxyFailedError,
    JobFailedError,
    TopicUnreadableError,
    KafkaException,
    OSError,
)


@dataclass(frozen=True, slots=True)
class Options:
    """rows: how many flights; limit: bytes per second; output: where picture and logs go."""

    rows: int
    limit: float
    output: Path


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the runs gave. usage_report: the HTML file."""

    runs: Sequence[Run]
    tallies: dict[str, Tally]
    scan: ScanResult
    usage_report: Path


def main() -> int:
    """Returns the exit code: 0 when all three verdicts are PASS, 1 otherwise, 130 after Ctrl-C."""
    arguments = _parser().parse_args()
    options = Options(arguments.rows, arguments.limit * 1e6, arguments.output.resolve())
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    try:
        return demonstrate(options, console)
    except KeyboardInterrupt:
        console.print("interrupted; everything is stopped")
        return 130
    except EXPECTED_ERRORS as error:
        *details, last = str(error).splitlines() or [type(error).__name__]
        message = details.pop(0) if details else last
        for line in details:
            console.print(f"  {line}", markup=False)
        console.print(f"error: {message}", style="bold red", markup=False, soft_wrap=True)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m demo",
        description=__doc__,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--rows", type=count, default=flights.FLIGHTS, metavar="N", help="only the first flights (default: %(default)s)"
    )
    parser.add_argument(
        "--limit", type=positive, default=5.0, metavar="MB/s", help="the quota, in MB per second (default: %(default)s)"
    )
    parser.add_argument(
        "--output",
        type=Path,
        default=PROJECT / "build" / "demo",
        metavar="FOLDER",
        help="folder for the picture, the usage report and the logs (default: build/demo)",
    )
    return parser


def demonstrate(options: Options, console: Console) -> int:
    """All of it. Raises one of EXPECTED_ERRORS when a step goes wrong; nothing is left running then."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    options.output.mkdir(parents=True, exist_ok=True)
    picture = options.output / "bytes-per-second.png"
    for name in ("proxy.log", "proxy-no-quota.log", "spark.log", picture.name, dark(picture).name):
        (options.output / name).unlink(missing_ok=True)
    find_java()
    started = time.monotonic()
    for each in (artifacts.KAFKA_4_3_1, artifacts.SPARK_KAFKA, artifacts.SPARK_DELTA):
        artifacts.ensure(each)
    downloaded = time.monotonic()
    outcome = run_all(options, console)
    console.print()
    console.print(results_table(outcome.runs, outcome.tallies, console.width))
    console.print(TABLE_NOTES, style="dim", width=min(console.width, 120))
    draw(outcome.runs, options.rows, options.limit, picture)
    ended = time.monotonic()
    download = f"{downloaded - started:.0f} s" if downloaded - started >= 1 else "none, all cached"
    console.print(f"\ntook {ended - downloaded:.0f} s; download time on top: {download}\n")
    return conclude(options, outcome, picture, console)


def conclude(options: Options, outcome: Outcome, picture: Path, console: Console) -> int:
    """The last lines: three verdicts, the picture, the usage report, what to try next. Returns the exit code."""
    verdicts = verdicts_on(outcome, options)
    console.print(verdict_rows(verdicts))
    console.print(f"picture: {_shown(picture)}", markup=False, soft_wrap=True)
    console.print(f"usage:   {_shown(outcome.usage_report)}", markup=False, soft_wrap=True)
    console.print(
        "next:    .venv/bin/kafka-quota-proxy run --bootstrap-servers YOUR-BROKER:9092 --dry-run "
        "--client-id my-job --quota 'client-id=my-job,producer_byte_rate=5MB'",
        markup=False,
        soft_wrap=True,
    )
    return 0 if all(verdict.passed for verdict in verdicts) else 1


def verdicts_on(outcome: Outcome, options: Options) -> list[Check]:
    """The run with the proxy's quota is the second one."""
    return [
        quota_held(outcome.runs[1], options.limit),
        nothing_lost(outcome.tallies, options.rows),
        no_address_seen(outcome.scan),
    ]


def run_all(options: Options, console: Console) -> Outcome:
    """Start everything, run the job three times, read all topics back, report the usage, stop everything."""
    quota = f"client-id={CLIENT_ID},producer_byte_rate={options.limit / 1e6:g}MB,burst_seconds={BURST_SECONDS}"
    with ExitStack() as stack:
        with console.status("preparing"):
            prepared = flights.prepare(artifacts.CACHE / "flights")
            _say(console, f"{options.rows:,} flights as JSON are prepared; starting Spark")
            spark = stack.enter_context(
                spark_session(
                    artifacts.usage_jars(), log=options.output / "spark.log", settings=usage_report.SETTINGS, short=True
                )
            )
            # PySpark's own handler asks the JVM to cancel its jobs, which hangs when that JVM is gone.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _say(console, f"Spark is up; starting a Kafka {KAFKA_VERSION} broker")
            tap = stack.enter_context(Tap())
            cluster = stack.enter_context(KafkaCluster(1, KAFKA_VERSION, advertised=tap.advertise))
            broker = cluster.node_addresses[NODE]
            hosts = sorted({host for host, _ in (broker, *cluster.advertised_addresses.values())})
            relay = stack.enter_context(ScanningRelay(hosts))
            _say(console, f"the broker is up; starting a proxy without a quota, and one with --quota '{quota}'")
            proxies = stack.enter_context(ExitStack())
            open_way = _proxy(cluster, "proxy-no-quota", (), options.output, proxies, relay)
            held_way = _proxy(cluster, "proxy", (quota,), options.output, proxies, relay)
            ways = tuple(f"{CLIENTS_SEE}:{proxy.ports[0]}" for proxy in (open_way, held_way))
            plans = plans_for(ways, cluster.bootstrap_servers, options.limit)
            _create_topics(plans[0].bootstrap_servers, [plan.topic for plan in plans])
            _say(console, "all is up; the same Spark job three times:")
        records = read_flights(spark, prepared, options.rows)
        expected_bytes = prepared.stat().st_size * options.rows / flights.FLIGHTS

        def check() -> None:
            open_way.check()
            held_way.check()
            _check_broker(broker)

        def run(plan: Plan, proxy: ProxyProcess | None) -> Run:
            with RunProgress(console, plan.title, expected_bytes, plan.limit) as progress:
                throttled = (lambda: proxy.throttled_seconds(CLIENT_ID)) if proxy else None
                return run_job(
                    spark, records, plan, tap=tap, progress=progress, check=check, throttled_seconds=throttled
                )

        runs = [run(plans[0], open_way), run(plans[1], held_way)]
        with client_quotas(broker, CLIENT_ID, {"producer_byte_rate": options.limit}):
            runs.append(run(plans[2], None))
        expected = flights.expected_checksums(prepared, options.rows)
        tallies = {}
        for plan in plans:
            tallies[plan.topic] = compare(
                read_topic(plans[0].bootstrap_servers, plan.topic, "flights-verify"), expected
            )
            _say(console, f"read back {tallies[plan.topic].records:,} records of {plan.topic} through the proxy")
        control = _sightings_without_proxy(cluster, hosts)
        scan = ScanResult(hosts, relay.bytes_scanned, relay.connections, relay.sightings, control)
        proxies.close()  # they write their last usage records
        page = usage_report.write_report(
            spark, cluster.bootstrap_servers, USAGE_TOPIC, options.output, partial(_say, console)
        )
    return Outcome(runs, tallies, scan, page)


def _say(console: Console, line: str) -> None:
    console.print(f"  {line}", markup=False, style="dim", soft_wrap=True)


def plans_for(proxies: tuple[str, ...], broker: str, limit: float) -> list[Plan]:
    """The three runs. proxies: addresses of the one without and the one with the quota; limit: bytes per second."""
    rate = f"{limit / 1e6:g} MB/s"
    return [
        Plan("proxy, no quota", "Through the proxy without a quota", "flights-no-quota", proxies[0], CLIENT_ID, None),
        Plan(
            f"proxy, {rate}",
            f"Through the proxy with a quota of {rate}",
            "flights-proxy-quota",
            proxies[1],
            CLIENT_ID,
            limit,
        ),
        Plan(
            f"broker's, {rate}",
            f"Straight to the broker under its own quota of {rate}",
            "flights-broker-quota",
            broker,
            CLIENT_ID,
            limit,
        ),
    ]


def _proxy(
    cluster: KafkaCluster, name: str, quotas: Sequence[str], folder: Path, stack: ExitStack, relay: ScanningRelay
) -> ProxyProcess:
    """A running proxy that writes usage records, with the relay in front of each of its ports."""
    proxy = ProxyProcess(
        cluster.bootstrap_servers,
        *(part for quota in quotas for part in ("--quota", quota)),
        *("--usage-topic", USAGE_TOPIC, "--sidecar-name", name),
        advertised_host=CLIENTS_SEE,
        log=folder / f"{name}.log",
    )
    stack.enter_context(proxy)
    for port in proxy.ports:
        relay.listen((CLIENTS_SEE, port), (PROXY_LISTENS, port))
    return proxy


def _create_topics(bootstrap_servers: str, topics: Sequence[str]) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "client.id": "flights-admin", "log_level": 2})
    created = admin.create_topics([NewTopic(topic, PARTITIONS, 1) for topic in topics], request_timeout=30)
    for future in created.values():
        future.result()


def _check_broker(broker: tuple[str, int]) -> None:
    try:
        socket.create_connection(broker, timeout=5).close()
    except OSError as error:
        raise BrokerFailed(f"the broker at {broker[0]}:{broker[1]} has gone: {error.strerror or error}") from error


def _sightings_without_proxy(cluster: KafkaCluster, hosts: Sequence[str]) -> int:
    """The scan's positive control: a client that asks the broker itself, through the same relay."""
    port, reservation = reserve_port(CLIENTS_SEE)
    with ScanningRelay(hosts) as relay:
        relay.listen((CLIENTS_SEE, port), cluster.advertised_addresses[NODE])
        admin = AdminClient(
            {"bootstrap.servers": f"{CLIENTS_SEE}:{port}", "client.id": "flights-control", "log_level": 2}
        )
        admin.list_topics(timeout=30)
    for each in reservation:
        each.close()
    return relay.sightings


def _shown(path: Path) -> str:
    """Relative to where the person is, when that is shorter."""
    return min(str(path), os.path.relpath(path), key=len)


if __name__ == "__main__":
    sys.exit(main())
