"""`python -m bench`: run the benchmarks, print their tables, keep their figures."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console

from bench import against_haproxy, connections, evenness, metadata_storm, producer_ids, quota_decision
from bench.load import LoadError
from bench.options import Options
from bench.peers import STARTERS
from bench.processes import Cores, PeerError, raise_descriptor_limit
from bench.report import Figure, machine, show, write_json

BENCHMARKS: dict[str, Callable[[Options], list[Figure]]] = {
    against_haproxy.NAME: against_haproxy.run,
    connections.NAME: connections.run,
    evenness.NAME: evenness.run,
    metadata_storm.NAME: metadata_storm.run,
    producer_ids.NAME: producer_ids.run,
    quota_decision.NAME: quota_decision.run,
}


@click.command(context_settings={"max_content_width": 120})
@click.option(
    "--only", multiple=True, type=click.Choice(list(BENCHMARKS)), help="Run this benchmark; repeatable. Default: all."
)
@click.option("--quick", is_flag=True, help="Shorter and fewer rounds: figures to steer by, not to publish.")
@click.option("--rounds", type=click.IntRange(min=0), default=0, help="Rounds of each measurement. Default: as fits.")
@click.option("--scenario", default="", metavar="TEXT", help="Only scenarios with TEXT in the name: 'fetch', '16 KiB'.")
@click.option(
    "--peers", default="proxy,haproxy,direct", show_default=True, metavar="NAMES", help="Peers of against_haproxy."
)
@click.option(
    "--pin/--no-pin", "pinned", default=True, show_default=True, help="Give the measured process its own core."
)
@click.option("--json", "json_path", type=click.Path(dir_okay=False, path_type=Path), help="Write all figures here.")
@click.option("--check", is_flag=True, help="Exit with 3 when a target is missed.")
def main(
    *,
    only: tuple[str, ...],
    quick: bool,
    rounds: int,
    scenario: str,
    peers: str,
    pinned: bool,
    json_path: Path | None,
    check: bool,
) -> None:
    """Measure the proxy: against HAProxy, per connection, by the second, and under a storm.

    Only loopback, every load bounded, every process ended at the end. Example, about a minute:

        python -m bench --only against_haproxy --quick
    """
    console = Console(width=None if sys.stdout.isatty() else 140)
    names = tuple(peers.split(","))
    if unknown := set(names) - set(STARTERS):
        raise click.BadParameter(f"{sorted(unknown)}: allowed are {', '.join(STARTERS)}", param_hint="--peers")
    available = sorted(os.sched_getaffinity(0))
    cores = Cores.choose(available if pinned else [])
    raise_descriptor_limit()
    options = Options(
        quick=quick,
        rounds=rounds,
        scenario=scenario,
        peers=names,
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
    if failed:
        sys.exit(1)
    if not figures:
        raise click.BadParameter(f"no scenario has {scenario!r} in its name", param_hint="--scenario")
    if check and any(figure.met is False for figure in figures):
        sys.exit(3)


if __name__ == "__main__":
    main()
