"""SPEC: what is understood, and that every error is named with the way out."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import DEFAULT, TOTAL, AnyEntity, Entity, EntityKind, Named
from quotas.entry import QuotaEntry
from quotas.exemption import Exemption
from quotas.limit_kinds import (
    BYTES_IN_RATE,
    BYTES_THRESHOLD,
    CONNECTION_CREATION_RATE,
    CONNECTIONS,
    CONSUMER_BYTE_RATE,
    MESSAGES_IN_RATE,
    PRODUCER_BYTE_RATE,
    PRODUCER_IDS_RATE,
    REQUEST_RATE,
    TOTAL_MESSAGES_THRESHOLD,
)
from quotas.limit_options import LimitOptions
from quotas.parsing.file import load_quotas
from quotas.parsing.parse import parse_spec
from quotas.problems import InvalidValues, Problem
from quotas.resource_groups import ResourceGroup
from quotas.slips import slip_in

OF_CLIENTS = "producer_byte_rate, consumer_byte_rate, request_rate, controller_mutation_rate"
ENTITIES = "user, client-id, ip, topic, resource-group, listener, total"


def meant(
    text: str,
    entity: AnyEntity,
    limits: dict[str, int | Fraction],
    *,
    unlimited: tuple[str, ...] = (),
    group: ResourceGroup | None = None,
    **options: Any,
) -> tuple[str, QuotaEntry]:
    return text, QuotaEntry(entity, limits, LimitOptions(**options), group, unlimited)


IP, ORDERS = Named(EntityKind.IP, "10.0.0.1"), Named(EntityKind.TOPIC, "orders")
GROUP = 'resource-group=etl,client-id=spark-*,client-id=flink-*,user="<default>",topic=a,topic=b,bytes_in_rate=50MB'
THRESHOLDS = "topic=orders,messages_in_rate=0.5,bytes.in.per.sec.threshold=1MiB/s,action=throttle"
EXEMPT = "topic=orders,bytes_in_rate=5MB,exempt-client-id=backfill,exempt-client-id=spark-*,exempt-user=alice"


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        meant("client-id=spark-etl,producer_byte_rate=5MB", Entity(None, "spark-etl"), {PRODUCER_BYTE_RATE: 5_000_000}),
        meant(
            'user="CN=etl,O=acme",consumer_byte_rate=20MB', Entity("CN=etl,O=acme"), {CONSUMER_BYTE_RATE: 20_000_000}
        ),
        meant(
            "client-id=<default>, user = alice , producer_byte_rate=1,consumer_byte_rate=2 KiB/s",
            Entity("alice", DEFAULT),
            {PRODUCER_BYTE_RATE: 1, CONSUMER_BYTE_RATE: 2048},
        ),
        meant('client-id="<default>",producer_byte_rate=1', Entity(None, "<default>"), {PRODUCER_BYTE_RATE: 1}),
        meant(r'user="the \"boss\" \\",producer_byte_rate=1', Entity('the "boss" \\'), {PRODUCER_BYTE_RATE: 1}),
        meant(
            "user=a,producer_byte_rate=1,mode=notify,algorithm=token-bucket,burst_seconds=0.1",
            Entity("a"),
            {PRODUCER_BYTE_RATE: 1},
            mode="notify",
            algorithm="token-bucket",
            burst_seconds=Fraction(1, 10),
        ),
        meant(
            "total,producer_byte_rate=1,consumer_byte_rate=2,request_cost=16KB",
            TOTAL,
            {PRODUCER_BYTE_RATE: 1, CONSUMER_BYTE_RATE: 2},
            request_cost=16_000,
        ),
        meant(
            "user=a,producer_byte_rate=1,request_cost=1MiB", Entity("a"), {PRODUCER_BYTE_RATE: 1}, request_cost=1 << 20
        ),
        meant("user=a=b,producer_byte_rate=1", Entity("a=b"), {PRODUCER_BYTE_RATE: 1}),
        meant(
            "user=a,request_rate=2.5/s,producer_ids_rate=100,algorithm=ewma",
            Entity("a"),
            {REQUEST_RATE: Fraction(5, 2), PRODUCER_IDS_RATE: 100},
            algorithm="ewma",
        ),
        meant(
            "ip=<default>,connection_creation_rate=20", Named(EntityKind.IP, DEFAULT), {CONNECTION_CREATION_RATE: 20}
        ),
        meant(
            "ip=10.0.0.1,connection_creation_rate=20/s,algorithm=token-bucket,burst_seconds=2",
            IP,
            {CONNECTION_CREATION_RATE: 20},
            algorithm="token-bucket",
            burst_seconds=Fraction(2),
        ),
        meant(THRESHOLDS, ORDERS, {MESSAGES_IN_RATE: Fraction(1, 2), BYTES_THRESHOLD: 1_048_576}, rejects=False),
        meant(
            "total,total.messages.in.per.sec.threshold=5,action=throttle",
            TOTAL,
            {TOTAL_MESSAGES_THRESHOLD: 5},
            rejects=False,
        ),
        meant("total=true,connections=5", TOTAL, {CONNECTIONS: 5}),
        meant("connections=5, total", TOTAL, {CONNECTIONS: 5}),
        meant("total=<default>,total.messages.in.per.sec.threshold=5/s", TOTAL, {TOTAL_MESSAGES_THRESHOLD: 5}),
        meant("listener=localhost:9092,connections=5", Named(EntityKind.LISTENER, "9092"), {CONNECTIONS: 5}),
        meant("ip=10.0.0.9,connections=0", Named(EntityKind.IP, "10.0.0.9"), {CONNECTIONS: 0}),
        meant(
            GROUP,
            Named(EntityKind.RESOURCE_GROUP, "etl"),
            {BYTES_IN_RATE: 50_000_000},
            group=ResourceGroup("etl", ("<default>",), ("spark-*", "flink-*"), ("a", "b")),
        ),
        meant(
            "client-id=etl,producer_byte_rate=unlimited,request_rate=5",
            Entity(None, "etl"),
            {REQUEST_RATE: 5},
            unlimited=(PRODUCER_BYTE_RATE,),
        ),
        meant("ip=10.0.0.1,connections=unlimited", IP, {}, unlimited=(CONNECTIONS,)),
        meant(EXEMPT, ORDERS, {BYTES_IN_RATE: 5_000_000}, exempt=Exemption(("alice",), ("backfill", "spark-*"))),
    ],
)
def test_understands(text: str, entry: QuotaEntry) -> None:
    assert parse_spec(text) == entry


def errors_of(text: str) -> str:
    with pytest.raises(InvalidValues) as caught:
        parse_spec(text)
    return str(caught.value)


def test_a_wrong_entry_reads_as_the_contract_shows() -> None:
    spec = "client-id=etl,producer_byte_rat=5MB"
    assert f"error: --quota '{spec}': {errors_of(spec)}" == (
        "error: --quota 'client-id=etl,producer_byte_rat=5MB': unknown key 'producer_byte_rat'\n"
        "  did you mean 'producer_byte_rate'?"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected key=value, found nothing to read"),
        ("client-id=a,producer_byte_rate=1,", "expected key=value, found a comma at the end"),
        ("client-id=a,,producer_byte_rate=1", "expected key=value, found two commas in a row"),
        ("client-id=a,5MB", "expected key=value, found '5MB'\n  for example producer_byte_rate=5MB; put a value"),
        ("=a", "expected key=value, found '=a'"),
        ('user="a,producer_byte_rate=1', "a double quote is missing in"),
        ('user=a"b",producer_byte_rate=1', "quotes go around the whole value"),
        ("client-id=a,client-id=b,producer_byte_rate=1", "'client-id' is given twice"),
        ("user=,producer_byte_rate=1", "Empty user not supported"),
        ("producer_byte_rate=1", f"Invalid empty client quota entity\n  give its scope; allowed: {ENTITIES}"),
        ("client-id=a", "no limit given\n  allowed: producer_byte_rate, consumer_byte_rate"),
        ("user=CN=a,O=acme,producer_byte_rate=1", "unknown key 'O'\n  put a value with a comma in double quotes;"),
        ("client-id=a,producer_byte_rate=0", "Quota producer_byte_rate must be greater than 0"),
        ("client-id=a,producer_byte_rate=1e30", "Proposed value for producer_byte_rate is too large for a LONG."),
        ("client-id=a,producer_byte_rate=0.5", "producer_byte_rate cannot be a fractional value."),
        ("client-id=a,producer_byte_rate=lots", "expected a rate per second"),
        ("client-id=a,producer_byte_rate=1,mode=notfy", "unknown mode 'notfy'\n  did you mean 'notify'?"),
        ("client-id=a,producer_byte_rate=1,algorithm=emwa", "unknown algorithm 'emwa'\n  did you mean 'ewma'?"),
        ("client-id=a,producer_byte_rate=1,burst_seconds=0", "burst_seconds must be greater than 0"),
        ("client-id=a,producer_byte_rate=1,burst_seconds=3601", "greater than 0 and at most 3600, not 3601"),
        ("client-id=a,producer_byte_rate=1,burst_seconds=1s", "expected a number, not '1s'\n  seconds of the rate"),
        ("client-id=a,producer_byte_rate=1,request_cost=0", "a whole number of bytes from 1 to 1048576, not 0"),
        ("client-id=a,producer_byte_rate=1,request_cost=2MB", "a whole number of bytes from 1 to 1048576, not 2MB"),
        ("client-id=a,producer_byte_rate=1,request_cost=16Kb", "expected a number of bytes such as 16KB, not '16Kb'"),
        ("client-id=a,consumer_byte_rate=1,request_cost=1", "request_cost has no effect on consumer_byte_rate\n  it "),
        (
            "client-id=a,request_percentage=50",
            "a proxy cannot measure; use request_rate, which counts requests\n  allowed: " + OF_CLIENTS,
        ),
        ("ip=1.2.3.4,connectons=1", "did you mean 'connections'? allowed: connection_creation_rate, connections, ip, "),
        ("client-id=a,no_such=1", "; allowed: producer_byte_rate, consumer_byte_rate, request_rate, "
         "controller_mutation_rate, user, client-id, mode, action and 4 more"),
        ("usr=a,producer_byte_rate=1", "unknown key 'usr'\n  did you mean 'user'?"),
        ("client-id=a;producer_byte_rate=1", "'producer_byte_rate' is in the value of 'client-id'\n  put a comma"),
        ("listner=9092,connections=1,listener=9092", "unknown key 'listner'\n  did you mean 'listener'?"),
        ("client-id=a,connections=5", "Invalid configuration key connections\n  it is a limit of ip, listener or"),
        ("ip=1.2.3.4,request_rate=5", "it is a limit of user, client-id, resource-group or total; allowed: connection"),
        ("user=a,client-id=b,producer_ids_rate=5", "it is a limit of user without client-id; allowed: " + OF_CLIENTS),
        (
            "resource-group=g,topic=a,consumer_byte_rate=5",
            "Invalid configuration key consumer_byte_rate\n"
            "  a group with only topics has no clients: use bytes_in_rate; allowed: bytes_in_rate, messages_in_rate",
        ),
        ("resource-group=g,topic=a,connections=5", "it is a limit of ip, listener or total; allowed: bytes_in_rate,"),
        ("user=a,request_rate=1e-7", "request_rate must be from 0.000001 to 9223372036854775807"),
        ("user=a,request_rate=5MB", "expected a number per second without a unit, not '5MB': this limit"),
        ("ip=1.2.3.4,connection_creation_rate=2147483648", "connection_creation_rate is too large for an INT."),
        ("ip=1.2.3.4,connection_creation_rate=1.5", "connection_creation_rate cannot be a fractional value."),
        ("ip=1.2.3.4,connections=5/s", "expected a number, not '5/s'"),
        (
            "ip=1.2.3.4,user=a,connections=1",
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
        ("topic=a,total,bytes_in_rate=1", "Invalid quota entity combination, topic and total\n  each needs its own"),
        ("resource-group=g,user=a,ip=1.2.3.4,request_rate=1", "combination, user and ip and resource-group"),
        ("resource-group=g,request_rate=1", "a resource group without members"),
        ("resource-group=,user=a,request_rate=1", "a resource-group needs a name"),
        ("resource-group=<default>,user=a,request_rate=1", "there is no default resource-group"),
        ("resource-group=g,resource-group=h,user=a,request_rate=1", "'resource-group' is given twice"),
        ("resource-group=g,user=<default>,request_rate=1", "<default> cannot be a member of a group\n  user=* matches"),
        ("resource-group=g,user=a*b,request_rate=1", "* is allowed only at the end, not as in 'a*b'"),
        ("topic=a,topic=b,bytes_in_rate=1", "'topic' is given twice\n  each needs its own entry, or all of them"),
        ("ip=,connections=1", "Empty ip not supported\n  <default> matches every name without its own entry"),
        ("ip=node-1,connections=1", "node-1 is not a valid IP or resolvable host."),
        ("listener=0,connections=1", "expected bootstrap, a port, HOST:PORT or <default>, not '0'"),
        ("topic=orders-*,bytes_in_rate=1", "a prefix with * is only allowed in a resource-group"),
        (
            "topic=<default>,bytes.in.per.sec.threshold=1",
            "bytes.in.per.sec.threshold needs the name of a topic, not <default>\n  topics without a threshold share",
        ),
        ("user=a,producer_ids_rate=5,algorithm=ewma", "algorithm has no effect on producer_ids_rate"),
        ("ip=1.2.3.4,connections=5,burst_seconds=1", "burst_seconds has no effect on connections"),
        ("ip=1.2.3.4,connections=5,scope=process", "scope has no effect on connections\n  such limits always"),
        ("user=a,request_rate=5,action=throttle", "action has no effect on request_rate\n  it is for bytes_in_rate, "),
        ("topic=a,bytes_in_rate=5,action=hold", "unknown action 'hold'\n  allowed: throttle, reject"),
        ("total,bytes_in_rate=5,action=reject", "action=reject refuses records by their topic\n  it applies to"),
        ("ip=1.2.3.4,connections=5,mode=auto", "mode has no effect on connections"),
        (
            "user=a,request_rate=5,burst_seconds=1,algorithm=ewma",
            "burst_seconds is the size of a token bucket, and ewma has none",
        ),
        ("total,producer_byte_rate=unlimited", "producer_byte_rate of a total lifts no other limit\n  leave it out"),
        ("resource-group=g,user=a,request_rate=unlimited", "request_rate of a resource-group lifts no other limit"),
        ("topic=a,bytes.in.per.sec.threshold=unlimited", "cannot be unlimited\n  a topic without a threshold"),
        ("client-id=a,producer_byte_rate=5,exempt-user=b", "exempt-user has no effect here\n  it applies to topic, "),
        ("total,connections=5,exempt-user=b", "no limit here could hold a client\n  a connection has no client"),
        ("topic=a,bytes_in_rate=unlimited,exempt-user=b", "no limit here could hold a client"),
        ("client-id=a,request_rate=unlimited,mode=pause", "mode has no effect on limits that are all unlimited"),
        ("client-id=a,request_rate=unlimited,algorithm=ewma", "algorithm has no effect on limits that are all"),
        ("client-id=a,request_rate=unlimited,burst_seconds=5", "burst_seconds has no effect on limits that are all"),
        ("topic=a,bytes_in_rate=unlimited,action=reject", "action has no effect on limits that are all unlimited"),
        ("topic=a,exempt-user=b,bytes_in_rate=5,exempt-client-id=<default>", "<default> cannot be an exempt client"),
        ("topic=a,bytes_in_rate=5,exempt-user=a*b", "* is allowed only at the end, not as in 'a*b'"),
        ("topic=a,bytes_in_rate=5,exempt-usr=b", "unknown key 'exempt-usr'\n  did you mean 'exempt-user'?"),
        ("topic=a,exempt-user=b", "no limit given"),
        ("total,connection_creation_rate=5,burst_seconds=1", "worth passes at once: for another burst add "),
    ],
)  # fmt: skip
def test_a_wrong_spec_has_one_error(text: str, says: str) -> None:
    with pytest.raises(InvalidValues) as caught:
        parse_spec(text)
    assert says in str(caught.value)
    assert len(caught.value.problems) == 1


@pytest.mark.parametrize(
    "flags",
    [
        "--entity-type clients --entity-name etl --add-config producer_byte_rate=1000000,request_rate=5",
        "--entity-type=ips --entity-name=10.0.0.1",
        "--alter --client-defaults --add-config consumer_byte_rate=1",
    ],
)
def test_flags_of_kafka_configs_are_recognised(flags: str) -> None:
    assert errors_of(flags).startswith("expected key=value, found flags of kafka-configs.sh\n  write client-id=NAME")


CLIENTS = {"user=a", "client-id=a", "user=a,client-id=b", "client-id=<default>", "resource-group=g,user=a", "total"}
RECORDS = {"topic=a", "topic=<default>", "resource-group=g,topic=a", "resource-group=g,user=a", "total"}
PLACES = {"ip=1.2.3.4", "ip=<default>", "listener=bootstrap", "listener=<default>", "total"}
WHOSE = {
    "producer_byte_rate": CLIENTS,
    "consumer_byte_rate": CLIENTS,
    "request_rate": CLIENTS,
    "controller_mutation_rate": CLIENTS,
    "producer_ids_rate": {"user=a"},
    "bytes_in_rate": RECORDS,
    "messages_in_rate": RECORDS,
    "bytes.in.per.sec.threshold": {"topic=a"},
    "messages.in.per.sec.threshold": {"topic=a"},
    "total.bytes.in.per.sec.threshold": {"total"},
    "total.messages.in.per.sec.threshold": {"total"},
    "connection_creation_rate": PLACES,
    "connections": PLACES,
}


@pytest.mark.parametrize("limit", WHOSE)
@pytest.mark.parametrize("entity", sorted(CLIENTS | RECORDS | PLACES))
def test_each_limit_has_its_scopes(limit: str, entity: str) -> None:
    try:
        accepted = set(parse_spec(f"{entity},{limit}=5").limits) == {limit}
    except InvalidValues:
        accepted = False
    assert accepted == (entity in WHOSE[limit])


def test_a_rate_in_place_of_a_name_gets_advice() -> None:
    assert errors_of("total=5MB").startswith(
        "expected total=true, not '5MB'\n"
        "  the total has no name: write total=true, and its limits as separate keys, "
        "as in total=true,producer_byte_rate=5MB"
    )
    assert "as in" not in errors_of("total=yes")


@pytest.mark.parametrize(
    ("found", "entity"),
    [
        (["::1", "10.0.0.7"], Named(EntityKind.IP, "::1")),
        (["nonsense", "::ffff:10.0.0.7"], Named(EntityKind.IP, "10.0.0.7")),
    ],
)
def test_a_host_name_stands_for_its_first_address(found: list[str], entity: AnyEntity) -> None:
    asked = []

    def resolve(name: str) -> list[str]:
        asked.append(name)
        return found

    assert parse_spec("ip=node-1,connections=1", resolve).entity == entity
    assert asked == ["node-1"]
    assert parse_spec("ip=10.0.0.1,connections=1", resolve).entity == Named(EntityKind.IP, "10.0.0.1")
    assert asked == ["node-1"], "an address needs no look-up"


@given(st.text())
def test_any_text_is_understood_or_refused(text: str) -> None:
    found: tuple[Problem, ...] = ()
    try:
        entry = parse_spec(text)
    except InvalidValues as errors:
        found = errors.problems
    assert found or entry.limits
    assert all(error.place == "" and error.message for error in found)


@given(st.text(min_size=1), st.integers(1, 1 << 62), st.integers(1, 1 << 62))
def test_any_name_can_be_quoted_in_a_spec_and_in_a_file(name: str, produce: int, fetch: int) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    entry = QuotaEntry(Entity(name), {PRODUCER_BYTE_RATE: produce, CONSUMER_BYTE_RATE: fetch})
    assert parse_spec(f'user="{quoted}",producer_byte_rate={produce},consumer_byte_rate={fetch}B/s') == entry
    in_file = f'"{name}"' if name == "<default>" or slip_in(name) else name
    table = {"user": in_file, PRODUCER_BYTE_RATE: produce, CONSUMER_BYTE_RATE: f"{fetch}"}
    if name != '"<default>"':
        (placed,) = load_quotas({"quota": [table]}).placed
        assert placed.entry == entry
