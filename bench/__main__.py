"""`python -m bench`: run the benchmarks, print their tables, keep their figures."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from bench import (
    added_latency,
    against_haproxy,
    connections,
    evenness,
    fleet,
    fleet_policy,
    fleet_size,
    hot_path,
    quota_decision,
    tls,
)
from bench.enforcement import run as enforcement
from bench.load import LoadError
from bench.options import Options
from bench.peers import PEER_NAMES, STARTERS, PeerStarter, build, contender
from bench.processes import Cores, PeerError, raise_descriptor_limit
from bench.report import Figure, document, machine, show, write_json

BENCHMARKS: dict[str, Callable[[Options], list[Figure]]] = {
    added_latency.NAME: added_latency.run,
    against_haproxy.NAME: against_haproxy.run,
    connections.NAME: connections.run,
    enforcement.NAME: enforcement.run,
    evenness.NAME: evenness.run,
    fleet.NAME: fleet.run,
    fleet_policy.NAME: fleet_policy.run,
    fleet_size.NAME: fleet_size.run,
    hot_path.NAME: hot_path.run,
    quota_decision.NAME: quota_decision.run,
    tls.NAME: tls.run,
}


@click.command(context_settings={"max_content_width": 120})
@click.option(
    "--only", multiple=True, type=click.Choice(list(BENCHMARKS)), help="Run this benchmark; repeatable. Default: all."
)
@click.option("--quick", is_flag=True, help="Shorter and fewer rounds: figures to steer by, not to publish.")
@click.option("--rounds", type=click.IntRange(min=0), default=0, help="Rounds of each measurement. Default: as fits.")
@click.option("--scenario", default="", metavar="TEXT", help="Only scenarios with TEXT in the name: 'fetch', '16 KiB'.")
@click.option(
    "--peers",
    default="one,all,haproxy",
    show_default=True,
    metavar="NAMES",
    help=f"Peers of against_haproxy and connections, of: {', '.join(PEER_NAMES)}. Envoy is fetched from PyPI;"
    " bare is a forwarder in Python that parses nothing.",
)
@click.option(
    "--build",
    "builds",
    multiple=True,
    metavar="NAME=PROGRAM",
    help="Another kafka-quota-proxy, with one limit and with all limits; repeatable.",
)
@click.option(
    "--contender",
    "contenders",
    multiple=True,
    metavar="NAME=HOST:PORT,PID",
    help="Any process that runs in front of 127.0.0.1 and --broker-port; repeatable.",
)
@click.option("--broker-port", type=click.IntRange(0, 65535), default=0, help="Port of the null broker. Default: free.")
@click.option(
    "--pin/--no-pin", "pinned", default=True, show_default=True, help="Give the measured process its own core."
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
@click.option(
    "--document",
    "documents",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Put the table between the marks of this Markdown file; repeatable.",
)
@click.option(
    "--picture",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Draw the bytes in each second of the enforcement benchmark here, as a PNG.",
)
@click.option("--check", is_flag=True, help="Exit with 3 when a target is missed.")
def main(
    *,
    only: tuple[str, ...],
    quick: bool,
    rounds: int,
    scenario: str,
    peers: str,
    builds: tuple[str, ...],
    contenders: tuple[str, ...],
    broker_port: int,
    pinned: bool,
    json_path: Path | None,
    documents: tuple[Path, ...],
    picture: Path | None,
    check: bool,
) -> None:
    """Measure the proxy: against HAProxy, per connection, by the second, and under a storm.

    Only loopback, every load bounded, every process ended at the end. Example, about a minute:

        python -m bench --only against_haproxy --quick
    """
    starters = _starters(peers.split(","), builds, contenders, broker_port)
    console = Console(width=None if sys.stdout.isatty() else 180)
    available = sorted(os.sched_getaffinity(0))
    cores = Cores.choose(available if pinned else [])
    raise_descriptor_limit()
    options = Options(
        quick=quick,
        rounds=rounds,
        scenario=scenario,
        peers=starters,
        broker_port=broker_port,
        picture=picture,
        cores=cores,
        progress=lambda text: console.print(f"[dim]… {text}[/]", highlight=False),
    )
    facts = machine()
    console.print(f"{facts['cpu']}, {facts['cores']} cores, Linux {facts['kernel']}, Python {facts['python']}; {cores}")
    figures: list[Figure] = []
    failed = False
    for name in only or BENCHMARKS:
        try:
            found = BENCHMARKS[name](options)
        except (PeerError, LoadError) as error:
            console.print(f"[red]{name} failed:[/] ", end="")
            console.print(str(error), markup=False, highlight=False)
            failed = True
            continue
        finally:
            os.sched_setaffinity(0, available)
        if found:
            show(console, name, found)
        figures += found
    if json_path is not None:
        write_json(json_path, figures)
    for path in documents:
        command = re.sub(r" --json \S+", "", shlex.join(sys.argv[1:]))
        document(path, figures, f"python -m bench {command}")
    if failed:
        sys.exit(1)
    if not figures:
        raise click.BadParameter(f"no scenario has {scenario!r} in its name", param_hint="--scenario")
    if check and any(figure.met is False for figure in figures):
        sys.exit(3)


def _starters(
    names: list[str], builds: tuple[str, ...], contenders: tuple[str, ...], broker_port: int
) -> dict[str, PeerStarter]:
    """What starts each peer, by its name in the table."""
    if unknown := set(names) - set(PEER_NAMES):
        raise click.BadParameter(f"{sorted(unknown)}: allowed are {', '.join(PEER_NAMES)}", param_hint="--peers")
    starters = {PEER_NAMES[name]: STARTERS[PEER_NAMES[name]] for name in names}
    for each in builds:
        name, _, program = each.partition("=")
        if shutil.which(program) is None:
            raise click.BadParameter(f"{each!r}: NAME=PROGRAM, and PROGRAM must exist", param_hint="--build")
        starters |= build(name, [program])
    for each in contenders:
        match = re.fullmatch(r"([^=]+)=([^,]+):(\d+),(\d+)", each)
        if match is None or not broker_port:
            raise click.BadParameter(f"{each!r}: NAME=HOST:PORT,PID, with --broker-port", param_hint="--contender")
        starters[match[1]] = contender(match[1], (match[2], int(match[3])), int(match[4]))
    return starters


if __name__ == "__main__":
    main()
