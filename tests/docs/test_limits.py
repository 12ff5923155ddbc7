"""The tasks of docs/how-to.md, and the examples and tables of docs/limits.md, are true."""

import asyncio
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from proxy.admin.exposition import expose
from proxy.config.config import EnforcementOptions, ListeningOptions, QuotaOptions
from proxy.config.exemptions import exemptions_of
from proxy.config.floor import FLOORS, JAVA, LIBRDKAFKA
from proxy.config.quotas_file import read_quotas
from proxy.config.values import parse_fraction
from quotas.algorithms.algorithm import ALGORITHMS, AlgorithmSettings
from quotas.entry import QuotaEntry
from quotas.limit_kinds import LIMIT_KINDS, PRODUCER_BYTE_RATE
from quotas.parsing.batch import duplicates, threshold_errors
from quotas.parsing.limits import scope_keys
from quotas.parsing.names import ENTITY_KEYS
from quotas.parsing.options import OPTION_KEYS
from quotas.parsing.parse import parse_spec
from quotas.time_units import NS_PER_SECOND
from tests.docs.pages import LIMITS_PAGE, ROOT, TASKS_PAGE, blocks, rows
from tests.proxy.frames import batch, produce_records
from tests.proxy.streams.pair import Pair, World

pytestmark = pytest.mark.claim(
    "limits", "the ten tasks and their checks, the table of figures, the smallest useful limits"
)

PAGE = LIMITS_PAGE.read_text(encoding="utf-8")
HOW_TO = TASKS_PAGE.read_text(encoding="utf-8")
BLOCKS = blocks(PAGE)
EXAMPLES = [(flags, file) for (_, flags), (_, file) in zip(BLOCKS[::2], BLOCKS[1::2], strict=True)]
TASK_BLOCKS = blocks(HOW_TO.partition("\n## What would")[0])
#: The file of each task, and the command with its output.
TASKS = [(file, check) for (_, file), (_, check) in zip(TASK_BLOCKS[::2], TASK_BLOCKS[1::2], strict=True)]

RATE = 5_000_000
LINE_RATE = 50_000_000
FRAME = 100_000
SECONDS = 600


def of_flags(flags: str) -> tuple[list[QuotaEntry], float]:
    """The entries and the share."""
    words = shlex.split(flags)
    given = list(zip(words[::2], words[1::2], strict=True))
    assert {flag for flag, _ in given} <= {"--quota", "--quota-share"}
    shares = [parse_fraction(value) for flag, value in given if flag == "--quota-share"]
    return [parse_spec(value) for flag, value in given if flag == "--quota"], *(shares or (1.0,))


def read(file: str, path: Path) -> tuple[list[QuotaEntry], dict[str, Any]]:
    """The entries and the settings of this text, which is put into the file at `path`."""
    path.write_text(file, encoding="utf-8")
    sources, settings = read_quotas((), path, ListeningOptions(broker_ports=None))
    return list(sources[str(path)]), dict(settings)


def of_file(file: str, path: Path) -> tuple[list[QuotaEntry], float]:
    """The same as `of_flags` of this text."""
    entries, settings = read(file, path)
    return entries, settings.get("quota_share", 1.0)


# ---- the ten tasks
def test_there_are_ten_tasks_of_at_most_seven_lines_each_with_its_check() -> None:
    headings = re.findall(r"^### (\d+)\. ", HOW_TO, re.MULTILINE)
    assert headings == [str(number) for number in range(1, 11)]
    assert [language for language, _ in TASK_BLOCKS] == ["toml", "console"] * 10
    assert all(file.count("\n") <= 7 for file, _ in TASKS)


@pytest.mark.parametrize(("file", "check"), TASKS, ids=range(1, len(TASKS) + 1))
def test_the_check_of_a_task_prints_what_the_page_shows(file: str, check: str, tmp_path: Path) -> None:
    """After the clients in it have sent 10 MB each, twice."""
    entries, settings = read(file, tmp_path / "quotas.toml")
    assert not duplicates([("", entry.entity) for entry in entries])
    options = QuotaOptions(entries=tuple(entries), share=settings.get("quota_share", 1.0))
    world = World(options, enforcement=EnforcementOptions(dry_run=settings.get("dry_run", False)))
    world.metrics.enforcement_enabled = world.context.actions.enforces
    world.metrics.connections.rejected["connections"] = 3
    for client_id in re.findall(r'client-id:([\w-]+)|client_id="([\w-]+)"', check) or [("etl-1", "")]:
        pair = Pair(world)
        for number in (1, 2):
            pair.client_sends(request(number, 10_000_000, max(client_id)))
    command, *shown = check.splitlines()
    printed = [f"exempt: {line}" for line in exemptions_of(entries, options.share)]
    if "/metrics" in command:
        body = asyncio.run(expose(world.metrics))
        printed = [line for line in body.decode().splitlines() if not line.startswith("#")]
    wanted = command.partition("| grep ")[2].strip("'").removeprefix("-e ").split(" -e ")
    assert [line for line in printed if any(each in line for each in wanted)] == shown
    assert shown


def request(number: int, size: int, client_id: str) -> bytes:
    """A Produce request of this size, without its length, with one batch for the topic `flights`."""

    def with_batch_of(length: int) -> bytes:
        return produce_records(number, {"flights": [batch(1, length)]}, client_id=client_id)

    return with_batch_of(2 * size + 4 - len(with_batch_of(size)))


# ---- the reference
def test_examples_come_in_pairs() -> None:
    assert [language for language, _ in BLOCKS] == ["sh", "toml"] * len(EXAMPLES)


@pytest.mark.parametrize(("flags", "file"), EXAMPLES)
def test_an_example_is_equal_as_flag_and_in_a_file(flags: str, file: str, tmp_path: Path) -> None:
    entries, share = of_file(file, tmp_path / "quotas.toml")
    assert of_flags(flags) == (entries, share)
    assert not threshold_errors(entries)
    assert not duplicates([("", entry.entity) for entry in entries])


def test_every_limit_option_and_entity_has_an_example() -> None:
    keys = {item.partition("=")[0] for flags, _ in EXAMPLES for item in flags.replace("'", ",").split(",")}
    assert keys.issuperset([*LIMIT_KINDS, *OPTION_KEYS, *ENTITY_KEYS])


def test_the_table_of_limits_has_each_limit_and_its_scopes() -> None:
    listed = [row for row in rows(PAGE) if row[0] in LIMIT_KINDS and len(row) == 4]
    assert [row[0] for row in listed] == list(LIMIT_KINDS)
    for name, _, scopes, *_ in listed:
        assert scopes == ", ".join(scope_keys(LIMIT_KINDS[name]))


def test_the_readme_has_all_limits() -> None:
    names = {
        name.strip() for row in rows((ROOT / "README.md").read_text(encoding="utf-8")) for name in row[0].split(",")
    }
    assert names.issuperset(LIMIT_KINDS)


def greedy(algorithm: str, *, idle_before: bool) -> list[str]:
    """A row of the table of figures: what one client that always wants more gets past a limit of `RATE`."""
    bucket = AlgorithmSettings().make(PRODUCER_BYTE_RATE, RATE, algorithm, None)
    start_ns = NS_PER_SECOND
    if idle_before:
        bucket.record(1, start_ns)
        start_ns += SECONDS * NS_PER_SECOND
    seconds = [0] * SECONDS
    now_ns, last_ns, longest_ns = start_ns, start_ns, 0
    while now_ns < start_ns + SECONDS * NS_PER_SECOND:
        debt_ns = bucket.debt_ns(now_ns)
        if debt_ns:
            now_ns += debt_ns
            continue
        bucket.record(FRAME, now_ns)
        seconds[(now_ns - start_ns) // NS_PER_SECOND] += FRAME
        longest_ns, last_ns = max(longest_ns, now_ns - last_ns), now_ns
        now_ns += FRAME * NS_PER_SECOND // LINE_RATE
    return [
        f"{algorithm}, {'idle before' if idle_before else 'newcomer'}",
        f"{seconds[0] / 1e6:.1f} MB",
        f"{max(seconds[1:]) / 1e6:.1f} MB",
        f"{longest_ns / NS_PER_SECOND:.2f} s",
        f"{sum(seconds) / SECONDS / 1e6:.2f} MB/s",
    ]


def test_the_table_of_figures_is_what_the_algorithms_do() -> None:
    shown = [row for row in rows(PAGE) if row[-1].endswith("MB/s")]
    assert shown == [greedy(name, idle_before=idle) for name in ALGORITHMS for idle in (False, True)]


def test_the_smallest_shares_are_those_of_the_warnings() -> None:
    """On the page and in the README, rounded to two digits."""
    assert FLOORS in PAGE
    assert (round(JAVA, -4), round(LIBRDKAFKA, -5)) == (350_000, 3_600_000)
    for text in (PAGE, (ROOT / "README.md").read_text(encoding="utf-8")):
        assert "350 kB/s" in text
        assert "3.6 MB/s" in text
