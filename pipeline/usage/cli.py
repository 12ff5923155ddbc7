"""Computes usage, throttling, delays between clients, costs and quota recommendations from the proxy's usage records.
Local by default; under spark-submit on any cluster.

examples, from the usage topic to a report in HTML:
  python -m pipeline.usage ingest --warehouse /data/usage --bootstrap-servers broker:9092
  python -m pipeline.usage report --warehouse /data/usage
  python -m pipeline.usage page   --warehouse /data/usage usage.html

options of a command: python -m pipeline.usage ingest --help; --memory and --cores stand before the command
docs: docs/pipeline/README.md; for a cluster, with spark-submit: docs/pipeline/README.md#run-it
"""

# One subcommand for each job, for `python -m pipeline.usage` and spark-submit (`submit.py`). argparse, and nothing but
# PySpark and the standard library: it runs on clusters that have no more than that.

import argparse
import ast
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from math import inf
from pathlib import Path
from typing import Any, TypeAlias

from pipeline.brokers import client_settings, require_topic
from pipeline.failures import InputError, exit_code
from pipeline.options import count, heap, key_value, positive
from pipeline.usage import owners, price_list, quotas_in_force
from pipeline.usage.jobs import apply, closing, export, ingest, maintain, report, runs, snapshots
from pipeline.usage.page.content import render
from pipeline.usage.session import FEW_ROWS, session
from pipeline.usage.strict_toml import text_of
from pipeline.usage.tables import Warehouse

_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
FEW_BYTES = 10_000_000
"""About 300,000 records: for fewer, to compile queries costs more than it saves (`session.FEW_ROWS`)."""
SHORT_BYTES = 100_000_000
"""About 3 million records: for fewer the JVM's second compiler costs more than it saves."""
INCOMPLETE = 3
"""Exit code of a report that was made, from records of which some are missing."""
OVER_BUDGET = 4
"""Exit code of a complete report with a team whose run rate is above its budget."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit code: 2 for a wrong file or option, 1 for a failed job; INCOMPLETE, OVER_BUDGET."""
    given = parser().parse_args(arguments)
    return exit_code(lambda: given.run(given), "stopped; run the same command again, which repeats the unfinished step")


def parser() -> argparse.ArgumentParser:
    """All subcommands. The help is the text of this module."""
    description, _, examples = (__doc__ or "").partition("\n\n")
    top = argparse.ArgumentParser(
        prog="python -m pipeline.usage",
        description=description,
        epilog=examples,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--memory", type=heap, default="1g", help="heap of a local Spark (default: %(default)s)")
    top.add_argument("--cores", type=count, default=2, help="number of cores for a local Spark (default: %(default)s)")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    _add_ingest(commands)
    _add_report(commands)
    _add_page_and_export(commands)
    _add_quotas(commands)
    _add_owners(commands)
    _add_brokers(commands)
    return top


def _command(
    commands: _Commands, run: Callable[[argparse.Namespace], int], text: str, example: str
) -> argparse.ArgumentParser:
    """A subcommand over a warehouse, with the name of `run`; `text` explains it in both helps, `example` follows the
    warehouse.
    """
    name = run.__name__.removeprefix("_")
    added = commands.add_parser(
        name,
        help=text,
        description=f"{text[0].upper()}{text[1:]}.",
        epilog=f"example:\n  python -m pipeline.usage {name} --warehouse /data/usage {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    added.add_argument("--warehouse", required=True, metavar="FOLDER", help="path or URI of the Delta tables")
    added.set_defaults(run=run)
    return added


def _period(command: argparse.ArgumentParser) -> None:
    command.add_argument("--from", dest="since", type=_day, metavar="DAY", help="the first day (default: all)")
    command.add_argument("--until", type=_day, metavar="DAY", help="the first day that is not included (default: all)")


def _add_ingest(commands: _Commands) -> None:
    command = _command(
        commands,
        _ingest,
        "read the usage topic into the tables records and quarantine",
        "--bootstrap-servers broker:9092 \\\n"
        "      --option kafka.security.protocol=SASL_PLAINTEXT --option kafka.sasl.mechanism=PLAIN ...",
    )
    command.add_argument("--bootstrap-servers", required=True, metavar="HOST:PORT[,...]", help="of the usage topic")
    command.add_argument("--topic", default="kafka-quota-proxy-usage", help="the usage topic (default: %(default)s)")
    checkpoint = "which offsets are done (default: WAREHOUSE/_checkpoint)"
    command.add_argument("--checkpoint", metavar="FOLDER", help=checkpoint)
    every = "keep running, a batch every SECONDS (default: read to the end of the topic, then exit)"
    command.add_argument("--every", type=positive, metavar="SECONDS", help=every)
    most = "the most records in a batch, which bounds memory (default: %(default)s)"
    command.add_argument("--max-offsets", type=count, default=2_000_000, metavar="N", help=most)
    option = "of Spark's Kafka source, repeatable; Kafka's own settings begin with kafka."
    command.add_argument("--option", action="append", default=[], type=key_value, metavar="KEY=VALUE", help=option)


def _add_report(commands: _Commands) -> None:
    command = _command(
        commands, _report, "update all other tables with the records since the last report", "--prices prices.toml"
    )
    command.add_argument("--owners", type=Path, metavar="FILE.toml", help="which team a client belongs to")
    command.add_argument("--prices", type=Path, metavar="FILE.toml", help="prices or invoices; without it no charges")
    command.add_argument("--quotas", type=Path, metavar="FILE.toml", help="the quotas in force: who shares which limit")
    since = "compute every date from this one on again, 2026-01-31 (default: dates with new records)"
    command.add_argument("--from", dest="since", type=_day, metavar="DAY", help=since)
    command = _command(
        commands, _close, "close a month: later records become corrections", "2026-01 --owners o.toml --prices p.toml"
    )
    command.add_argument("period", metavar="YYYY-MM", help="the month to close")
    command.add_argument("--owners", type=Path, required=True, metavar="FILE.toml", help="kept with the month")
    command.add_argument("--prices", type=Path, required=True, metavar="FILE.toml", help="kept with the month")
    _command(commands, _maintain, "join small files, delete old ones, parse quarantined records again", "")


def _add_page_and_export(commands: _Commands) -> None:
    command = _command(commands, _page, "write the HTML report: one file that needs no network", "usage.html")
    command.add_argument("output", type=Path, metavar="FILE.html", help="the file to write")
    _period(command)
    text = "write the tables as CSV or Parquet, and charges as FOCUS 1.2"
    command = _command(commands, _export, text, "/data/export --focus prices.toml")
    command.add_argument("folder", metavar="FOLDER", help="gets a folder for each table")
    command.add_argument("--format", choices=export.FORMATS, default="csv", help="(default: %(default)s)")
    text = "write chargeback_daily in FOCUS 1.2 columns"
    command.add_argument("--focus", type=Path, metavar="PRICES.toml", help=text)


def _add_quotas(commands: _Commands) -> None:
    text = "show the recommended quotas as entries of a quotas file"
    command = _command(commands, _apply, text, "--write proposed.toml")
    command.add_argument("--confidence", choices=apply.CONFIDENCES, default="medium", help="at least (default: medium)")
    command.add_argument("--cluster", metavar="NAME", help="of clients with this label (default: the only one)")
    command.add_argument("--write", type=Path, metavar="FILE", help="write the entries there")
    text = "replay recorded usage against a quotas file: who would have been throttled"
    command = _command(commands, _simulate, text, "proposed.toml")
    command.add_argument("quotas", type=Path, metavar="QUOTAS.toml", help="as for the proxy's --quotas-file")
    _period(command)
    command.add_argument("--rows", type=count, default=20, metavar="N", help="shown (default: %(default)s)")


def _add_owners(commands: _Commands) -> None:
    text = "owners test: which owner rule matches a client id, and why"
    command = commands.add_parser("owners", help=text, description=text)
    actions = command.add_subparsers(required=True, metavar="ACTION")
    test = actions.add_parser("test", help="which rule matches, and why")
    test.add_argument("client_id", metavar="CLIENT_ID", help="as in the usage records")
    test.add_argument("--owners", type=Path, required=True, metavar="FILE.toml", help="the rules")
    test.add_argument("--user", help="Kafka principal")
    test.add_argument("--topic", help="topic of the usage")
    text = "label of the sidecar, repeatable"
    test.add_argument("--label", action="append", default=[], type=key_value, metavar="KEY=VALUE", help=text)
    test.add_argument("--day", type=_day, default=datetime.now(UTC).date(), help="default: today, UTC")
    test.set_defaults(run=_test_owners)


def _add_brokers(commands: _Commands) -> None:
    text = "store partitions, bytes on disk and end offsets of all topics"
    command = _command(commands, _snapshot, text, "--log-dirs sizes.txt --offsets ends.txt")
    for option, tool in (("--log-dirs", "kafka-log-dirs.sh --describe"), ("--offsets", "kafka-get-offsets.sh")):
        command.add_argument(option, type=Path, required=True, metavar="FILE", help=f"output of {tool}")
    command.add_argument("--cluster", default="", metavar="NAME", help="label `cluster` of its proxies (default: none)")


def _ingest(given: argparse.Namespace) -> int:
    source = ingest.Source(given.bootstrap_servers, given.topic, given.max_offsets, dict(given.option))
    checkpoint = given.checkpoint or f"{given.warehouse.rstrip('/')}/_checkpoint"
    with _warehouse(given) as warehouse:
        require_topic(warehouse.spark, source.bootstrap_servers, source.topic, client_settings(source.options))
        query = ingest.ingest(warehouse, source, checkpoint, trigger_s=given.every)
        query.awaitTermination()
        # Not numInputRows: it counts rows that are read again, too.
        sources = [source for progress in query.recentProgress for source in progress["sources"]]
        rows = sum(_offsets(source["endOffset"]) - _offsets(source["startOffset"]) for source in sources)
    print(f"{rows:,} records of {given.topic} were read into {given.warehouse}")
    return 0


def _report(given: argparse.Namespace) -> int:
    rules = report.Rules(
        owners.load(given.owners) if given.owners else (),
        price_list.load(given.prices) if given.prices else None,
        quotas=text_of(given.quotas) if given.quotas else "",
    )
    if rules.quotas:
        quotas_in_force.load(rules.quotas)  # errors before anything is written
    new = _new_bytes(given.warehouse)
    settings = FEW_ROWS if new < FEW_BYTES else None
    tables = ("records", "storage_snapshots")
    with _warehouse(given, "ingest", *tables, settings=settings, short=new < SHORT_BYTES) as warehouse:
        dates = report.report(warehouse, rules, since=given.since)
        old = runs.outdated(warehouse, rules.fingerprint)
        missing = report.warnings(warehouse, dates) if dates else []
        over = report.over_budget(warehouse, dates)
    print(f"computed {len(dates)} dates: {dates[0]} to {dates[-1]}" if dates else "nothing new since the last report")
    if old is not None:
        print(f"the owners, prices or quotas changed: dates from {old} on have the old ones; report --from {old}")
    for line in (*missing, *over):
        print(f"warning: {line}", file=sys.stderr)
    return INCOMPLETE if missing else OVER_BUDGET if over else 0


def _close(given: argparse.Namespace) -> int:
    prices = price_list.load(given.prices)
    with _warehouse(given, "report", "usage_deltas") as warehouse:
        closed = closing.close(warehouse, given.period, prices, text_of(given.owners))
    print(f"{closed.period} is closed")
    return 0


def _maintain(given: argparse.Namespace) -> int:
    with _warehouse(given) as warehouse:
        found = maintain.maintain(warehouse, ingest.wall_clock_ms())
    print(f"{found} quarantined records are valid by now; the next report counts them")
    return 0


def _page(given: argparse.Namespace) -> int:
    with _warehouse(given, "report", "usage_hourly") as warehouse:
        text = render(warehouse, given.since, given.until)
    given.output.parent.mkdir(parents=True, exist_ok=True)
    given.output.write_text(text, encoding="utf-8")
    print(f"report: {given.output}")
    return 0


def _export(given: argparse.Namespace) -> int:
    with _warehouse(given, "report", "usage_hourly") as warehouse:
        written = export.export(warehouse, given.folder, given.format)
        if given.focus:
            prices = price_list.load(given.focus)
            written.append(export.export_focus(warehouse, given.folder, given.format, prices))
    print("\n".join(written))
    return 0


def _apply(given: argparse.Namespace) -> int:
    with _warehouse(given, "report", "quota_recommendations") as warehouse:
        found = apply.recommended(warehouse, given.confidence, given.cluster)
    text = apply.quotas_toml(found)
    print(text or f"no recommendation has confidence {given.confidence} or higher", end="" if text else "\n")
    if given.write:
        given.write.write_text(text, encoding="utf-8")
        print(f"wrote {given.write}; the proxy reads it when --quotas-file names it", file=sys.stderr)
    return 0


def _simulate(given: argparse.Namespace) -> int:
    # Here, since clusters that never simulate need no `quotas`.
    from pipeline.usage.jobs.simulate import not_replayed, simulate

    text = text_of(given.quotas)
    with _warehouse(given, "ingest", "records") as warehouse:
        chosen = " and ".join(
            f"date {operator} date'{day}'" for operator, day in ((">=", given.since), ("<", given.until)) if day
        )
        records = warehouse.read("records").where(chosen or "true")
        found = simulate(records, text)
        print("Replayed record by record: bursts between two records of a sidecar are not seen.")
        for each in not_replayed(records, text):
            print(f"not replayed: {each}")
        found.orderBy("throttled_ms", ascending=False).show(given.rows, truncate=False)
    return 0


def _test_owners(given: argparse.Namespace) -> int:
    values = {"client_id": given.client_id, "user": given.user, "topic": given.topic}
    match = owners.explain(owners.load(given.owners), values, dict(given.label), given.day)
    for line in match.passed_over:
        print(f"no   {line}")
    print(f"yes  {match.rule.place}" if match.rule else "no rule matches")
    print(f"team {match.team}")
    return 0


def _snapshot(given: argparse.Namespace) -> int:
    sizes, offsets = (path.read_text(encoding="utf-8") for path in (given.log_dirs, given.offsets))
    with _warehouse(given) as warehouse:
        found = snapshots.snapshot(warehouse, sizes, offsets, given.cluster)
        print(f"{found.count()} topics were noted")
    return 0


@contextmanager
def _warehouse(given: argparse.Namespace, command: str = "", *tables: str, **options: Any) -> Iterator[Warehouse]:
    """The warehouse, in a session. options: of `session`.

    Raises InputError if it has none of these tables, which `command` writes.
    """
    with session(cores=given.cores, memory=given.memory, **options) as spark:
        warehouse = Warehouse(spark, given.warehouse)
        if tables and not any(warehouse.exists(name) for name in tables):
            raise InputError(f"no table {' or '.join(tables)} in {warehouse.root}: run `{command}` first")
        yield warehouse


def _new_bytes(root: str) -> float:
    """How large the files of the dates with new records are; infinite where that is not a local folder."""
    done = max((each.stat().st_mtime for each in Path(root, "report_runs", "_delta_log").glob("*.json")), default=0.0)
    files = [*Path(root, "records").rglob("*.parquet")]
    dates = {each.parents[1] for each in files if each.stat().st_mtime > done}
    return sum(each.stat().st_size for each in files if each.parents[1] in dates) if files else inf


def _offsets(text: str | None) -> int:
    """The sum of all partitions' offsets in one source's progress, which PySpark gives as the text of a dict."""
    topics = ast.literal_eval(text or "None") or {}
    return sum(offset for partitions in topics.values() for offset in partitions.values())


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a day such as 2026-01-31") from error
