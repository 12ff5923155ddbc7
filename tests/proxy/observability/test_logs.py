"""Log lines: readable, parseable, and impossible to forge from the wire."""

import io
import json
import logging
import re
from collections.abc import Callable, Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.observability import logs
from proxy.observability.logs import EventLog, RateLimited, one_line, text_value

LOG = EventLog("proxy.tests")
SECOND = 1_000_000_000


@pytest.fixture
def log_to() -> Iterator[Callable[..., io.StringIO]]:
    """Configure logging as the command does, with a StringIO for stderr; put everything back afterwards."""
    root = logging.getLogger()
    packages = [logging.getLogger(name) for name in ("proxy", "protocol", "quotas")]
    before = (root.handlers[:], root.level, [package.level for package in packages], logging.raiseExceptions)

    def configure(log_format: str = "text", log_level: str = "info") -> io.StringIO:
        stream = io.StringIO()
        root.handlers.clear()  # not closed: they are pytest's
        logs.configure(log_format, log_level, stream=stream)
        return stream

    yield configure
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    for package, level in zip(packages, before[2], strict=True):
        package.setLevel(level)
    logging.raiseExceptions = before[3]


def test_the_throttle_line_of_the_contract(log_to: Callable[..., io.StringIO]) -> None:
    stream = log_to()
    LOG.warning(
        "throttled",
        client_id="etl",
        user="ANONYMOUS",
        peer="127.0.0.1:51344",
        limit="producer_byte_rate",
        entity="client-id:etl",
        limit_value=5_000_000.0,
        debt_seconds=1.8,
        throttle_ms=1800,
        mode="notify",
        suppressed=412,
    )
    at, line = stream.getvalue().split(" ", 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", at)
    assert line == (
        "WARN throttled client_id=etl user=ANONYMOUS peer=127.0.0.1:51344 limit=producer_byte_rate "
        "entity=client-id:etl limit_value=5000000 debt_seconds=1.8 throttle_ms=1800 mode=notify suppressed=412\n"
    )


def test_the_same_line_as_json(log_to: Callable[..., io.StringIO]) -> None:
    stream = log_to("json")
    fields = {"client_id": 'a "b"\n', "debt_seconds": 1.8, "throttle_ms": 3, "dry_run": True}
    LOG.warning("throttled", **fields)
    line = json.loads(stream.getvalue())
    assert line.pop("ts").endswith("Z")
    assert line == {"level": "WARN", "event": "throttled", **fields}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("etl", "etl"),
        ("", '""'),
        ("two words", '"two words"'),
        ("a=b", '"a=b"'),
        ('say "hi"', r'"say \"hi\""'),
        ("back\\slash", r'"back\\slash"'),
        ("line\nERROR forged", r'"line\nERROR forged"'),
        ("\x1b[31mred", r'"\u001b[31mred"'),
        ("next\x85line", r'"next\u0085line"'),
        ("sep\u2028arator", r'"sep\u2028arator"'),
        ("right\u202eleft", r'"right\u202eleft"'),
        ("surrogate\udc80", r'"surrogate\udc80"'),
        ("Zürich-流", "Zürich-流"),
        (True, "true"),
        (5_000_000.0, "5000000"),
        (0.1 + 0.2, "0.3"),
        (float("inf"), "inf"),
        ("x" * 600, "x" * 512 + "…(+88)"),
    ],
)
def test_how_values_are_written(value: object, text: str) -> None:
    assert text_value(value) == text


def test_a_sentence_with_words_of_a_broker_has_no_quotes_and_one_line() -> None:
    assert one_line('it says "no"\n\x85' + "x" * 600) == r'it says "no"\n\u0085' + "x" * 498 + "…(+102)"


@given(st.text(st.characters(codec=None)) | st.floats() | st.just("\ud800half"), st.booleans())
@example("\ud800\n\x1b", False)
@example(float("inf"), True)
def test_each_line_of_json_can_be_read_by_strict_parsers(value: object, is_error: bool) -> None:
    """They know no infinity and no half of a surrogate pair, and a line ends an object."""
    error = ValueError(str(value))
    event = {"event": "failed", "fields": {"value": value}, "exc_info": (type(error), error, None)}
    record = logging.makeLogRecord(event if is_error else {"msg": str(value)})
    line = logs.EventFormatter(is_json=True, tracebacks=True).format(record)

    def fail(constant: str) -> None:
        raise AssertionError(constant)

    assert line.isprintable()
    assert json.dumps(json.loads(line, parse_constant=fail), ensure_ascii=False).encode()


def test_a_traceback_with_text_from_the_wire_gives_no_command_to_a_terminal() -> None:
    error = ValueError("\x1b[31mred\x85next\rline" + "x" * 10_000)
    record = logging.makeLogRecord({"event": "failed", "fields": {}, "exc_info": (type(error), error, None)})
    lines = logs.EventFormatter(is_json=False, tracebacks=True).format(record).split("\n")
    assert all(each.isprintable() and len(each) < 2_000 for each in lines)


@given(client_id=st.text(), user=st.text())
def test_no_client_id_can_forge_a_field_or_a_line(client_id: str, user: str) -> None:
    record = logging.makeLogRecord(
        {"levelno": logging.WARNING, "event": "throttled", "fields": {"client_id": client_id, "user": user, "end": 1}}
    )
    line = logs.EventFormatter(is_json=False, tracebacks=False).format(record)
    assert line.isprintable()
    # A reader that knows nothing but quotes and spaces finds exactly these fields.
    keys = [pair.split("=", 1)[0] for pair in re.findall(r'(?:[^ "]+=)(?:"(?:[^"\\]|\\.)*"|[^ "]*)', line)]
    assert keys == ["client_id", "user", "end"]
    assert line.endswith(" end=1")


def test_a_library_is_heard_from_warnings_on(log_to: Callable[..., io.StringIO]) -> None:
    stream = log_to()
    logging.getLogger("asyncio").info("chatter")
    logging.getLogger("asyncio").warning("slow %s", "callback\n")
    assert stream.getvalue().endswith(r'WARN log logger=asyncio message="slow callback\n"' + "\n")
    assert stream.getvalue().count("\n") == 1


def _fail() -> None:
    raise ValueError("bytes\nfrom the wire")


def log_a_failure() -> None:
    try:
        _fail()
    except ValueError:
        LOG.exception("defect")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_traceback_shows_at_debug_only(log_to: Callable[..., io.StringIO], log_format: str) -> None:
    stream = log_to(log_format, "info")
    log_a_failure()
    assert stream.getvalue().count("\n") == 1
    assert r"ValueError: bytes\nfrom the wire" in stream.getvalue()

    stream = log_to(log_format, "debug")
    log_a_failure()
    assert "in _fail" in stream.getvalue()
    if log_format == "json":
        assert json.loads(stream.getvalue())["traceback"][0].startswith("Traceback")
    else:
        first, *rest = stream.getvalue().splitlines()
        assert "ERROR defect" in first
        assert all(line.startswith("    | ") for line in rest)


def test_one_line_per_key_and_interval() -> None:
    gate = RateLimited(interval_ns=5 * SECOND)
    assert gate.admit("a", 0) == 0
    assert gate.admit("a", 1) is None
    assert gate.admit("a", 5 * SECOND - 1) is None
    assert gate.admit("b", 1) == 0
    assert gate.admit("a", 5 * SECOND) == 2
    assert gate.admit("a", 10 * SECOND) == 0


def test_many_keys_share_one_line_rather_than_one_each() -> None:
    gate = RateLimited(interval_ns=5 * SECOND, max_keys=3)
    admitted = [gate.admit(f"client-{number}", number) for number in range(1000)]
    assert [number for number, suppressed in enumerate(admitted) if suppressed is not None] == [0, 1, 2, 3]
    # An interval later the first ones have made room.
    assert gate.admit("late", 6 * SECOND) == 0


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, SECOND)), max_size=300))
def test_every_line_is_either_said_or_counted_while_keys_fit(steps: list[tuple[int, int]]) -> None:
    gate = RateLimited(interval_ns=SECOND, max_keys=100)
    now = 0
    asked = said = reported = 0
    for key, pause in steps:
        now += pause
        asked += 1
        suppressed = gate.admit(key, now)
        if suppressed is not None:
            said += 1
            reported += suppressed
    for key in range(51):
        suppressed = gate.admit(key, now + SECOND)
        if suppressed:
            reported += suppressed
    assert said + reported == asked
