"""`make demo-fleet`: eight sidecars before one broker share a limit of 8 MB/s, and the same with an eighth each.

Each sidecar has a client whose demand changes between a third of the limit and hardly anything. What cannot be
sent at once is not sent later, so the picture shows who was served, not who catches up.
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import matplotlib as mpl

mpl.use("Agg")

from confluent_kafka.admin import AdminClient, NewTopic
from matplotlib import pyplot as plt
from matplotlib.axes import Axes
from rich.console import Console
from rich.table import Table

from demo.moving_client import MovingClient, now_ns
from demo.proxy_process import ProxyFailedError, ProxyProcess
from deploy.local.artifacts import PROJECT
from deploy.local.cluster import KafkaCluster
from deploy.local.errors import PlaygroundError
from deploy.local.granted import grants_in, most_granted

MEMBERS: Final = 8
LIMIT: Final = 8_000_000
QUOTA: Final = f"client-id=etl,producer_byte_rate={LIMIT},burst_seconds=0.1"
TOPIC: Final = "orders"
BUSY, IDLE = LIMIT / 3, LIMIT / 100
PERIOD_SECONDS, BUSY_SECONDS = 40.0, 16.0
BUSY_FROM: Final = (0, 2, 11, 13, 19, 26, 29, 33)
UNDER_WAY: Final = 1_000_000
"""Bytes that a client has not seen acknowledged when it stops to send."""
JOIN_SECONDS: Final = 60.0
DEBUG: Final = ("--log-format", "json", "--log-level", "debug")
"""So that each change of what a member may use is in the log."""
COLOURS: Final = ("#0072B2", "#56B4E9", "#009E73", "#8BD4B8", "#E69F00", "#F5CE7A", "#CC79A7", "#E6BCD3")


def demand(member: int, seconds: float) -> float:
    """Bytes per second that the client of this member wants: its busy times overlap with those of others."""
    return BUSY if (seconds - BUSY_FROM[member]) % PERIOD_SECONDS < BUSY_SECONDS else IDLE


def bins_of(client: MovingClient, began_ns: int, seconds: int) -> list[int]:
    """Bytes that were acknowledged in each second."""
    bins = [0] * seconds
    for at_ns, size in client.acks:
        second = (at_ns - began_ns) // 1_000_000_000
        if 0 <= second < seconds:
            bins[second] += size
    return bins


class Run:
    """Bytes by member and second. `granted`: the most that all members might use at one moment; None: not logged."""

    def __init__(self, title: str, bins: list[list[int]], granted: float | None = None) -> None:
        self.title = title
        self.granted = granted
        self.bins = bins

    @property
    def sums(self) -> list[int]:
        return [sum(second) for second in zip(*self.bins, strict=True)]

    def most(self, seconds: int) -> float:
        """The highest rate over this many seconds, without the first and the last one."""
        sums = self.sums[1:-1]
        return max(sum(sums[first : first + seconds]) / seconds for first in range(len(sums) - seconds + 1))

    def served(self) -> float:
        """The fraction of the demand, up to the limit, that was served."""
        return sum(self.sums) / sum(min(LIMIT, wanted) for wanted in wanted_of(len(self.sums)))


def wanted_of(seconds: int) -> list[float]:
    """By all members, in the middle of each second."""
    return [sum(demand(member, second + 0.5) for member in range(MEMBERS)) for second in range(seconds)]


def run(title: str, flags: Sequence[str], cluster: KafkaCluster, seconds: int, log: Path) -> Run:
    """Eight proxies with these flags, and their clients."""
    is_fleet = "--fleet" in flags
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(
                ProxyProcess(cluster.bootstrap_servers, "--quota", QUOTA, *flags, advertised_host="127.0.0.1", log=log)
            )
            for _ in range(MEMBERS)
        ]
        deadline = time.monotonic() + JOIN_SECONDS
        while is_fleet and not all(json.loads(proxy.get("/fleet"))["joined"] for proxy in proxies):
            if time.monotonic() > deadline:
                raise ProxyFailedError(f"not all proxies have joined within {JOIN_SECONDS:g} s: {log}")
            time.sleep(0.5)
        clients = [
            MovingClient(f"127.0.0.1:{proxy.ports[0]}", TOPIC, partial(demand, member), under_way=UNDER_WAY)
            for member, proxy in enumerate(proxies)
        ]
        began_ns = now_ns()
        for client in clients:
            client.start(began_ns, seconds)
        for client in clients:
            client.join()
    most, _ = most_granted(grants_in(log.read_text(errors="replace").splitlines()).values())
    return Run(title, [bins_of(client, began_ns, seconds) for client in clients], most if is_fleet else None)


def draw(runs: Sequence[Run], path: Path) -> None:
    """Each member's bytes, stacked, under the line of the limit."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure, panels = plt.subplots(1, len(runs), sharey=True, figsize=(10, 3.6), layout="constrained")
    for panel, each in zip(panels, runs, strict=True):
        _panel(panel, each)
    panels[0].set_ylabel("MB in each second")
    panels[0].legend(loc="lower left", fontsize=8, framealpha=0.9)
    figure.savefig(path, dpi=110)
    plt.close(figure)


def _panel(panel: Axes, each: Run) -> None:
    seconds = [second + 0.5 for second in range(len(each.sums))]
    stacked = [[size / 1e6 for size in member] for member in each.bins]
    panel.stackplot(seconds, stacked, colors=COLOURS, linewidth=0)
    panel.axhline(LIMIT / 1e6, color="black", linewidth=1.5, label="limit")
    wanted = [size / 1e6 for size in wanted_of(len(each.sums))]
    panel.step(seconds, wanted, where="mid", color="black", linewidth=0.8, linestyle=":", label="wanted")
    panel.set_title(f"{each.title}: {each.served():.0%} of what was wanted", loc="left", fontsize=10)
    panel.set_xlabel("second")
    panel.set_xlim(0, len(each.sums))
    panel.set_ylim(0, 1.5 * LIMIT / 1e6)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m demo.sharing", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="seconds of each run (default: 60)")
    parser.add_argument("--output", type=Path, default=PROJECT / "build/demo-fleet", help="folder of picture and logs")
    options = parser.parse_args()
    console = Console()
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "proxies.log").unlink(missing_ok=True)
    plans = (
        ("--fleet", ("--fleet", "demo", "--fleet-max-members", str(MEMBERS), *DEBUG)),
        ("--quota-share 0.125", ("--quota-share", "0.125")),
    )
    try:
        with KafkaCluster(1) as cluster:
            admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
            admin.create_topics([NewTopic(TOPIC, 4)])[TOPIC].result(30)
            runs = []
            for title, flags in plans:
                console.print(f"{MEMBERS} sidecars, {title}: {options.seconds} s", highlight=False)
                runs.append(run(title, flags, cluster, options.seconds, options.output / "proxies.log"))
    except (PlaygroundError, ProxyFailedError) as error:
        console.print(f"error: {error}", style="red", highlight=False)
        return 1
    columns = ("most in a second", "most in ten", "most that all might use")
    table = Table("run", "MB passed", "of what was wanted, up to the limit", *columns)
    for each in runs:
        most = [f"{each.most(seconds) / 1e6:.2f} MB/s" for seconds in (1, 10)]
        most.append("" if each.granted is None else f"{each.granted / 1e6:.3f} MB/s")
        table.add_row(each.title, f"{sum(each.sums) / 1e6:.0f}", f"{each.served():.0%}", *most)
    console.print(table)
    picture = options.output / "fleet.png"
    draw(runs, picture)
    console.print(f"picture: {picture}", highlight=False)
    return 0 if runs[0].most(10) <= 1.01 * LIMIT and (runs[0].granted or 0.0) <= LIMIT else 1


if __name__ == "__main__":
    sys.exit(main())
