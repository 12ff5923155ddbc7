"""`python -m bench.profile` (`make profile`): a flame graph of the proxy under one scenario of `against_haproxy`.

py-spy is fetched from PyPI when this runs. It starts the proxy as its own child, which it may trace without root rights
where Yama's ptrace_scope is 0 or 1; containers may need the capability SYS_PTRACE.
"""

import time
from pathlib import Path

import click

from bench.against_haproxy import SCENARIOS
from bench.load import LoadError, run_pipelined
from bench.null_broker import null_brokers
from bench.peers import ONE_LIMIT, all_limits, proxy
from bench.processes import PeerError, program_of_package

PY_SPY_PACKAGE = "py-spy==0.4.3"
#: Samples a second.
RATE = 400
#: From the start of the proxy to the first request.
START_SECONDS = 5


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
    output.unlink(missing_ok=True)
    try:
        py_spy = [program_of_package(PY_SPY_PACKAGE, "py-spy"), "record", *(["--native"] if native else [])]
        py_spy += ["--rate", str(RATE), "--duration", str(START_SECONDS + seconds), "--output", str(output), "--"]
        with (
            null_brokers() as [broker],
            proxy(broker, None, quotas=ONE_LIMIT if limits == "one" else all_limits(), wrapper=py_spy) as peer,
        ):
            run_pipelined(
                peer.address,
                chosen.shape.build(),
                connections=chosen.connections,
                depth=chosen.depth,
                seconds=seconds,
            )
            _wait_until_written(output)
    except (PeerError, LoadError) as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{output}: {chosen.name}, {limits} limit{'s' if limits == 'all' else ''}")


def _wait_until_written(output: Path) -> None:
    deadline = time.monotonic() + START_SECONDS + 30
    while not output.exists() or not output.read_bytes().rstrip().endswith(b"</svg>"):
        if time.monotonic() > deadline:
            raise PeerError(f"py-spy has not written {output}: it needs ptrace (in containers, --cap-add SYS_PTRACE)")
        time.sleep(0.2)


if __name__ == "__main__":
    main()
