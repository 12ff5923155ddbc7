"""`python -m deploy.local`: the playground from the command line."""

import signal
import sys
from types import FrameType

import click

from deploy.local.artifacts import ALL_SETS, BROKERS, ensure, pin
from deploy.local.cluster import KafkaCluster
from deploy.local.errors import PlaygroundError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """A real Kafka cluster on this machine, with nothing but Python and Java.

    \b
    Try:  python -m deploy.local start
          kafka-quota-proxy run --bootstrap-servers <the address it prints>
    """


@main.command()
@click.option("--brokers", type=click.Choice(["1", "3"]), default="1", help="How many brokers.")
@click.option("--version", type=click.Choice(list(BROKERS)), default="4.3.1", help="Which Kafka.")
@click.option(
    "--set", "overrides", metavar="KEY=VALUE", multiple=True, help="A setting for every broker's server.properties."
)
def start(brokers: str, version: str, overrides: tuple[str, ...]) -> None:
    """Start a cluster, print its bootstrap address, and run until Ctrl-C; then nothing of it is left."""
    settings = {}
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise click.BadParameter(f"{override!r} is not KEY=VALUE", param_hint="--set")
        settings[key] = value
    # SIGINT too: a shell that starts this in the background has it ignored from the start.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    with KafkaCluster(int(brokers), version, settings) as cluster:
        click.echo(f"Kafka {version} is ready. Ctrl-C stops it and removes its data.", err=True)
        for node in cluster.node_addresses:
            click.echo(f"  log of broker {node}: {cluster.log_path(node)}", err=True)
        click.echo(f"bootstrap.servers={cluster.bootstrap_servers}")
        try:
            cluster.wait()
        except KeyboardInterrupt:
            click.echo("stopped", err=True)


@main.command()
@click.argument("sets", nargs=-1, type=click.Choice(list(ALL_SETS)), metavar="[SET]...")
def fetch(sets: tuple[str, ...]) -> None:
    """Download jars into the project's cache and check them. SET: kafka-4.3.1, kafka-4.4.0, kafka-3.9.1,
    kafka-tools-4.3.1, spark-kafka-4.0.0, spark-delta-4.0.0; all of them when none is given."""
    for name in sets or ALL_SETS:
        jars = ensure(ALL_SETS[name])
        size = sum(jar.stat().st_size for jar in jars)
        click.echo(f"{name}: {len(jars)} jars, {size / 1e6:.1f} MB, as pinned, in {jars[0].parent}")


@main.command("pin")
@click.argument("name", type=click.Choice(list(ALL_SETS)), metavar="SET")
def pin_set(name: str) -> None:
    """Fetch SET as it resolves now and pin its checksums. If you change a version, read the diff."""
    click.echo(f"wrote {pin(ALL_SETS[name])}")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        main(prog_name="python -m deploy.local")
    except PlaygroundError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(1)
