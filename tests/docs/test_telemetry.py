"""docs/reference/metrics.md has all metrics of clients, and docs/telemetry.md what `advise` prints."""

import re
import shlex

import pytest
from click.testing import CliRunner

from protocol.telemetry import MAX_BYTES, MAX_FIELDS
from proxy.command.commands import main
from proxy.observability import client_reports
from proxy.observability.client_reports import REPORTED
from tests.docs.pages import ROOT, blocks, rows

pytestmark = pytest.mark.claim("telemetry", "the metrics in the reference, and what advise prints in the page")

PAGE = (ROOT / "docs/telemetry.md").read_text(encoding="utf-8")
METRICS_PAGE = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
COMBINED = {"largest": max, "longest": max, "smallest": min, "summed over": sum}
_REPORTED = re.compile(r"Reported by the client: ([a-z-]+), (?:the )?([a-z ]+?) (?:of )?its processes")


def test_the_reference_has_each_metric() -> None:
    """With how the values of several processes are combined."""
    shown = {row[0].partition("{")[0]: _REPORTED.match(row[2]) for row in rows(METRICS_PAGE) if len(row) == 3}
    for each in REPORTED:
        found = shown[f"kafka_quota_proxy_client_{each.family}"]
        assert found is not None, each.family
        assert (found[1], COMBINED[found[2]]) == (each.name, each.combine)


def test_the_bounds_and_the_estimate() -> None:
    assert f"more than {MAX_BYTES >> 10} KiB or {MAX_FIELDS:,} fields" in PAGE
    words = " ".join(PAGE.split())
    assert f"waits {client_reports.LONG_WAIT_SECONDS} s or longer" in words
    assert f"had waited {client_reports.LONG_QUEUE_TIME_SECONDS} s or longer" in words
    assert f"{client_reports.DELIVERY_TIMEOUT_SECONDS} s less `record-queue-time-max`" in words
    assert f"push every {client_reports.INTERVAL_MS // 1000} s" in words
    assert f"forgotten {client_reports.EXPIRY_NS // 10**9} to 40 s after" in words


def test_the_advice_is_what_the_command_prints() -> None:
    ((language, text),) = blocks(PAGE)
    command, printed = text.split("\n", 1)
    assert language == "console"
    assert CliRunner().invoke(main, shlex.split(command)[2:]).output == printed
