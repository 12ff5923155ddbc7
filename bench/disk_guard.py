"""What `--disk-guard` does to disks: three real brokers, each on a small disk in memory, under a flood. Needs root.

    sudo .venv/bin/python -m bench.disk_guard --picture docs/disk-guard.png
    sudo .venv/bin/python -m bench.disk_guard --scenario "one hot partition"

The usage of each disk is read from the kernel, not from the proxy. A disk is 3/5 full when a run begins, so that a run
takes a minute. Exits with 1 if, with the guard, a disk passed HARD by 2 points or a broker stopped.
"""

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import click
import matplotlib as mpl
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

mpl.use("Agg")

from matplotlib import pyplot as plt

from bench import flooding_clients
from bench.processes import running
from bench.real_broker import printed, proxied
from deploy.local.bars import COLOURS
from deploy.local.cluster import KafkaCluster

DISK_BYTES = 500_000_000
SOFT, HARD = 85, 95
TOLERATED = HARD + 2
FIRST_FILL = 0.65
SAMPLE_SECONDS = 0.5
PRODUCERS = 3
_SETTINGS = {
    "log.segment.bytes": "8388608",
    "log.index.size.max.bytes": "65536",
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "auto.create.topics.enable": "false",
}
_TOPIC = "flood"


@dataclass
class Run:
    """Usage of each disk in percent over time in seconds; what happened when; which brokers stopped on their own."""

    name: str
    marks: str
    times: list[float] = field(default_factory=list)
    usage: dict[int, list[float]] = field(default_factory=dict)
    events: list[tuple[float, str]] = field(default_factory=list)
    stopped: set[int] = field(default_factory=set)

    @property
    def peak(self) -> float:
        return max(max(each) for each in self.usage.values())

    @property
    def held(self) -> bool:
        first = max(each[0] for each in self.usage.values())  # above HARD already, perhaps: it may hardly grow then
        return self.peak <= max(TOLERATED, first + 0.5) and not self.stopped


class Scene:
    """One run: the brokers, the proxy, the flood, and a clock."""

    def __init__(self, run: Run, cluster: KafkaCluster, admin: AdminClient) -> None:
        self.run, self.cluster, self.admin = run, cluster, admin
        self.down: set[int] = set()
        self._began = time.monotonic()

    def usage(self, node: int) -> float:
        found = os.statvfs(self.cluster.data_path(node))
        return 100 * (1 - found.f_bavail / found.f_blocks)

    def fill(self, ratio: float) -> None:
        """Fill every disk up to this part, with a file that brokers ignore."""
        for node in (1, 2, 3):
            path = self.cluster.data_path(node)
            found = os.statvfs(path)
            missing = int(found.f_blocks * ratio - (found.f_blocks - found.f_bavail)) * found.f_frsize
            with (path / "filler").open("ab") as file:
                os.posix_fallocate(file.fileno(), file.tell(), missing)

    def note(self, what: str) -> None:
        at = time.monotonic() - self._began
        self.run.events.append((at, what))
        print(f"    {at:5.1f} s  {what}", flush=True)

    def watch(self, seconds: float, until: Callable[[], bool] = lambda: False) -> bool:
        """Sample the disks for so long, or until this holds. Returns whether it does."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            self.run.times.append(time.monotonic() - self._began)
            for node in (1, 2, 3):
                self.run.usage.setdefault(node, []).append(self.usage(node))
                if not self.cluster.is_running(node) and node not in self.down | self.run.stopped:
                    self.run.stopped.add(node)
                    self.note(f"broker {node} stopped")
            if until():
                return True
            time.sleep(SAMPLE_SECONDS)
        return False

    def retain(self, size: int) -> None:
        """Keep this many bytes of each partition; -1: all."""
        entry = ConfigEntry("retention.bytes", str(size), incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ConfigResource.Type.TOPIC, _TOPIC, incremental_configs=[entry])
        for altered in self.admin.incremental_alter_configs([resource]).values():
            altered.result(20)


def even(scene: Scene) -> None:
    scene.watch(60)


def killed(scene: Scene) -> None:
    scene.watch(30, lambda: scene.usage(3) >= SOFT + 1)
    scene.fill((HARD - 2) / 100)
    scene.note("others write as well")
    scene.watch(90, lambda: scene.usage(3) >= HARD - 1)
    scene.note(f"killed at {scene.usage(3):.1f} %")
    scene.down.add(3)
    scene.cluster.stop_broker(3, graceful=False)
    scene.watch(20)
    scene.note(f"it starts, others at {scene.usage(1):.1f} %")
    scene.cluster.start_broker(3)
    scene.down.clear()
    scene.watch(30)


def retention(scene: Scene) -> None:
    scene.watch(30)
    scene.note("retention frees space")
    scene.retain(8_388_608)
    scene.watch(30, lambda: scene.usage(1) < SOFT - 6)
    scene.watch(12)
    scene.retain(-1)
    scene.note("retention keeps all again")
    scene.watch(40)


def started_full(scene: Scene) -> None:
    scene.watch(30)


SCENARIOS: dict[str, tuple[Callable[[Scene], None], float]] = {
    "even load": (even, FIRST_FILL),
    "one hot partition": (even, FIRST_FILL),
    "a broker killed and back": (killed, FIRST_FILL),
    "retention frees space": (retention, FIRST_FILL),
    "started at 97 %": (started_full, 0.97),
}


def play(name: str, *, guarded: bool) -> Run:
    marks = f"{SOFT}%..{HARD}%"
    run = Run(name, marks if guarded else "")
    print(f"{name}, {'with' if guarded else 'without'} the guard", flush=True)
    plot, fill = SCENARIOS[name]
    is_hot = name == "one hot partition"
    with ExitStack() as ending:
        cluster = ending.enter_context(KafkaCluster(3, overrides=_SETTINGS, disk_bytes=DISK_BYTES))
        admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        topic = NewTopic(_TOPIC, 1 if is_hot else 6, 1 if is_hot else 3)
        for created in admin.create_topics([topic]).values():
            created.result(30)
        scene = Scene(run, cluster, admin)
        scene.fill(fill)
        flags = ["--disk-guard", marks] if guarded else []
        proxy = ending.enter_context(proxied(cluster.bootstrap_servers, *flags))
        outputs = []
        for number in range(PRODUCERS):
            flood = flooding_clients.command("librdkafka", proxy.servers, f"flood-{number}", _TOPIC)
            outputs.append(ending.enter_context(running(flood, None))[1])
        plot(scene)
        words = [line.split()[0] for output in outputs for line in printed(output).decode().splitlines() if line]
        errors = Counter(word for word in words if word.startswith("_") or word.isupper())
        lines = [line for line in printed(proxy.log).decode().splitlines() if "disk_guard" in line]
        print("\n".join(f"    {line}" for line in lines[:20]))
        print(f"    peak {run.peak:.1f} %, producers report {dict(errors) or 'no error'}", flush=True)
    return run


def table(runs: list[Run]) -> Iterator[str]:
    yield "| scenario | guard | fullest disk, % | brokers that stopped |"
    yield "|---|---|---|---|"
    for run in runs:
        stopped = ", ".join(map(str, sorted(run.stopped))) or "none"
        yield f"| {run.name} | {run.marks or 'off'} | {run.peak:.1f} | {stopped} |"


def draw(runs: list[Run], path: Path) -> None:
    """One panel for each run, all with the same axes."""
    columns = (len(runs) + 1) // 2
    size = (1 + 3.4 * columns, 5.6)
    figure, panels = plt.subplots(2, columns, sharey=True, squeeze=False, figsize=size, layout="constrained")
    figure.suptitle("How full the disk of each broker is under a flood, in %", x=0.01, ha="left", fontweight="bold")
    for panel, run in zip(panels.flat, runs, strict=False):
        for (node, usage), colour in zip(sorted(run.usage.items()), COLOURS, strict=True):
            panel.plot(run.times, usage, color=colour, linewidth=1.6, label=f"broker {node}")
        for at, what in run.events:
            panel.axvline(at, color="grey", linewidth=0.8, linestyle=":")
            panel.text(at, 56, what, rotation=90, size=6.5, va="bottom", ha="right", color="grey")
        for mark in (SOFT, HARD) if run.marks else ():
            panel.axhline(mark, color="black", linewidth=0.9, linestyle=(0, (5, 3)))
        panel.set_title(f"{run.name}{'' if run.marks else ', without the guard'}", fontsize=10)
        panel.set_ylim(55, 101)
        panel.set_xlabel("seconds", fontsize=9)
        panel.spines[["top", "right"]].set_visible(False)
    for panel in panels.flat[len(runs) :]:
        panel.set_visible(False)
    panels[0, 0].legend(loc="lower right", frameon=False, fontsize=8)
    figure.savefig(path, dpi=90)
    plt.close(figure)


@click.command()
@click.option("--scenario", default="", metavar="TEXT", help="Only scenarios with TEXT in the name.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw all runs into this PNG.")
def main(scenario: str, picture: Path | None) -> None:
    runs = [play(name, guarded=True) for name in SCENARIOS if scenario in name]
    if scenario in "even load":
        runs.insert(0, play("even load", guarded=False))
    print("\n".join(table(runs)))
    if picture is not None:
        draw(runs, picture)
    failed = [run.name for run in runs if run.marks and not run.held]
    sys.exit(f"with the guard, a disk passed {TOLERATED} % or a broker stopped: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
