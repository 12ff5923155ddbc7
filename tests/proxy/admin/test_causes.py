"""Each cause that the proxy can know of: `explain` names it, alone and beside others, and advises on nothing else."""

from collections.abc import Mapping
from itertools import combinations
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest

from proxy.admin.explain import HEADLINES, Finding, explain
from proxy.admin.verdict import Known
from tests.proxy.admin.test_explain import BROKER, DOWN, FROZEN, LIMIT, NEVER, SLOW, SMALL, client

pytestmark = pytest.mark.claim(
    "limits",
    "transcripts, log lines and names in troubleshooting; what explain concludes; whether it is "
    "the proxy, the worst cause first",
)

Row = Mapping[str, Any]


class Cause(NamedTuple):
    """What it does to the rows: parts of the time, fields of the client, and the rows of its brokers and limits.

    concludes   verdict and headline of `explain`; `words`: are in its sentences
    """

    concludes: tuple[str, str]
    words: tuple[str, ...]
    states: dict[str, float]
    changes: Row = MappingProxyType({})
    brokers: tuple[Row, ...] = (BROKER,)
    limits: tuple[Row, ...] = ()


def waited(limit: str, entity: str, seconds: float = 50) -> Row:
    return {"waits": [{"limit": limit, "entity": entity, "seconds": seconds, "lasting_seconds": 60}]}


#: Words of advice that belong to one cause: they mislead with any other.
ADVICE: Final = {
    "broker": "check the broker's request times, disks",
    "broker_quota": "Kafka itself has a quota",
    "client": "linger.ms",
    "slow_reader": "Let it fetch less at a time",
    "proxy": "--max-buffered-bytes is used up",
}
AT_LIMIT: Final = waited("producer_byte_rate", "client-id:etl")
USED_UP: Final = {**LIMIT, "client_count": 1, "entry": "client-id=etl", "source": "quotas.toml:7"}
OF_RDKAFKA: Final = {"entity": "client-id:rdkafka", "entry": "client-id=<default>", "source": "quotas.toml:3"}
OF_CLUSTER: Final = {**USED_UP, "source": "--cluster-quotas"}
OF_VARIABLE: Final = {**USED_UP, "source": "KAFKA_QUOTA_PROXY_QUOTA"}
IN_FLEET: Final = {"fleet": "jobs", "fleet_members": 3, "fleet_value": 1_000_000, "fleet_own_value": 9_000_000}
FLEET: Final = {**USED_UP, **IN_FLEET, "fleet_lowest": "host-7-abc", "limit_value": 200, "used_ratio_60s": 331.32}
LOWEST: Final = {**FLEET, "fleet_lowest": "", "fleet_own_value": 1_000_000}
CONSUMER: Final = {"produces_per_second": 0, "produce_bytes_per_second": 0, "fetch_bytes_per_second": 500_000}
GROUP: Final = {"group": "team", "rebalances_60s": 30, "joined_60s": {"c-2 from 10.0.0.9": 30}, "rejoined_60s": {}}
UNTIMED: Final = {**BROKER, "produce": NEVER}
THROTTLED: Final = {"broker_throttled_seconds": 51.0, "broker_throttled_60s": 51.0, "broker_throttled_10s": 9.0}
AT_TIMES: Final = {"broker_throttled_seconds": 0.4, "broker_throttled_60s": 0.4, "broker_throttled_10s": 0.1}


def at_limit(limit: Row, *words: str, changes: Row = AT_LIMIT) -> Cause:
    concludes = "limit", "a limit of this proxy is holding it back"
    return Cause(concludes, words, {"limit": 0.9, "broker": 0.1}, changes, limits=(limit,))


BY_BROKER_QUOTA: Final = "broker_quota", "a broker quota is throttling it"
NO_ANSWER: Final = "broker", "a broker cannot be used, or does not answer"
TOO_SMALL: Final = "client", "it sends too many small requests"
BY_PROXY: Final = "proxy", "this proxy is holding it back"
REBALANCES: Final = "client", "its consumer group keeps rebalancing"
NOTHING: Final = "none", "nothing is wrong"

CAUSES: Final = {
    "a limit": at_limit(
        USED_UP, "raise producer_byte_rate in the entry client-id=etl (quotas.toml:7)", "advise --rate 2MB"
    ),
    "a limit of a default entry and a generated name": at_limit(
        {**USED_UP, **OF_RDKAFKA},
        "raise producer_byte_rate in the entry client-id=<default> (quotas.toml:3)",
        "add an entry client-id=rdkafka",
        "rdkafka is a name that librdkafka makes up",
        "at least 2 use it now",
        changes={**waited("producer_byte_rate", "client-id:rdkafka"), "client_id": "rdkafka", "programs": 2},
    ),
    "a limit of the cluster": at_limit(OF_CLUSTER, "raise it in the cluster with kafka-configs.sh"),
    "a limit of a variable": at_limit(OF_VARIABLE, "in the entry client-id=etl (KAFKA_QUOTA_PROXY_QUOTA)"),
    "a fleet where another member has a lower figure": at_limit(
        FLEET, "that of host-7-abc. The value here is 9 MB/s, so raising it here changes nothing"
    ),
    "a fleet where this member has the lowest figure": at_limit(
        LOWEST, "raise producer_byte_rate in the entry client-id=etl (quotas.toml:7)"
    ),
    "a threshold of a topic": at_limit(
        {**USED_UP, "limit": "bytes.in.per.sec.threshold", "entity": "topic:t"},
        "A threshold stops all writes to the topic",
        changes=waited("bytes.in.per.sec.threshold", "topic:t"),
    ),
    "the rate of connections": at_limit(
        {**USED_UP, "limit": "connection_creation_rate", "entity": "ip:10.0.0.1", "rate_60s": None},
        "It has 1 connection: nothing produced or fetched.",
        "let clients keep their connections",
        changes={
            **waited("connection_creation_rate", "ip:10.0.0.1"),
            **dict.fromkeys(("produce_bytes_per_second", "requests_per_second", "bytes_per_request"), 0),
        },
    ),
    "a broker quota": Cause(
        BY_BROKER_QUOTA,
        ("Kafka itself has a quota", "add up to 51 s in the last minute"),
        {"broker_quota": 0.76, "broker": 0.24},
        THROTTLED,
    ),
    "a quota of one of three brokers": Cause(
        BY_BROKER_QUOTA, ("Kafka itself has a quota",), {"broker_quota": 0.3, "client": 0.7}, THROTTLED
    ),
    "a broker quota in short waits": Cause(
        BY_BROKER_QUOTA, ("Kafka itself has a quota",), {"broker_quota": 0.02, "broker": 0.98}, AT_TIMES
    ),
    "a broker quota that an idle client meets at times": Cause(
        ("client", "it is mostly idle, and a broker quota throttles it at times"),
        ("add up to 0.4 s in the last minute",),
        {"broker_quota": 0.02, "client": 0.98},
        AT_TIMES,
    ),
    "a slow broker": Cause(
        ("broker", "the brokers are slow"),
        ("Broker b2:9092 answers Produce requests in 400 ms (99 %: 700 ms).", "disks"),
        {"broker": 0.97, "client": 0.03},
        {"brokers": ["b2:9092"]},
        brokers=(SLOW,),
    ),
    "a frozen broker": Cause(
        NO_ANSWER,
        ("Broker b3:9092 has not answered a request for 7 s (silent)",),
        {"broker": 1.0},
        {"brokers": ["b3:9092"], "oldest_request_seconds": 7.0},
        brokers=(FROZEN,),
    ),
    "a broker that is down": Cause(
        NO_ANSWER,
        ("Broker b5:9092 cannot be used (connect_refused): nothing listens there.",),
        {"broker": 0.6, "client": 0.4},
        {"brokers": ["b5:9092"], "connections": 0, "in_flight": 0},
        brokers=(DOWN,),
    ),
    "too many requests in flight": Cause(
        TOO_SMALL,
        ("more requests in flight than --max-pending-requests lets through", "linger.ms", "210 B each"),
        {"broker": 0.97, "client": 0.03},
        {**SMALL, **waited("max_pending_requests", "proxy"), "in_flight": 978, "brokers": ["b2:9092"]},
        brokers=(SLOW,),
    ),
    "small requests one at a time": Cause(
        TOO_SMALL, ("linger.ms", "210 B each"), {"broker": 0.62, "client": 0.38}, SMALL
    ),
    "the memory of the proxy": Cause(
        BY_PROXY,
        ("--max-buffered-bytes is used up",),
        {"proxy": 0.8, "client": 0.2},
        waited("max_buffered_bytes", "proxy"),
    ),
    "a login of the proxy": Cause(BY_PROXY, ("wait while the proxy logs in",), {"proxy": 0.8, "client": 0.2}),
    "a client that does not read": Cause(
        ("slow_reader", "it does not read its responses fast enough"),
        ("Let it fetch less at a time",),
        {"slow_reader": 0.8, "data": 0.2},
        CONSUMER,
    ),
    "an application that reads slowly": Cause(
        ("client", "the application reads slowly"),
        ("It was 1,200,000 records behind",),
        {"client": 0.9, "broker": 0.1},
        {**CONSUMER, "lag_records": 1_200_000},
    ),
    "a group that rebalances": Cause(
        REBALANCES,
        ("Its group team rebalanced 30 times in the last minute", "New members joined: c-2 from 10.0.0.9 (30 times)"),
        {"data": 0.6, "client": 0.4},
        {**CONSUMER, "groups": [GROUP]},
    ),
    "a group that rebalances, and nobody new": Cause(
        REBALANCES,
        ("No new member joined", "max.poll.interval.ms"),
        {"data": 0.4, "client": 0.6},
        {**CONSUMER, "groups": [{**GROUP, "joined_60s": {}}]},
    ),
    "the end of its partitions": Cause(
        ("data", "it is waiting for new records"),
        ("it has read everything",),
        {"data": 0.95, "broker": 0.05},
        {**CONSUMER, "lag_records": 0},
    ),
    "an idle client": Cause(
        ("client", HEADLINES["client"]),
        ("Most of the time it sends nothing",),
        {"client": 0.9, "broker": 0.1},
        {"produces_per_second": 5.0, "requests_per_second": 5.0, "bytes_per_request": 210},
    ),
    "nothing": Cause(NOTHING, ("which answer as usual",), {"broker": 1.0}),
    "a broker that was not timed": Cause(NOTHING, ("b1:9092 answers is unknown",), {"broker": 1.0}, brokers=(UNTIMED,)),
}


def found(*causes: Cause) -> Finding:
    """The rows of all of them: their parts of the time in equal shares, the fields of the later ones first."""
    states: dict[str, float] = {}
    changes: dict[str, Any] = {"waits": [], "limits": [], "brokers": []}
    for each in causes:
        for state, part in each.states.items():
            states[state] = states.get(state, 0) + part / len(causes)
        lists = {name: changes[name] + each.changes.get(name, []) for name in ("waits", "brokers")}
        changes = {**changes, **each.changes, **lists}
    limits = [limit for each in causes for limit in each.limits]
    brokers = [broker for each in causes for broker in each.brokers]
    changes["limits"] = [[each["limit"], each["entity"]] for each in limits]
    return explain(client(states, **changes), Known(limits, brokers, ["etl"], []))


@pytest.mark.parametrize("name", CAUSES)
def test_a_cause_is_named_and_nothing_else(name: str) -> None:
    cause = CAUSES[name]
    finding = found(cause)
    text = " ".join(finding.sentences)
    assert (finding.verdict, finding.headline) == cause.concludes
    assert [words for words in cause.words if words not in text] == []
    assert [words for verdict, words in ADVICE.items() if verdict != finding.verdict and words in text] == []
    assert "33132%" not in text
    assert all(sentence.endswith((".", "shows it.")) and sentence[0] != " " for sentence in finding.sentences)


#: What its own time shows: if it is half of all, it is named beside any other.
HELD: Final = [name for name, each in CAUSES.items() if each.concludes[0] not in {"none", "client", "data"}]


@pytest.mark.parametrize(("one", "two"), list(combinations(HELD, 2)))
def test_of_two_causes_one_is_the_verdict_and_nothing_is_called_right(one: str, two: str) -> None:
    causes = CAUSES[one], CAUSES[two]
    finding = found(*causes)
    text = " ".join(finding.sentences)
    assert finding.verdict in {each.concludes[0] for each in causes}
    assert "Nothing is holding it back" not in text
    if "broker_quota" in {each.concludes[0] for each in causes}:
        assert "throttle times in broker responses add up to" in text


@pytest.mark.parametrize("quota", [name for name, each in CAUSES.items() if "broker quota" in name])
@pytest.mark.parametrize("name", CAUSES)
def test_while_brokers_throttle_a_client_nothing_is_called_right(quota: str, name: str) -> None:
    """Whatever else is the case."""
    finding = found(CAUSES[name], CAUSES[quota])
    assert finding.verdict != "none"
    assert finding.headline not in {HEADLINES["none"], HEADLINES["client"]}
    assert any("throttle times in broker responses add up to" in each for each in finding.sentences)
