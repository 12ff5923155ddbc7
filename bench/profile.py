"""`python -m bench.profile` (`make profile`): a flame graph of the proxy under one scenario of `against_haproxy`.

With an `--output` that does not end in .svg it writes collapsed stacks, and prints the functions that use most CPU
themselves: the tables of docs/performance.md.

py-spy is fetched from PyPI when this runs. It needs ptrace, but no root rights: the proxy allows it (PR_SET_PTRACER)
where Yama restricts it to parents. Containers may need the capability SYS_PTRACE.
"""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import click

from bench.against_haproxy import SCENARIOS, Scenario
from bench.load import LoadError, run_pipelined
from bench.null_broker import null_broker
from bench.peers import ONE_LIMIT, all_limits, proxy
from bench.processes import PeerError, program_of_package, running

PY_SPY_PACKAGE = "py-spy==0.4.3"
#: Samples a second.
RATE = 400


@click.command(context_settings={"max_content_width": 120})
@click.option("--scenario", default="produce 1 KiB, depth 50 x 4", show_default=True, help="The first with this text.")
@click.option("--limits", type=click.Choice(["one", "all"]), default="all", show_default=True)
@click.option("--seconds", type=click.IntRange(1, 60), default=5, show_default=True, help="Length of the load.")
@click.option("--native/--python", default=True, show_default=True, help="With C functions, or Python's alone.")
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), default="flame.svg", show_default=True)
def main(*, scenario: str, limits: str, seconds: int, native: bool, output: Path) -> None:
    """Write a flame graph of the proxy under one scenario: the width is time, callers are above.

    Example: python -m bench.profile --scenario "java 16 KiB" --limits all --output java.svg
    """
    chosen = next((each for each in SCENARIOS if scenario in each.name), None)
    if chosen is None:
        raise click.BadParameter(f"no scenario has {scenario!r} in its name", param_hint="--scenario")
    is_graph = output.suffix == ".svg"
    how = ["--format", "flamegraph" if is_graph else "raw", "--output", str(output), "--duration", str(seconds)]
    try:
        record(chosen, ONE_LIMIT if limits == "one" else all_limits(), [*how, *(["--native"] if native else [])])
    except (PeerError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    if not is_graph:
        click.echo(own_shares(output.read_text()))
    click.echo(f"{output}: {chosen.name}, {limits} limit{'s' if limits == 'all' else ''}")


def record(scenario: Scenario, quotas: Sequence[str], how: Sequence[str]) -> None:
    """Run py-spy with the options `how` while the load lasts. Raises PeerError, LoadError."""
    py_spy = program_of_package(PY_SPY_PACKAGE, "py-spy")
    shape = scenario.shape.build()
    with (
        null_broker() as broker,
        proxy(broker, None, quotas=quotas, is_traced=True) as peer,
        running([py_spy, "record", *how, "--rate", str(RATE), "--pid", str(peer.pid)], None) as (process, messages),
    ):
        while process.poll() is None:
            run_pipelined(peer.address, shape, connections=scenario.connections, depth=scenario.depth, seconds=1)
        if process.returncode:
            messages.seek(0)
            raise PeerError(f"py-spy failed:\n{messages.read().decode()}")


def own_shares(stacks: str, most: int = 8) -> str:
    """A Markdown table of the functions with most samples of their own, out of collapsed stacks ("a;b;c 17" a line).

    Stacks without `on_readable` are the loop and its timers: they are left out.
    """
    own: Counter[str] = Counter()
    for line in stacks.splitlines():
        stack, _, samples = line.rpartition(" ")
        if "on_readable" in stack:
            own[re.sub(r":\d+\)$", ")", stack.rpartition(";")[2])] += int(samples)
    total = own.total()
    rows = [
        f"| {function} | {samples / total:.0%} |".replace("<", r"\<") for function, samples in own.most_common(most)
    ]
    return "\n".join(["| function | share of CPU |", "|---|---|", *rows])


if __name__ == "__main__":
    main()
