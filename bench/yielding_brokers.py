"""A backfill beside an online producer, once for real: three brokers, one proxy, Kafka's ProducerPerformance.

    python -m bench.yielding_brokers --gigabytes 10 --rounds 1 --picture docs/yielding.png

In each round the online producer is alone, then next to a backfill without a limit, then next to one of the same size
that yields. The target is `MARGIN` times the 99th percentile of the online producer alone.
"""

import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import IO

import click
import matplotlib as mpl
from confluent_kafka.admin import AdminClient, NewTopic
from PIL import Image

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench.processes import running
from bench.real_broker import printed, proxied
from deploy.local.bars import COLOURS
from deploy.local.cluster import KafkaCluster
from deploy.local.tools import tool_command

ONLINE, BACKFILL, PARTITIONS = "online", "backfill-1", 6
PER_SECOND, RECORD_BYTES = 200, 1_000
ALONE_SECONDS, MOST_SECONDS = 20, 240
MARGIN, LEAST_TARGET_MS = 4, 20
ALONE, UNLIMITED, YIELDS = "alone", "next to a backfill without a limit", "next to a backfill that yields"
#: Little is kept, so that the disk does not fill up.
OVERRIDES = {
    "log.segment.bytes": str(64 << 20), "log.retention.bytes": str(128 << 20),
    "log.retention.check.interval.ms": "2000", "log.segment.delete.delay.ms": "1000",
}  # fmt: skip
_RELOAD_SECONDS = 4


def quotas(target_ms: int | None) -> str:
    """The quotas file; without a target nothing is limited."""
    if target_ms is None:
        return '[[quota]]\nclient-id = "nobody"\nproducer_byte_rate = "1GB"\n'
    rate = f'{{ min = "2MB", max = "500MB", yield-to = "client-id:{ONLINE}", target = "{target_ms}ms" }}'
    return f'[[resource-group]]\nname = "backfill"\nclient-id = "backfill-*"\nproducer_byte_rate = {rate}\n'


@dataclass
class Phase:
    """What the online producer saw from `began` to `ended`; `sent`: bytes of the backfill so far, by time."""

    name: str
    began: float
    ended: float = 0.0
    took_ms: list[tuple[float, float]] = field(default_factory=list)
    sent: list[tuple[float, float]] = field(default_factory=list)

    def percentile(self, part: float) -> float:
        """In ms."""
        found = sorted(ms for _, ms in self.took_ms)
        return found[ceil(part * len(found)) - 1]

    @property
    def sent_bytes(self) -> float:
        return self.sent[-1][1] - self.sent[0][1]


class Scene:
    """The brokers, the proxy and the online producer, which runs all the time."""

    def __init__(self, ending: ExitStack, folder: Path) -> None:
        cluster = ending.enter_context(KafkaCluster(3, overrides=OVERRIDES))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 3) for name in (ONLINE, BACKFILL)]).values():
            created.result(30)
        self.file = folder / "quotas.toml"
        self.limit(None)
        self.proxy = ending.enter_context(proxied(cluster.bootstrap_servers, "--quotas-file", str(self.file)))
        online = [sys.executable, "-m", "bench.online_producer", self.proxy.servers, ONLINE, str(PER_SECOND)]
        self.online: IO[bytes] = ending.enter_context(running(online, None))[1]

    def limit(self, target_ms: int | None) -> None:
        """Change the quotas file, and wait until the proxy has read it."""
        self.file.write_text(quotas(target_ms))
        time.sleep(_RELOAD_SECONDS)

    def sent_bytes(self) -> float:
        """By the backfill, as the proxy counts them."""
        with urllib.request.urlopen(self.proxy.metrics_url) as page:  # noqa: S310 - loopback
            lines = page.read().decode().splitlines()
        series = f'kafka_quota_proxy_bytes_total{{client_id="{BACKFILL}",direction="produce"'
        return sum(float(line.split()[-1]) for line in lines if line.startswith(series))

    def watch(self, name: str, seconds: float, is_over: Callable[[], bool] = lambda: False) -> Phase:
        """Let time pass until this holds."""
        phase = Phase(name, time.monotonic())
        while not is_over() and time.monotonic() < phase.began + seconds:
            phase.sent.append((time.monotonic(), self.sent_bytes()))
            time.sleep(0.5)
        phase.ended = time.monotonic()
        phase.sent.append((phase.ended, self.sent_bytes()))
        for line in printed(self.online).decode().splitlines():
            at, took_ms = line.split()
            if phase.began <= float(at) < phase.ended:
                phase.took_ms.append((float(at), float(took_ms)))
        print(f"{name}: p99 {phase.percentile(0.99):.1f} ms", flush=True)
        return phase

    def backfill(self, name: str, megabytes: int) -> Phase:
        """Until it has sent all."""
        settings = ["batch.size=262144", "linger.ms=20", "acks=1"]
        properties = [f"bootstrap.servers={self.proxy.servers}", f"client.id={BACKFILL}", *settings]
        count = str(megabytes * 1_000_000 // RECORD_BYTES)
        argv = tool_command(
            "org.apache.kafka.tools.ProducerPerformance",
            *("--topic", BACKFILL, "--num-records", count, "--record-size", str(RECORD_BYTES)),
            *("--throughput", "-1", "--producer-props", *properties),
        )
        with running(argv, None) as (process, _):
            before = self.sent_bytes()
            while self.sent_bytes() == before and process.poll() is None:  # the start of its virtual machine
                time.sleep(0.2)
            return self.watch(name, MOST_SECONDS, lambda: process.poll() is not None)


def table(phases: list[Phase], target_ms: int) -> Iterator[str]:
    yield f"| the online producer is | p50 | p99 | p99.9 | longer than {target_ms} ms | rate of the backfill | time |"
    yield "|---|---|---|---|---|---|---|"
    for name in (ALONE, UNLIMITED, YIELDS):
        found = [each for each in phases if each.name == name]
        took = Phase(name, 0, took_ms=[each for phase in found for each in phase.took_ms])
        slow = mean(ms > target_ms for _, ms in took.took_ms)
        places = " | ".join(f"{took.percentile(part):.0f} ms" for part in (0.5, 0.99, 0.999))
        seconds, sent = sum(each.ended - each.began for each in found), sum(each.sent_bytes for each in found)
        rate = "none" if name == ALONE else f"{sent / seconds / 1e6:.0f} MB/s"
        yield f"| {name} | {places} | {slow:.1%} | {rate} | {seconds:.0f} s |"


def draw(phases: list[Phase], target_ms: int, path: Path) -> None:
    """Deliveries of the online producer and the rate of the backfill, by second."""
    figure, (upper, lower) = plt.subplots(2, 1, sharex=True, figsize=(10, 5), layout="constrained")
    start = phases[0].began
    for phase in phases:
        colour = COLOURS[(ALONE, YIELDS, UNLIMITED).index(phase.name)]
        times = [at - start for at, _ in phase.took_ms]
        upper.plot(times, [ms for _, ms in phase.took_ms], ".", markersize=1.5, color=colour)
        upper.axvspan(phase.began - start, phase.ended - start, color=colour, alpha=0.08)
        pairs = list(zip(phase.sent, phase.sent[2:], strict=False))
        rates = [(after - before) / (then - at) / 1e6 for (at, before), (then, after) in pairs]
        label = phase.name if phase in phases[:3] else None
        lower.plot([at - start for (at, _), _ in pairs], rates, color=colour, linewidth=1.4, label=label)
    upper.axhline(target_ms, color="black", linewidth=0.9, linestyle=(0, (5, 3)))
    upper.set_yscale("log")
    upper.set_title("Each delivery of the online producer, in ms, and the target", loc="left", fontsize=10)
    lower.set_title("The backfill, in MB/s", loc="left", fontsize=10)
    lower.set_xlabel("seconds", fontsize=9)
    lower.legend(frameon=False, fontsize=8)
    for panel in (upper, lower):
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)
    with Image.open(path) as picture:
        picture.convert("RGB").quantize(64).save(path, optimize=True)


@click.command()
@click.option("--gigabytes", default=2.0, show_default=True, help="Of each backfill.")
@click.option("--rounds", default=2, show_default=True)
@click.option("--picture", type=click.Path(path_type=Path), help="Draw all rounds into this PNG.")
def main(gigabytes: float, rounds: int, picture: Path | None) -> None:
    with TemporaryDirectory() as folder, ExitStack() as ending:
        scene, phases = Scene(ending, Path(folder)), list[Phase]()
        scene.watch("warming up", ALONE_SECONDS)
        idle = scene.watch(ALONE, ALONE_SECONDS)
        target_ms = max(LEAST_TARGET_MS, ceil(MARGIN * idle.percentile(0.99) / 10) * 10)
        print(f"target {target_ms} ms", flush=True)
        for number in range(rounds):
            phases.append(idle if not number else scene.watch(ALONE, ALONE_SECONDS))
            phases.append(scene.backfill(UNLIMITED, round(1_000 * gigabytes)))
            scene.limit(target_ms)
            phases.append(scene.backfill(YIELDS, round(1_000 * gigabytes)))
            scene.limit(None)
        print("\n".join(table(phases, target_ms)))
        print(*[line for line in printed(scene.proxy.log).decode().splitlines() if " yields " in line][-5:], sep="\n")
        if picture is not None:
            draw(phases, target_ms, picture)


if __name__ == "__main__":
    main()
