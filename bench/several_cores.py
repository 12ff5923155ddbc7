"""Throughput of one and of two proxies with `--reuse-port`, and of HAProxy with one and with two threads.

    python -m bench.several_cores --rounds 7

Peers, load and null broker share the cores of this machine, unpinned, and the peers take turns: only the ratios of one
run say something. On two cores a second process can take no more than what one leaves idle.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from statistics import median
from typing import Final

import click

from bench.against_haproxy import KIB, MIB, Scenario, load_once
from bench.frames import Address
from bench.load import check_answers
from bench.null_broker import null_brokers
from bench.peers import Peer, haproxy, proxy
from bench.processes import free_ports
from bench.shapes import Produce

SCENARIOS: Final = (
    Scenario("produce 1 KiB, depth 2 x 200", Produce(KIB), 2, 200),
    Scenario("produce 1 KiB, depth 50 x 16", Produce(KIB), 50, 16),
    Scenario("produce 16 KiB, depth 5 x 16", Produce(16 * KIB), 5, 16),
    Scenario("produce 1 MiB, depth 5 x 16", Produce(MIB), 5, 16),
)
SECONDS: Final = 1.5


@contextmanager
def proxies(broker: Address, count: int) -> Iterator[Peer]:
    """So many processes of this tree that share their ports."""
    listen, of_broker = free_ports(2)
    shared = ["--reuse-port", "--broker-ports", f"{of_broker}-{of_broker}"]
    with ExitStack() as stack:
        # Each counts as started when it is ready: that of `proxy` waits for a port which another has already.
        peers = [stack.enter_context(proxy(broker, None, arguments=shared, listen=listen)) for _ in range(count)]
        yield replace(peers[0], name=f"{count} process{'es' * (count > 1)}")


@click.command()
@click.option("--rounds", default=7, show_default=True)
def main(rounds: int) -> None:
    """Print the median throughput of each peer, and its ratio to one process."""
    with ExitStack() as stack:
        (broker,) = stack.enter_context(null_brokers(core=None, port=0))
        starters = {
            **{f"{count} process{'es' * (count > 1)}": partial(proxies, count=count) for count in (1, 2)},
            **{f"haproxy, nbthread {count}": partial(haproxy, core=None, threads=count) for count in (1, 2)},
        }
        peers = {name: stack.enter_context(start(broker)) for name, start in starters.items()}
        for scenario in SCENARIOS:
            shape = scenario.shape.build()
            taken: dict[str, list[float]] = {name: [] for name in peers}
            for peer in peers.values():
                check_answers(peer.address, shape)
            for _ in range(rounds):
                for name, peer in peers.items():
                    taken[name].append(load_once(scenario, shape, peer, SECONDS).requests_per_second)
            for name, rates in taken.items():
                per_second = median(rates)
                ratio = median(rate / first for rate, first in zip(rates, taken["1 process"], strict=True))
                rate = f"{per_second:10,.0f} requests/s  {ratio:5.2f} of 1 process"
                print(f"{scenario.name:32} {name:20} {rate}", flush=True)


if __name__ == "__main__":
    main()
