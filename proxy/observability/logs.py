"""Log lines: one event each, to stderr, as logfmt-like text or as JSON.

    2026-11-21T08:00:00.123Z WARN throttled client_id=etl peer=127.0.0.1:51344 limit=producer_byte_rate throttle_ms=1800

Client ids, principals and error texts come from the wire. A value is quoted and escaped whenever it could be read as
several values, a second line or a terminal command, and a long value is cut. No input can forge a line.
"""

import json
import logging
import math
import re
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from datetime import UTC, datetime
from functools import partialmethod
from typing import Final, TextIO

from proxy.observability.output import report_gaps

MAX_VALUE_CHARS: Final = 512
"""Longer values are cut: they may come from the wire."""
SAME_RECORD_NS: Final = 3_600_000_000_000
"""Between two lines about a broken record in a topic that anyone may be able to write to."""

_LEVEL_NAMES: Final = {"WARNING": "WARN", "CRITICAL": "ERROR"}
_NEEDS_QUOTES: Final = frozenset(' "=\\')
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_OVERFLOW: Final = object()


class EventLog:
    """Writes events to the logger of this name."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def _write(self, level: int, name: str, /, *, exc_info: bool = False, **fields: object) -> None:
        """Log the event `name` (snake_case) with its fields, in the order given; a field that is None is left out.

        `exc_info`: the exception being handled adds its type and text as `error`, and its traceback at level debug.
        """
        if self._logger.isEnabledFor(level):
            self._logger.log(level, "%s", name, exc_info=exc_info, extra={"event": name, "fields": fields})

    debug = partialmethod(_write, logging.DEBUG)
    info = partialmethod(_write, logging.INFO)
    warning = partialmethod(_write, logging.WARNING)
    error = partialmethod(_write, logging.ERROR)
    exception = partialmethod(_write, logging.ERROR, exc_info=True)

    def warn_of(self, cautions: Iterable[tuple[str, Mapping[str, object]]]) -> None:
        """Log the warnings of `proxy.config.cautions`."""
        for name, fields in cautions:
            self.warning(name, **fields)


def text_value(value: object) -> str:
    """One logfmt value: plain if that is unambiguous, otherwise in double quotes with JSON's escapes."""
    text = _plain(value)
    if text and text.isprintable() and _NEEDS_QUOTES.isdisjoint(text):
        return text
    return _escaped(json.dumps(text, ensure_ascii=False))


def one_line(text: str) -> str:
    """A sentence that contains foreign words, without quotes: cut and escaped like a value."""
    return _escaped(_plain(text))


def _escaped(text: str) -> str:
    """JSON's escapes for all that is not printable: terminals and readers also act on U+0085, U+2028 and bidi marks."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(round(value, 6))
    text = str(value)
    if len(text) > MAX_VALUE_CHARS:
        return f"{text[:MAX_VALUE_CHARS]}…(+{len(text) - MAX_VALUE_CHARS})"
    return text


def _json_value(value: object) -> object:
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float) and math.isfinite(value):
        return round(value, 6)
    # JSON has no infinity, and half of a surrogate pair makes strict parsers refuse the whole line.
    return _SURROGATE.sub("\ufffd", _plain(value))


class EventFormatter(logging.Formatter):
    """An event as a line `TIME LEVEL event key=value ...`, or as a JSON object: ts, level, event, then the fields.

    The time is UTC, in milliseconds. A library's record is the event `log` with its message. `tracebacks`: they follow,
    on lines that start with `    | `, or as the JSON key `traceback`.
    """

    def __init__(self, *, is_json: bool, tracebacks: bool) -> None:
        super().__init__()
        self._is_json = is_json
        self._tracebacks = tracebacks

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        level = _LEVEL_NAMES.get(record.levelname, record.levelname)
        name = record.__dict__.get("event", "log")
        library = {"logger": record.name, "message": record.getMessage()}
        fields: dict[str, object] = dict(record.__dict__.get("fields", library))
        trace: list[str] = []
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            fields.setdefault("error", f"{type(error).__name__}: {error}")
            if self._tracebacks:
                # Their texts may come from the wire, too.
                trace = [one_line(each) for each in "".join(traceback.format_exception(error)).split("\n") if each]
        shown = {key: value for key, value in fields.items() if value is not None}
        if self._is_json:
            line = {"ts": at, "level": level, "event": name} | {key: _json_value(shown[key]) for key in shown}
            return json.dumps(line | ({"traceback": list(map(_json_value, trace))} if trace else {}))
        first = " ".join([at, level, name, *(f"{key}={text_value(value)}" for key, value in shown.items())])
        return "\n".join([first, *(f"    | {line}" for line in trace)])


def configure(log_format: str, log_level: str, *, stream: TextIO | None = None) -> None:
    """Send the events of this process to `stream` (default: stderr), replacing an earlier configuration.

    `log_format` is text or json, `log_level` debug, info, warn or error. Records of libraries (asyncio) are logged from
    level warn on, at debug all of them.
    """
    level = logging.getLevelNamesMapping()[log_level.upper()]
    tracebacks = level <= logging.DEBUG
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(EventFormatter(is_json=log_format == "json", tracebacks=tracebacks))
    logging.raiseExceptions = False  # a closed stderr must not print tracebacks into what is left of it
    report_gaps(_report_gap)
    logging.basicConfig(handlers=[handler], level=max(level, logging.WARNING) if not tracebacks else level, force=True)
    for package in ("proxy", "protocol", "quotas"):
        logging.getLogger(package).setLevel(level)


def _report_gap(stream: str, lines: int) -> None:
    hint = "these lines are lost because their reader had stopped or the disk was full"
    EventLog(__name__).warning("log_lines_dropped", stream=stream, lines=lines, hint=hint)


class RateLimited:
    """Admits one line per key and interval and counts the others. Pure: the time is passed in.

    It remembers at most `max_keys` keys, since keys may come from the wire; further keys share one line per interval.
    """

    def __init__(self, interval_ns: int = 5_000_000_000, max_keys: int = 1000) -> None:
        self._interval_ns = interval_ns
        self._max_keys = max_keys
        self._seen: OrderedDict[Hashable, list[int]] = OrderedDict()  # key -> [time of its last line, suppressed since]

    def admit(self, key: Hashable, now_ns: int) -> int | None:
        """None: do not log. Else log now; the number is how many lines of this key were suppressed since its last."""
        entry = self._seen.get(key)
        if entry is None and len(self._seen) >= self._max_keys:
            oldest = next(iter(self._seen))
            if self._fresh(self._seen[oldest], now_ns):
                key = _OVERFLOW
                entry = self._seen.get(key)
            else:
                del self._seen[oldest]
        if entry is not None and self._fresh(entry, now_ns):
            entry[1] += 1
            return None
        self._seen[key] = [now_ns, 0]
        self._seen.move_to_end(key)  # the first key always has the oldest line
        return entry[1] if entry is not None else 0

    def event(self, log: Callable[..., None], name: str, key: Hashable, now_ns: int, /, **fields: object) -> None:
        """Log an event with its fields by a method of `EventLog`, unless a line of this key is too recent."""
        suppressed = self.admit(key, now_ns)
        if suppressed is not None:
            log(name, **fields, suppressed=suppressed or None)

    def _fresh(self, entry: list[int], now_ns: int) -> bool:
        return now_ns - entry[0] < self._interval_ns
