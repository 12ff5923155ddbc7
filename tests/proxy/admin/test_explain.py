"""What `explain` concludes from the rows of the pages, one case for each verdict. Real clients: tests/integration."""

from typing import Any

import pytest

from proxy.admin.explain import HEADLINES, WORDS, Finding, explain, refused, text_of
from proxy.admin.plain_text import bytes_of
from proxy.admin.tables import with_verdicts
from proxy.admin.verdict import Known
from proxy.observability.client_times import STATES
from tests.proxy.admin import rows

pytestmark = pytest.mark.claim(
    "limits",
    "transcripts, log lines and names in troubleshooting; what explain concludes; whether it is "
    "the proxy, the worst cause first",
)

LIMIT = {
    "limit": "producer_byte_rate",
    "entity": "client-id:etl",
    "limit_value": 2_000_000,
    "source": "--quota",
    "rate_60s": 1_990_000.0,
    "used_ratio_60s": 0.995,
    "queued_connections": 1,
    "client_count": 2,
    "clients": [{"client_id": "etl", "user": "ANONYMOUS"}, {"client_id": "etl", "user": "alice"}],
}
QUICK = {"count": 60, "mean_seconds": 0.004, "p50_seconds": 0.003, "p99_seconds": 0.011}
NEVER = {"count": 0, "mean_seconds": None, "p50_seconds": None, "p99_seconds": None}
WELL = {"oldest_request_seconds": 0.0, "failing": None, "hint": None}
BROKER = {"address": "b1:9092", "produce": QUICK, "others": NEVER, **WELL}
SLOW_TIMES = {**QUICK, "mean_seconds": 0.4, "p50_seconds": 0.4, "p99_seconds": 0.7}
SLOW = {**BROKER, "address": "b2:9092", "produce": SLOW_TIMES}
SLOW_DISK = {**SLOW, "address": "b4:9092", "others": QUICK}
DOWN = {**BROKER, "address": "b5:9092", "failing": "connect_refused", "hint": "nothing listens there", "produce": NEVER}
FROZEN = {**BROKER, "address": "b3:9092", "oldest_request_seconds": 7.0, "failing": "silent"}


def client(states: dict[str, float], client_id: str = "etl", **changes: Any) -> dict[str, Any]:
    """It has a limit, a broker, and ten requests a second of 100 kB each."""
    known = {"limits": [["producer_byte_rate", "client-id:etl"]], "brokers": ["b1:9092"]}
    return rows.client(client_id, states, 100_000, 10.0, **known | changes)


def explained(row: dict[str, Any], *, limit: dict[str, Any] = LIMIT, unmatched: tuple[str, ...] = ()) -> Finding:
    more = [each for each in (SLOW_DISK, DOWN) if each["address"] in row["brokers"]]
    return explain(row, Known([limit], [BROKER, SLOW, FROZEN, *more], ["etl", "producer-1"], unmatched))


def text(finding: Finding) -> str:
    return " ".join(finding.sentences)


def waits_for(limit: str, entity: str, seconds: float, lasting_seconds: int) -> dict[str, Any]:
    return {"waits": [{"limit": limit, "entity": entity, "seconds": seconds, "lasting_seconds": lasting_seconds}]}


def test_a_client_that_the_disk_guard_holds_reads_so() -> None:
    disk = "disk guard 85%..95%: broker 3 at 94.2 %, in /data"
    limit = {**LIMIT, "limit": "disk_guard", "entity": "total", "source": "--disk-guard", "disk": disk}
    waits = waits_for("disk_guard", "total", 50, 50)
    row = client({"limit": 0.9, "broker": 0.1}, limits=[["disk_guard", "total"]], **waits)
    found = text(explained(row, limit=limit))
    assert f"The {disk}. It allows {bytes_of(2_000_000)}/s to all producers together" in found
    assert "kafka-delete-records.sh" in found
    stopped = text(explained(row, limit={**limit, "limit_value": 1 / 60, "used_ratio_60s": None}))
    assert "It stops all producers" in stopped


UNUSED = {**LIMIT, "used_ratio_60s": 0.21}
SLOWLY: dict[str, Any] = {"produces_per_second": 12.0, "requests_per_second": 12.0}
SMALL: dict[str, Any] = {"bytes_per_request": 210, "produces_per_second": 400.0, "requests_per_second": 400.0}


@pytest.mark.parametrize(
    ("states", "changes", "limit", "verdict"),
    [
        ({"limit": 0.2, "broker": 0.8}, {}, LIMIT, "limit"),
        ({"limit": 0.2, "broker": 0.8}, {}, UNUSED, "none"),
        ({"broker": 0.3, "client": 0.7}, {"brokers": ["b2:9092"]}, UNUSED, "broker"),
        ({"broker": 0.1, "client": 0.9}, {"brokers": ["b2:9092"]}, UNUSED, "client"),
        ({"broker": 1.0}, {"brokers": []}, UNUSED, "broker"),
        ({"broker": 0.9, "client": 0.1}, SMALL, UNUSED, "client"),
        # Others find the broker slow, in long queues perhaps; this one is answered 400 times a second, one at a time.
        ({"broker": 0.9, "client": 0.1}, {**SMALL, "brokers": ["b2:9092"]}, UNUSED, "client"),
        # A broker works on one request of a connection at a time: the others in flight wait for that, in a long queue.
        ({"broker": 0.9, "client": 0.1}, {**SMALL, "brokers": ["b2:9092"], "in_flight": 160}, UNUSED, "client"),
        ({"broker": 1.0}, {**SMALL, **SLOWLY, "brokers": ["b2:9092"], "in_flight": 160}, UNUSED, "broker"),
        # What it does not send may be slow.
        ({"broker": 1.0}, {"produces_per_second": 0, "brokers": ["b2:9092"]}, UNUSED, "broker"),
        ({"broker": 1.0}, {"produces_per_second": 0, "brokers": ["b4:9092"]}, UNUSED, "none"),
        ({"broker": 1.0}, {"brokers": ["b4:9092"]}, UNUSED, "broker"),
        # A broker that answers other requests late sends records late, too; and one that does not answer is no wait.
        ({"data": 0.9, "broker": 0.1}, {"produces_per_second": 0, "brokers": ["b2:9092"]}, UNUSED, "broker"),
        ({"data": 0.9, "broker": 0.1}, {"oldest_request_seconds": 12.0, "brokers": ["b3:9092"]}, UNUSED, "broker"),
        ({"client": 1.0}, {"unused_ratio": 1.0, "recent_unused_ratio": 1.0}, UNUSED, "none"),
        ({}, {"connections": 0}, UNUSED, "none"),
        # A connection that nobody uses says nothing about the one that is held.
        ({"client": 0.5, "limit": 0.3, "broker": 0.2}, {"unused_ratio": 0.5}, UNUSED, "limit"),
    ],
)
def test_the_verdict(states: dict[str, float], changes: dict[str, Any], limit: dict[str, Any], verdict: str) -> None:
    found = explained(client(states, **changes), limit=limit)
    assert found.verdict == verdict
    assert found.sentences
    assert sum(found.states.values()) == pytest.approx(1.0 if found.states else 0.0, abs=1e-3)


@pytest.mark.parametrize("brokers", [["b1:9092"], ["b2:9092"]])
def test_what_is_over_is_no_verdict(brokers: list[str]) -> None:
    """A limit was raised; a broker goes on."""
    for state, words in (("limit", "at a limit of this proxy"), ("broker", "waiting for brokers")):
        row = client({state: 0.9, "client": 0.1}, recent_states={"client": 0.95, state: 0.05}, brokers=brokers)
        found = explained(row, limit=UNUSED)
        assert (found.verdict, found.states) == ("client", {state: 0.9, "client": 0.1})
        assert f"That has ended: in the last 12 s they were hardly {words}." in found.sentences


def test_every_state_has_words_and_every_verdict_a_headline() -> None:
    assert set(WORDS) == set(STATES)
    assert set(HEADLINES) == {*STATES, "none"}


def test_a_limit_is_named_with_its_rate_and_who_shares_it() -> None:
    """What else it says: `tests/docs/test_troubleshoot.py`."""
    waits = waits_for("producer_byte_rate", "client-id:etl", 43.2, 300)
    found = text(explained(client({"limit": 0.72, "broker": 0.05, "client": 0.23}, **waits)))
    assert "allows 2 MB/s; 1.99 MB/s passed in the last minute (100% of it), and 1 connection is waiting" in found
    assert "2 clients share it: etl, etl (user alice)." in found
    assert "raise producer_byte_rate of client-id:etl" in found


def test_a_limit_that_one_client_has_to_itself_is_told_with_a_value() -> None:
    alone = {**LIMIT, "client_count": 1}
    waits = waits_for("producer_byte_rate", "client-id:etl", 43.2, 20)
    found = text(explained(client({"limit": 0.75, "broker": 0.25}, **waits), limit=alone))
    assert "this began within the last 30 s" in found
    assert "not waiting, it moves about 7.96MB/s: producer_byte_rate=7.96MB would rarely make it wait." in found
    assert "`kafka-quota-proxy advise --rate 2MB`" in found
    found = text(explained(client({"limit": 0.95, "broker": 0.05}, **waits), limit=alone))
    assert "rarely make it wait" not in found


def test_who_holds_the_memory_is_named() -> None:
    known = Known([], [], [], [], holder=client({}, client_id="greedy", buffered_bytes=200e6))
    found = text(explain(client({"proxy": 1.0}, **waits_for("max_buffered_bytes", "proxy", 60, 60)), known))
    assert "greedy holds most of the memory: 200 MB." in found


def test_a_proxy_without_cpu_does_not_blame_the_brokers_alone() -> None:
    known = Known([], [SLOW], [], [], late_seconds=0.06)
    found = text(explain(client({"broker": 1.0}, brokers=["b2:9092"]), known))
    assert "it is 60 ms late" in found
    assert "adds nothing" not in found


def test_a_connection_that_failed_is_told_with_what_helps() -> None:
    fields = {"peer": "10.0.0.7:4242", "reason": "tls_handshake", "detail": "not TLS\n\x1b[31m", "hint": "set TLS"}
    found = refused({**fields, "client_id": None})
    assert found.verdict == "client"
    lines = list(text_of([found], [DOWN]))
    assert lines[0].startswith("a connection from 10.0.0.7:4242 failed: tls_handshake: not TLS")
    assert lines[1] == "  To fix it: set TLS."
    assert lines[-1] == "Broker b5:9092 cannot be used (connect_refused): nothing listens there."
    assert all(line.isprintable() for line in lines)
    assert refused({"peer": "a", "reason": "connection_creation_rate", "limit_value": 3}).verdict == "limit"
    assert refused({"peer": "a", "reason": "max_connections", "max_connections": 3}).verdict == "proxy"
    found = refused({"peer": "a", "client_id": "etl", "user": "alice", "error": "sasl_authentication_failed"})
    assert (found.client_id, found.user) == ("etl", "alice")
    says = "a connection from a (client id etl, user alice) failed: login: sasl_authentication_failed"
    assert found.sentences == [says]


def test_a_limit_of_a_fleet_tells_both_rates() -> None:
    shared = {**LIMIT, "fleet": "jobs", "fleet_members": 40, "fleet_value": 50_000_000}
    waits = waits_for("producer_byte_rate", "client-id:etl", 1, 0)
    found = text(explained(client({"limit": 1.0}, **waits), limit=shared))
    assert "allows 50 MB/s to all 40 members of the fleet jobs together. The share of this proxy is 2 MB/s now" in found


def test_a_broker_that_is_down_has_cut_its_clients_off() -> None:
    row = client({"client": 0.9, "broker": 0.1}, brokers=[], connections=0)
    found = explain(row, Known([], [BROKER, DOWN], ["etl"], []))
    assert found.verdict == "broker"
    assert "Broker b5:9092 cannot be used (connect_refused): nothing listens there." in found.sentences
    # One that is connected to others may not need it.
    found = explain(client({"client": 0.9, "broker": 0.1}), Known([], [BROKER, DOWN], ["etl"], []))
    assert found.verdict == "client"
    assert "Broker b5:9092 cannot be used (connect_refused): nothing listens there." in found.sentences
    assert list(text_of([], [BROKER, DOWN]))[1:] == found.sentences[-1:]


def test_limits_that_are_not_enforced() -> None:
    known = Known([{**LIMIT, "used_ratio_60s": 8.1}], [BROKER], [], [], enforces=False)
    found = explain(client({"broker": 1.0}), known)
    assert found.verdict == "none"
    words = "producer_byte_rate of client-id:etl would hold it back, since 810% of it is used. It does not now"
    assert words in text(found)
    known = Known([UNUSED], [BROKER], [], [], enforces=False)
    assert "No limit is enforced now, because this is a dry run" in text(explain(client({"broker": 1.0}), known))


def test_a_limit_without_a_rate_is_not_called_unused() -> None:
    found = explained(client({"broker": 1.0}), limit={**LIMIT, "used_ratio_60s": None, "rate_60s": None})
    assert "nearest" not in text(found)
    nearest = "the nearest one is producer_byte_rate of client-id:etl, and 21% of it is used"
    assert nearest in text(explained(client({"broker": 0.9, "client": 0.1}, **SMALL), limit=UNUSED))
    assert with_verdicts([{}], [found])[0]["used_ratio"] is None


def test_a_client_without_a_limit_learns_which_entries_matched_nobody() -> None:
    found = text(explained(client({"client": 1.0}, limits=[]), unmatched=("client-id:elt",)))
    assert "These entries match no client: client-id:elt; names seen so far: etl, producer-1." in found
    assert "No entry" not in text(explained(client({"client": 1.0}), unmatched=("client-id:elt",)))
    assert "No entry" not in text(explained(client({"client": 1.0}, limits=[])))


def test_what_the_client_reports_is_told() -> None:
    outlook = {"buffered_bytes": 31e6, "buffer_bytes": 32e6, "wait_seconds": 131, "expires_in_seconds": 40}
    reported = {"record-error-total": 3.0, "records-lag-max": 12_000.0}
    found = text(explained(client({"limit": 1.0}, outlook=outlook, reported=reported)))
    assert "31 MB of unsent records in its buffer of 32 MB. The oldest record expires in about 40 s" in found
    assert "3 records that it could not deliver" in found
    assert "12,000 records behind" in found


def test_the_text_has_a_paragraph_for_each_client() -> None:
    lines = list(text_of([explained(client({"limit": 1.0})), explained(client({}, client_id="", user="alice"))]))
    assert lines[0] == "etl: a limit of this proxy is holding it back"
    assert lines[1].startswith("  In the last 60 s")
    assert "" in lines
    assert any(line.startswith("a client without a client id (user alice): nothing is wrong") for line in lines)
    (nobody,) = text_of([])
    assert nobody.startswith("no client has sent a request in the last minute; the log")


@pytest.mark.parametrize("hostile", ["\x1b[31mred", "a\u202eb", "x\r\ny", "z\u2028w"])
def test_names_of_clients_print_nothing_but_text(hostile: str) -> None:
    waits = waits_for("producer_byte_rate", f"client-id:{hostile}", 1, 0)
    row = client({"limit": 1.0}, client_id=hostile, user=hostile, **waits)
    shown = text_of([explained(row, limit={**LIMIT, "entity": f"client-id:{hostile}"})])
    assert all(line.isprintable() for line in shown)


@pytest.mark.parametrize(
    ("amount", "written"),
    [(0, "0 B"), (999, "999 B"), (999_932, "1 MB"), (5_000_000, "5 MB"), (1.5e9, "1.5 GB"), (12_345, "12.3 kB")],
)
def test_amounts(amount: float, written: str) -> None:
    assert bytes_of(amount) == written


COSTLY: dict[str, Any] = {**LIMIT, "request_cost": 16_000, "client_count": 1, "rate_60s": 6_400_000.0}


@pytest.mark.parametrize(
    ("limit", "changes", "expected"),
    [
        (
            COSTLY,
            SMALL,
            "producer_byte_rate of client-id:etl charges each Produce request at least 16 kB: it was charged 6.4 MB/s"
            " for 84 kB/s of requests, 400 requests a second of 210 B. linger.ms=20 (in Spark, kafka.linger.ms) would"
            " cut that to at most 50 requests a second, charged about 800 kB/s.",
        ),
        ({**COSTLY, "client_count": 2}, SMALL, "was charged at least 6.4 MB/s for 84 kB/s"),
        (
            COSTLY,
            {**SMALL, "connections": 9},
            "linger.ms=50 (in Spark, kafka.linger.ms) would cut that to at most 180 ",
        ),
        (COSTLY, {**SMALL, "connections": 90}, "210 B. Send fewer and larger requests: raise linger.ms and batch.size"),
    ],
)
def test_a_client_reads_what_small_requests_cost(limit: dict[str, Any], changes: dict[str, Any], expected: str) -> None:
    changes = {"produce_bytes_per_second": 84_000, **changes}
    assert expected in text(explained(client({"limit": 0.9, "client": 0.1}, **changes), limit=limit))


@pytest.mark.parametrize(
    ("limit", "changes"),
    [
        (COSTLY, {}),  # large requests
        (LIMIT, {**SMALL, "produce_bytes_per_second": 84_000}),
        ({**COSTLY, "used_ratio_60s": 0.1}, {**SMALL, "produce_bytes_per_second": 84_000}),
    ],
)
def test_a_client_is_not_told_of_a_cost_that_it_cannot_notice(limit: dict[str, Any], changes: dict[str, Any]) -> None:
    assert "charges each" not in text(explained(client({"broker": 0.9, "client": 0.1}, **changes), limit=limit))
