"""`python -m pipeline.usage`, and what spark-submit runs (`submit.py`): one subcommand for each job.

argparse, and nothing but PySpark and the standard library: it runs on clusters that have no more than that.
"""

import argparse
import ast
import sys
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from pipeline.usage import owners, price_list
from pipeline.usage.jobs import apply, broker_history, closing, demo, export, ingest, maintain, report, snapshots
from pipeline.usage.page.content import render
from pipeline.usage.session import session
from pipeline.usage.tables import Warehouse

ERRORS = (
    owners.OwnersError, price_list.PriceListError, closing.ClosingError, apply.ApplyError, demo.DemoError, OSError
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 for a wrong file or option, 1 for a job that failed; one line on stderr."""
    given = parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = given.run
    try:
        return run(given)
    except ERRORS as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (PySparkException, Py4JError) as error:
        print(f"error: {str(error).strip().splitlines()[0]}", file=sys.stderr)
        return 1


def parser() -> argparse.ArgumentParser:
    """All subcommands."""
    top = argparse.ArgumentParser(
        prog="python -m pipeline.usage",
        description="Computes usage, throttling, delays between clients, costs and quota recommendations from the "
        "proxy's usage records. Local by default; under spark-submit on any cluster.",
    )
    top.add_argument("--memory", default="1g", help="heap of a local Spark (default: %(default)s)")
    top.add_argument("--cores", type=int, default=2, help="cores of a local Spark (default: %(default)s)")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_ingest(commands)
    _add_report(commands)
    _add_page_and_export(commands)
    _add_quotas(commands)
    _add_owners(commands)
    _add_brokers(commands)
    _add_demo(commands)
    return top


def _warehouse(command: argparse.ArgumentParser) -> argparse.ArgumentParser:
    command.add_argument("--warehouse", required=True, metavar="FOLDER", help="path or URI of the Delta tables")
    return command


def _add_ingest(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    command = _warehouse(commands.add_parser("ingest", help="from the usage topic to the tables records, quarantine"))
    command.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT[,...]")
    command.add_argument("--topic", default="kafka-quota-proxy-usage")
    command.add_argument("--checkpoint", metavar="FOLDER", help="default: WAREHOUSE/_checkpoint")
    command.add_argument(
        "--every", type=float, metavar="SECONDS", help="keep running; default: take what is there, end"
    )
    command.add_argument(
        "--max-offsets", type=int, default=2_000_000, help="records of one batch (default: %(default)s)"
    )
    command.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of Spark's Kafka source")
    command.set_defaults(run=_ingest)


def _add_report(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    command = _warehouse(
        commands.add_parser("report", help="from records to all other tables: what changed since last")
    )
    command.add_argument("--owners", type=Path, metavar="FILE.toml")
    command.add_argument("--prices", type=Path, metavar="FILE.toml")
    command.add_argument(
        "--from", dest="since", type=date.fromisoformat, metavar="DAY", help="compute again from a day on"
    )
    command.set_defaults(run=_report)
    command = _warehouse(commands.add_parser("close", help="close a month: later data becomes corrections"))
    command.add_argument("period", metavar="YYYY-MM")
    command.add_argument("--owners", type=Path, required=True, metavar="FILE.toml")
    command.add_argument("--prices", type=Path, required=True, metavar="FILE.toml")
    command.set_defaults(run=_close)
    command = _warehouse(
        commands.add_parser("maintain", help="join small files, delete old ones, parse quarantined records again")
    )
    command.set_defaults(run=_maintain)


def _add_page_and_export(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    command = _warehouse(commands.add_parser("page", help="the HTML report: one file, no network"))
    command.add_argument("output", type=Path, metavar="FILE.html")
    command.set_defaults(run=_page)
    command = _warehouse(commands.add_parser("export", help="tables as CSV or Parquet, charges as FOCUS 1.2"))
    command.add_argument("folder")
    command.add_argument("--format", choices=export.FORMATS, default="csv")
    command.add_argument(
        "--focus", type=Path, metavar="PRICES.toml", help="write chargeback_daily in FOCUS 1.2 columns"
    )
    command.set_defaults(run=_export)


def _add_quotas(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    command = _warehouse(commands.add_parser("apply", help="recommendations as a quotas file: shows a diff"))
    command.add_argument("quotas", type=Path, metavar="QUOTAS.toml", help="the file in force; may be missing")
    command.add_argument("--confidence", choices=apply.CONFIDENCES, default="medium", help="at least (default: medium)")
    command.add_argument("--write", type=Path, metavar="FILE", help="write the proposal there")
    command.add_argument("--kafka-configs", metavar="HOST:PORT", help="print kafka-configs.sh commands instead")
    command.set_defaults(run=_apply)
    command = _warehouse(commands.add_parser("simulate", help="replay usage against a quotas file"))
    command.add_argument("quotas", type=Path, metavar="QUOTAS.toml")
    command.add_argument("--from", dest="since", type=date.fromisoformat, metavar="DAY")
    command.add_argument("--until", type=date.fromisoformat, metavar="DAY", help="the day after the last one")
    command.add_argument("--rows", type=int, default=20)
    command.set_defaults(run=_simulate)


def _add_owners(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    command = commands.add_parser("owners", help="owners test: which rule matches, and why")
    actions = command.add_subparsers(required=True, metavar="ACTION")
    test = actions.add_parser("test", help="which rule matches, and why")
    test.add_argument("client_id", metavar="CLIENT_ID")
    test.add_argument("--owners", type=Path, required=True, metavar="FILE.toml")
    test.add_argument("--user")
    test.add_argument("--topic")
    test.add_argument("--label", action="append", default=[], metavar="KEY=VALUE")
    test.add_argument("--day", type=date.fromisoformat, default=datetime.now(UTC).date(), help="default: today, UTC")
    test.set_defaults(run=_test_owners)


def _add_brokers(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    command = _warehouse(
        commands.add_parser("snapshot", help="note partitions, bytes on disk and end offsets of topics")
    )
    command.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT[,...]")
    command.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="of Kafka's Admin client")
    command.set_defaults(run=_snapshot)
    command = _warehouse(commands.add_parser("import", help="broker metrics of a Prometheus range query"))
    command.add_argument("file")
    command.add_argument("--direction", choices=("produce", "fetch"), default="produce")
    command.set_defaults(run=_import)


def _add_demo(commands: argparse._SubParsersAction) -> None:  # type: ignore[type-arg]
    command = commands.add_parser("demo", help="two weeks of 50 sidecars, made up; opens every table")
    command.add_argument("--output", type=Path, default=Path("build/demo-usage"))
    command.add_argument("--days", type=int, default=14)
    command.set_defaults(run=_demo)
    command = commands.add_parser("bench", help="records per second of ingest's parsing and writing, and of report")
    command.add_argument("--records", type=int, default=2_000_000)
    command.add_argument("--series", type=int, default=20_000)
    command.add_argument("--output", type=Path, default=Path("build/bench-usage"))
    command.set_defaults(run=_bench)


def _ingest(given: argparse.Namespace) -> int:
    source = ingest.Source(given.bootstrap_servers, given.topic, given.max_offsets, _pairs(given.option))
    checkpoint = given.checkpoint or f"{given.warehouse.rstrip('/')}/_checkpoint"
    with session(cores=given.cores, memory=given.memory) as spark:
        query = ingest.ingest(Warehouse(spark, given.warehouse), source, checkpoint, trigger_s=given.every)
        query.awaitTermination()
        # Not numInputRows: it counts rows that are read again, too.
        sources = [source for progress in query.recentProgress for source in progress["sources"]]
        rows = sum(_offsets(source["endOffset"]) - _offsets(source["startOffset"]) for source in sources)
    print(f"{rows:,} records of {given.topic} were read into {given.warehouse}")
    return 0


def _report(given: argparse.Namespace) -> int:
    rules = report.Rules(
        owners.load(given.owners) if given.owners else (),
        price_list.parse(given.prices.read_text(encoding="utf-8")) if given.prices else None,
    )
    with session(cores=given.cores, memory=given.memory) as spark:
        dates = report.report(Warehouse(spark, given.warehouse), rules, since=given.since)
    print(f"computed {len(dates)} dates: {dates[0]} to {dates[-1]}" if dates else "nothing new since the last report")
    return 0


def _close(given: argparse.Namespace) -> int:
    prices = price_list.parse(given.prices.read_text(encoding="utf-8"))
    with session(cores=given.cores, memory=given.memory) as spark:
        warehouse = Warehouse(spark, given.warehouse)
        closed = closing.close(warehouse, given.period, prices, given.owners.read_text(encoding="utf-8"))
    print(f"{closed.period} is closed at version {closed.usage_version} of usage_deltas")
    return 0


def _maintain(given: argparse.Namespace) -> int:
    with session(cores=given.cores, memory=given.memory) as spark:
        found = maintain.maintain(Warehouse(spark, given.warehouse), ingest.wall_clock_ms())
    print(f"{found} quarantined records are valid by now; the next report counts them")
    return 0


def _page(given: argparse.Namespace) -> int:
    with session(cores=given.cores, memory=given.memory) as spark:
        text = render(Warehouse(spark, given.warehouse))
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(text, encoding="utf-8")
    print(f"report: {given.output}")
    return 0


def _export(given: argparse.Namespace) -> int:
    with session(cores=given.cores, memory=given.memory) as spark:
        warehouse = Warehouse(spark, given.warehouse)
        written = export.export(warehouse, given.folder, given.format)
        if given.focus:
            prices = price_list.parse(given.focus.read_text(encoding="utf-8"))
            written.append(export.export_focus(warehouse, given.folder, given.format, prices))
    print("\n".join(written))
    return 0


def _apply(given: argparse.Namespace) -> int:
    with session(cores=given.cores, memory=given.memory) as spark:
        found = apply.recommended(Warehouse(spark, given.warehouse), given.confidence)
    if given.kafka_configs:
        print(apply.kafka_configs(found, given.kafka_configs), end="")
        return 0
    before = given.quotas.read_text(encoding="utf-8") if given.quotas.exists() else ""
    after = apply.quotas_toml(found, before)
    print(apply.diff(before, after, str(given.quotas)) or "no change")
    if given.write:
        given.write.write_text(after, encoding="utf-8")
        print(f"wrote {given.write}; the proxy reads it when --quotas-file names it", file=sys.stderr)
    return 0


def _simulate(given: argparse.Namespace) -> int:
    # Here, since clusters that never simulate need no `quotas`.
    from pipeline.usage.jobs.simulate import QuotasError, simulate

    text = given.quotas.read_text(encoding="utf-8")
    with session(cores=given.cores, memory=given.memory) as spark:
        usage = Warehouse(spark, given.warehouse).read("usage_deltas")
        if given.since:
            usage = usage.where(f"time >= timestamp'{given.since}'")
        if given.until:
            usage = usage.where(f"time < timestamp'{given.until}'")
        try:
            found = simulate(usage, text)
        except QuotasError as error:
            print(f"error: {given.quotas}: {error}", file=sys.stderr)
            return 2
        columns = [
            "hour",
            "sidecar",
            "user",
            "client_id",
            "direction",
            "limit",
            "entity",
            "throttled_ms",
            "delayed_bytes",
        ]
        print("Replayed by quarter hour: bursts below that are not seen.")
        found.select(columns).orderBy("throttled_ms", ascending=False).show(given.rows, truncate=False)
    return 0


def _test_owners(given: argparse.Namespace) -> int:
    values = {"client_id": given.client_id, "user": given.user, "topic": given.topic}
    match = owners.explain(owners.load(given.owners), values, _pairs(given.label), given.day)
    for line in match.passed_over:
        print(f"no   {line}")
    print(f"yes  {match.rule.place}" if match.rule else "no rule matches")
    print(f"team {match.team}")
    return 0


def _snapshot(given: argparse.Namespace) -> int:
    with session(cores=given.cores, memory=given.memory) as spark:
        found = snapshots.snapshot(Warehouse(spark, given.warehouse), given.bootstrap_servers, _pairs(given.option))
        print(f"{found.count()} topics were noted")
    return 0


def _import(given: argparse.Namespace) -> int:
    with session(cores=given.cores, memory=given.memory) as spark:
        count = broker_history.import_range(Warehouse(spark, given.warehouse), given.file, given.direction)
    print(f"{count} hours of topics were imported, with source = brokers")
    return 0


def _demo(given: argparse.Namespace) -> int:
    with session(cores=given.cores, memory=given.memory) as spark:
        demo.demo(spark, given.output.resolve(), given.days)
    return 0


def _bench(given: argparse.Namespace) -> int:
    from pipeline.usage.jobs import bench

    with session(cores=given.cores, memory=given.memory, shuffle_partitions=8) as spark:
        bench.bench(spark, given.output.resolve(), given.records, given.series)
    return 0


def _offsets(text: str | None) -> int:
    """The sum of all partitions' offsets in one source's progress, which PySpark gives as the text of a dict."""
    topics = ast.literal_eval(text or "None") or {}
    return sum(offset for partitions in topics.values() for offset in partitions.values())


def _pairs(texts: Sequence[str]) -> dict[str, str]:
    return {key: value for key, _, value in (text.partition("=") for text in texts)}
