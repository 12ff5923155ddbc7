"""A backfill beside an online producer, once for real: three brokers, one proxy, Kafka's ProducerPerformance.

    python -m bench.yielding_brokers --gigabytes 10

The online producer alone, then with a backfill as fast as it can, then with one that yields until it has sent all. What
counts is the time that the online producer measures from `send()` to the acknowledgement, which includes its own start:
a new program every 30 s.
"""

import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from deploy.local.cluster import KafkaCluster
from deploy.local.tools import tool_command

TARGET_MS = 50
QUOTA = f"""
[[resource-group]]
name = "backfill"
client-id = "backfill-*"
producer_byte_rate = {{ min = "5MB", max = "500MB", yield-to = "client-id:online", target = "{TARGET_MS}ms" }}
"""
PLAIN = """
[[quota]]
client-id = "nobody"
producer_byte_rate = "1GB"
"""
#: Little is kept, so that the disk does not fill up.
OVERRIDES = {
    "log.segment.bytes": str(64 << 20), "log.retention.bytes": str(128 << 20),
    "log.retention.check.interval.ms": "2000", "log.segment.delete.delay.ms": "1000", "num.partitions": "6",
}  # fmt: skip
ONLINE_SECONDS = 30
ONLINE_PER_SECOND = 200
RECORD_BYTES = 1_000
LISTEN, ADMIN = "127.0.0.1:39092", "127.0.0.1:39404"


def producer(client_id: str, records: int, per_second: int, *settings: str) -> "subprocess.Popen[str]":
    properties = [f"bootstrap.servers={LISTEN}", f"client.id={client_id}", "acks=1", *settings]
    command = tool_command(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", client_id, "--num-records", str(records), "--record-size", str(RECORD_BYTES)),
        *("--throughput", str(per_second), "--producer-props", *properties),
    )
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def online(seconds: int) -> "subprocess.Popen[str]":
    return producer("online", seconds * ONLINE_PER_SECOND, ONLINE_PER_SECOND, "linger.ms=0")


def backfill(megabytes: int) -> "subprocess.Popen[str]":
    return producer("backfill-1", megabytes * 1_000_000 // RECORD_BYTES, -1, "batch.size=262144", "linger.ms=20")


def percentiles(process: "subprocess.Popen[str]") -> dict[str, int]:
    """In ms, of the last line."""
    out = process.communicate()[0]
    return {place: int(ms) for ms, place in re.findall(r"(\d+) ms (50th|95th|99th|99.9th)", out)}


@contextmanager
def a_proxy(servers: str, quotas: Path, log: Path) -> Iterator[None]:
    command = [sys.executable, "-m", "proxy", "run", "--bootstrap-servers", servers, "--listen", LISTEN]
    command += ["--metrics-listen", ADMIN, "--quotas-file", str(quotas), "--log-level", "info"]
    with log.open("wb") as out, subprocess.Popen(command, stderr=out) as process:
        try:
            time.sleep(5)
            yield
        finally:
            process.terminate()


def rate() -> float:
    """The backfill's limit now."""
    with urllib.request.urlopen(f"http://{ADMIN}/metrics") as page:
        found = re.search(r"moving_rate\{[^}]*\} (\S+)", page.read().decode())
    return float(found[1]) if found else 0.0


@click.command()
@click.option("--gigabytes", default=10.0, show_default=True)
def main(gigabytes: float) -> None:
    """Run it, and print what the online producer has measured."""
    with TemporaryDirectory() as folder, KafkaCluster(3, overrides=OVERRIDES) as cluster:
        quotas, log = Path(folder, "quotas.toml"), Path(folder, "proxy.log")
        quotas.write_text(PLAIN)
        with a_proxy(cluster.bootstrap_servers, quotas, log):
            print("online alone", percentiles(online(ONLINE_SECONDS)), flush=True)
            greedy, first = backfill(100_000), online(ONLINE_SECONDS)
            print("with a backfill without a limit", percentiles(first), flush=True)
            greedy.terminate()
            quotas.write_text(QUOTA)
            time.sleep(4)
            began, rates = time.monotonic(), list[float]()
            yields = backfill(round(1_000 * gigabytes))
            while yields.poll() is None and time.monotonic() - began < 600:
                print("with a backfill that yields", percentiles(online(ONLINE_SECONDS)), end=" ")
                rates.append(rate() / 1e6)
                print(f"rate {rates[-1]:.0f} MB/s", flush=True)
            took = time.monotonic() - began
            sent = gigabytes if yields.poll() is not None else sum(rates) * ONLINE_SECONDS / 1_000
            yields.terminate()
            print(f"{sent:.1f} GB in {took:.0f} s: {1_000 * sent / took:.0f} MB/s")
            with urllib.request.urlopen(f"http://{ADMIN}/metrics") as page:
                lines = page.read().decode().splitlines()
                print(*[line for line in lines if re.match(r"\S+(moving|slow_sec)", line)], sep="\n")
        print(*[line for line in log.read_text().splitlines() if " yields " in line][-5:], sep="\n")


if __name__ == "__main__":
    main()
