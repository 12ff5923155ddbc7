"""What docs/troubleshoot.md and the README show is what the commands print; what they name exists.

`EXAMPLES` has what a proxy had counted in the last minute when a command of the page was given.
"""

import ast
import json
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from click.testing import CliRunner

from proxy.admin.explain import HEADLINES, WORDS, explain, name_of
from proxy.admin.pages import INDEX
from proxy.admin.tables import with_verdicts
from proxy.admin.verdict import Known
from proxy.command import commands, page_commands
from proxy.observability.client_times import STATES
from tests.docs.pages import PAGES, ROOT, blocks, rows
from tests.proxy.admin.rows import client

pytestmark = pytest.mark.claim(
    "limits",
    "transcripts, log lines and names in troubleshooting; what explain concludes; whether it is "
    "the proxy, the worst cause first",
)

Row = dict[str, Any]
PAGE: Final = (ROOT / "docs/troubleshoot.md").read_text(encoding="utf-8")
README: Final = (ROOT / "README.md").read_text(encoding="utf-8")
CONSOLES: Final = [text for page in (PAGE, README) for language, text in blocks(page) if language == "console"]
LOG_LINES: Final = [
    " ".join(line.split())
    for language, text in blocks(PAGE)
    if language == "text"
    for line in re.split(r"\n(?! )", text.strip())
]
_COMMAND: Final = re.compile(r"`kafka-quota-proxy ([a-z][a-z-]*)")
_EVENT: Final = re.compile(r"^(?:INFO|WARN) (\w+)((?: .*)?)$")
_FIELD: Final = re.compile(r'(\w+)=(?:"([^"]*)"|\S+)')


class Minute(NamedTuple):
    """The rows of /clients, /limits and /brokers, and the entries that nobody has matched."""

    clients: list[Row]
    limits: list[Row]
    brokers: list[Row]
    unmatched: tuple[str, ...] = ()


def consumer(client_id: str, states: dict[str, float], size: int, rate: float, **changes: Any) -> Row:
    fetched = {"produce_bytes_per_second": 0, "fetch_bytes_per_second": round(size * rate), "produces_per_second": 0}
    return client(client_id, states, size, rate, **fetched, **changes)


def limit(client_id: str, value: float, rate: float, *clients: str, name: str = "producer_byte_rate") -> Row:
    return {
        "limit": name,
        "entity": f"client-id:{client_id}",
        "limit_value": value,
        "entry": f"client-id={client_id}",
        "source": "quotas.toml:4",
        "rate_10s": rate,
        "rate_60s": rate,
        "used_ratio_10s": rate / value,
        "used_ratio_60s": rate / value,
        "waiting_ratio": 0.97 if rate > 0.9 * value else 0.0,
        "queued_connections": 2 if rate > 0.9 * value else 0,
        "clients": [{"client_id": each, "user": "ANONYMOUS"} for each in clients],
        "client_count": len(clients),
    }


def times(mean: float, p50: float, p99: float) -> Row:
    return {"count": 60, "mean_seconds": mean, "p50_seconds": p50, "p99_seconds": p99}


def broker(number: int, produce: Row, **changes: Any) -> Row:
    others = {"count": 0, "mean_seconds": None, "p50_seconds": None, "p99_seconds": None}
    found = {"address": f"broker-{number}:9092", "connections": 2, "in_flight": 1, "oldest_request_seconds": 0.0}
    return {**found, "failing": None, "produce": produce, "others": others, **changes}


QUICK: Final = times(0.004, 0.0036, 0.011)
BROKER: Final = broker(1, QUICK)
SLOW: Final = broker(2, times(0.404, 0.4, 0.48))
FROZEN: Final = broker(3, QUICK, oldest_request_seconds=14.0, failing="silent")
ETL: Final = client(
    "etl",
    {"limit": 0.96, "broker": 0.03, "client": 0.01},
    999_932,
    2.0,
    connections=2,
    waits=[{"limit": "producer_byte_rate", "entity": "client-id:etl", "seconds": 115.4, "lasting_seconds": 240}],
    limits=[["producer_byte_rate", "client-id:etl"]],
)
JOB: Final = client("job", {"broker": 0.98, "client": 0.02}, 98_304, 2.4, brokers=["broker-1:9092", "broker-2:9092"])
SMALL: Final = client(
    "small", {"broker": 0.62, "client": 0.38}, 210, 380.0, limits=[["producer_byte_rate", "client-id:small"]]
)
GROUP: Final = {
    "group": "enrich",
    "rebalances_60s": 28,
    "joined_60s": {"enrich from 10.0.0.9": 14},
    "rejoined_60s": {"enrich from 10.0.0.8": 28},
}
LIMITS: Final = [limit("etl", 2e6, 1.996e6, "etl"), limit("small", 5e7, 79_800, "small")]
EXAMPLES: Final = {
    "explain etl": Minute([ETL], LIMITS, [BROKER]),
    "explain small": Minute([SMALL], LIMITS, [BROKER]),
    "explain job": Minute([JOB], [], [BROKER, SLOW]),
    "explain flights": Minute(
        [client("flights", {"broker": 1.0}, 98_304, 0.2, brokers=["broker-3:9092"])], [], [FROZEN]
    ),
    "explain producer-1": Minute(
        [client("producer-1", {"client": 0.55, "broker": 0.45}, 524_288, 40.0)],
        [],
        [BROKER],
        ("client-id:flights-etl",),
    ),
    "explain reports": Minute(
        [consumer("reports", {"slow_reader": 0.71, "data": 0.21, "client": 0.08}, 1_048_576, 3.1)], [], [BROKER]
    ),
    "explain enrich": Minute(
        [consumer("enrich", {"client": 0.52, "data": 0.41, "broker": 0.07}, 20_480, 1.2, groups=[GROUP])], [], [BROKER]
    ),
    "explain archive": Minute(
        [consumer("archive", {"client": 0.86, "broker": 0.09, "data": 0.05}, 1_048_576, 0.8, lag_records=1_204_331)],
        [],
        [BROKER],
    ),
    "explain billing": Minute(
        [
            client("billing", {"broker_quota": 0.88, "broker": 0.1, "client": 0.02}, 262_144, 3.6)
            | {"broker_throttled_seconds": 341.2, "broker_throttled_60s": 52.8}
        ],
        [],
        [BROKER],
    ),
    "top --once": Minute([ETL, JOB, SMALL], LIMITS, [BROKER, SLOW]),
}


def printed(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """What the command prints of its example."""
    minute = EXAMPLES[command]
    known = Known(minute.limits, minute.brokers, list(map(name_of, minute.clients)), minute.unmatched)
    found = [explain(each, known) for each in minute.clients]
    pages = {
        "/explain": [each._asdict() for each in found],
        "/clients": with_verdicts(minute.clients, found),
        "/limits": minute.limits,
        "/brokers": minute.brokers,
    }
    monkeypatch.setattr(page_commands, "_page", lambda ctx, proxy, path: json.dumps(pages[path]))
    result = CliRunner().invoke(commands.main, shlex.split(command))
    assert result.exit_code == 0, result.output
    return result.output


def shown(text: str) -> list[tuple[str, str]]:
    """The commands of a block, and what they print: a line that is indented by four goes on the one before."""
    parts = re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]
    return [(command, re.sub(r"\n {4,}", " ", output)) for command, output in (part.split("\n", 1) for part in parts)]


TRANSCRIPTS: Final = [
    (command.removeprefix("kafka-quota-proxy "), output)
    for console in CONSOLES
    for command, output in shown(console)
    if command.startswith("kafka-quota-proxy ")
]


@pytest.mark.parametrize(("command", "output"), TRANSCRIPTS, ids=[command for command, _ in TRANSCRIPTS])
def test_a_transcript_is_what_the_command_prints(command: str, output: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it has `...`, the page leaves lines out."""
    expected = re.escape(output.strip()).replace(re.escape("  ...\n"), r"(?:.+\n)+")
    assert re.fullmatch(expected, printed(command, monkeypatch).strip())


def test_each_example_is_shown() -> None:
    assert {command for command, _ in TRANSCRIPTS} == set(EXAMPLES)


def test_the_table_has_each_verdict_in_the_words_of_explain() -> None:
    table = {name: words for name, words, *_ in rows(PAGE) if name in HEADLINES}
    assert set(table) == set(HEADLINES)
    assert {name: table[name] for name in STATES} == WORDS


# ---- log lines, pages and commands


#: A text with less of its own than that could be anything.
LEAST_OWN: Final = 12


@cache
def texts_of_code() -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """All strings in the source, and those with parts that are filled in; `FILE` stands for the name of a file."""
    constants, filled = set[str](), set[str]()
    for path in (path for package in ("proxy", "protocol", "quotas") for path in Path(ROOT / package).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            match node:
                case ast.Constant(value=str(text)):
                    constants.add(text)
                    filled.add(text.replace("FILE", "\0"))
                case ast.JoinedStr(values=parts):
                    texts = [str(part.value) if isinstance(part, ast.Constant) else "\0" for part in parts]
                    filled.add("".join(texts).replace("FILE", "\0"))
    own = {text for text in filled if "\0" in text and len(text.replace("\0", "")) >= LEAST_OWN}
    return frozenset(constants), tuple(re.compile(re.escape(text).replace("\0", ".+")) for text in own)


def is_of_code(text: str) -> bool:
    constants, patterns = texts_of_code()
    return text in constants or any(pattern.fullmatch(text) for pattern in patterns)


def test_the_page_has_log_lines() -> None:
    assert len(LOG_LINES) == 4


@pytest.mark.parametrize("line", LOG_LINES, ids=lambda line: " ".join(line.split()[:2]))
def test_a_log_line_is_one_that_the_proxy_writes(line: str) -> None:
    """Its event, and its sentences, stand in the source."""
    found = _EVENT.match(line)
    assert found, line
    event, fields = found.groups()
    assert event in texts_of_code()[0]
    for name, sentence in _FIELD.findall(fields):
        if name in {"detail", "effect", "hint", "reason"} and sentence:
            assert is_of_code(sentence), sentence


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("it is overloaded or hangs, or the network drops its packets", True),
        ("see ssl.keystore.location and ssl.enabled.protocols in --command-config c.properties", True),
        ("the client closed its connection 7 bytes before the end of a request", True),
        ("it is overloaded or hangs", False),
        ("see ssl.keystore.location in --command-config c.properties", False),
    ],
)
def test_a_sentence_that_the_proxy_does_not_write_is_found(sentence: str, expected: bool) -> None:
    assert is_of_code(sentence) is expected


def test_each_event_in_backticks_is_written() -> None:
    named = re.findall(r"`([a-z]+(?:_[a-z]+)+)`", PAGE)
    assert named
    assert {name for name in named if not name.startswith("kafka_quota_proxy") and not is_of_code(name)} == set()


def test_each_page_and_command_exists() -> None:
    pages = {"/", *re.findall(r"^(/\w+)", INDEX, re.MULTILINE)}
    assert set(re.findall(r"localhost:19404(/\w*)", PAGE)) <= pages
    named = {name for page in PAGES for name in _COMMAND.findall(page.read_text(encoding="utf-8"))}
    assert named <= set(commands.main.commands)
