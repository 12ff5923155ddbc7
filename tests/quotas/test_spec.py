"""SPEC and the quotas file: what is understood, and that every error is named with its place and the way out."""

import tomllib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import DEFAULT, Entity
from quotas.entry import CONSUMER_BYTE_RATE, PRODUCER_BYTE_RATE, QuotaEntry
from quotas.registry import Registry
from quotas.spec import SpecError, SpecErrors, duplicates, load_quotas, parse_spec

KEYS = "producer_byte_rate, consumer_byte_rate, user, client-id, mode, algorithm, burst_seconds"


@pytest.mark.parametrize(
    ("text", "entry"),
    [
        (
            "client-id=spark-etl,producer_byte_rate=5MB",
            QuotaEntry(Entity(None, "spark-etl"), {PRODUCER_BYTE_RATE: 5_000_000}),
        ),
        (
            'user="CN=etl,O=acme",consumer_byte_rate=20MB',
            QuotaEntry(Entity("CN=etl,O=acme"), {CONSUMER_BYTE_RATE: 20_000_000}),
        ),
        (
            "client-id=<default>, user = alice , producer_byte_rate=1,consumer_byte_rate=2 KiB/s",
            QuotaEntry(Entity("alice", DEFAULT), {PRODUCER_BYTE_RATE: 1, CONSUMER_BYTE_RATE: 2048}),
        ),
        ('client-id="<default>",producer_byte_rate=1', QuotaEntry(Entity(None, "<default>"), {PRODUCER_BYTE_RATE: 1})),
        (
            r'user="the \"boss\" \\",producer_byte_rate=1',
            QuotaEntry(Entity(r'the "boss" \ '[:-1]), {PRODUCER_BYTE_RATE: 1}),
        ),
        (
            "user=a,producer_byte_rate=1,mode=notify,algorithm=token-bucket,burst_seconds=0.1",
            QuotaEntry(Entity("a"), {PRODUCER_BYTE_RATE: 1}, "notify", "token-bucket", Fraction(1, 10)),
        ),
        ("user=a=b,producer_byte_rate=1", QuotaEntry(Entity("a=b"), {PRODUCER_BYTE_RATE: 1})),
    ],
)
def test_understands(text: str, entry: QuotaEntry) -> None:
    assert parse_spec(text) == entry


def errors_of(text: str) -> str:
    with pytest.raises(SpecErrors) as caught:
        parse_spec(text)
    return str(caught.value)


def test_a_wrong_entry_reads_as_the_contract_shows() -> None:
    spec = "client-id=etl,producer_byte_rat=5MB"
    assert f"error: --quota '{spec}': {errors_of(spec)}" == (
        "error: --quota 'client-id=etl,producer_byte_rat=5MB': unknown limit 'producer_byte_rat'\n"
        f"  did you mean 'producer_byte_rate'? allowed: {KEYS}"
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "expected key=value, found nothing to read"),
        ("   ", "expected key=value, found nothing to read"),
        ("client-id=a,producer_byte_rate=1,", "expected key=value, found a comma at the end"),
        ("client-id=a,,producer_byte_rate=1", "expected key=value, found two commas in a row"),
        ("client-id=a,5MB", "expected key=value, found '5MB'\n  a value with a comma stands in double quotes"),
        ("=a", "expected key=value, found '=a'"),
        ('user="a,producer_byte_rate=1', "a double quote is missing in"),
        ('user=a"b",producer_byte_rate=1', "quotes go around the whole value"),
        ('user="a"b,producer_byte_rate=1', "quotes go around the whole value"),
        ("client-id=a,client-id=b,producer_byte_rate=1", "'client-id' is given twice"),
        ("user=,producer_byte_rate=1", "Empty user not supported"),
        ("producer_byte_rate=1", "Invalid empty client quota entity\n  say whom it is for; allowed: user, client-id"),
        ("client-id=a", "no limit given\n  allowed: producer_byte_rate, consumer_byte_rate"),
        ("user=CN=a,O=acme,producer_byte_rate=1", "unknown limit 'O'\n  a value with a comma stands in double quotes;"),
        ("client-id=a,producer_byte_rate=0", "Quota producer_byte_rate must be greater than 0"),
        ("client-id=a,producer_byte_rate=1e30", "Proposed value for producer_byte_rate is too large for a LONG."),
        ("client-id=a,producer_byte_rate=0.5", "producer_byte_rate cannot be a fractional value."),
        ("client-id=a,producer_byte_rate=lots", "expected a rate per second"),
        ("client-id=a,producer_byte_rate=5Mb", "unknown unit 'Mb'\n  did you mean 'MB'? allowed: B, kB, MB"),
        ("client-id=a,producer_byte_rate=1,mode=notfy", "unknown mode 'notfy'\n  did you mean 'notify'?"),
        ("client-id=a,producer_byte_rate=1,mode=pause", "mode 'pause' is not available in this version"),
        ("client-id=a,producer_byte_rate=1,algorithm=ewma", "algorithm 'ewma' is not available in this version"),
        ("client-id=a,producer_byte_rate=1,algorithm=leaky", "unknown algorithm 'leaky'\n  allowed: token-bucket"),
        ("client-id=a,producer_byte_rate=1,burst_seconds=0", "burst_seconds must be greater than 0"),
        ("client-id=a,producer_byte_rate=1,burst_seconds=3601", "greater than 0 and at most 3600, not 3601"),
        ("client-id=a,producer_byte_rate=1,burst_seconds=1s", "expected a number, not '1s'\n  seconds of the rate"),
        ("client-id=a,request_percentage=50", "request_rate, which counts requests"),
    ],
)  # fmt: skip
def test_says_what_is_wrong_and_only_that(text: str, says: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        parse_spec(text)
    assert says in str(caught.value)
    assert len(caught.value.errors) == 1


@pytest.mark.parametrize("key", ["ip", "topic", "resource-group", "listener", "total"])
def test_an_entity_of_a_later_version_is_refused_by_name(key: str) -> None:
    assert errors_of(f"{key}=x,producer_byte_rate=1").startswith(
        f"{key!r} is not available in this version\n  allowed:"
    )


@pytest.mark.parametrize(
    "key",
    [
        "request_rate",
        "controller_mutation_rate",
        "connection_creation_rate",
        "connections",
        "producer_ids_rate",
        "bytes_in_rate",
        "messages_in_rate",
    ],
)
def test_a_limit_of_a_later_version_is_never_accepted_in_silence(key: str) -> None:
    assert errors_of(f"client-id=a,{key}=5") == f"{key!r} is not available in this version\n  allowed: {KEYS}"


def test_all_errors_of_a_spec_are_found() -> None:
    assert errors_of("client-id=,producer_byte_rate=-1,mode=x").splitlines() == [
        "Empty client-id not supported",
        "  <default> stands for everyone without one",
        "Quota producer_byte_rate must be greater than 0",
        "unknown mode 'x'",
        "  allowed: auto, notify",
    ]


@given(st.text())
def test_any_text_is_understood_or_refused(text: str) -> None:
    found: tuple[SpecError, ...] = ()
    try:
        entry = parse_spec(text)
    except SpecErrors as errors:
        found = errors.errors
    assert found or entry.limits
    assert all(error.place == "" and error.message for error in found)


@given(st.text(min_size=1), st.integers(1, 1 << 62), st.integers(1, 1 << 62))
def test_any_name_can_be_quoted_in_a_spec_and_in_a_file(name: str, produce: int, fetch: int) -> None:
    quoted = name.replace("\\", "\\\\").replace('"', '\\"')
    entry = QuotaEntry(Entity(name), {PRODUCER_BYTE_RATE: produce, CONSUMER_BYTE_RATE: fetch})
    assert parse_spec(f'user="{quoted}",producer_byte_rate={produce},consumer_byte_rate={fetch}B/s') == entry
    in_file = '"<default>"' if name == "<default>" else name
    table = {"user": in_file, PRODUCER_BYTE_RATE: produce, CONSUMER_BYTE_RATE: f"{fetch}"}
    if name != '"<default>"':
        assert load_quotas({"quota": [table]}) == [entry]


# ---- the file


def test_a_file_reads_as_the_contract_shows() -> None:
    entries = load_quotas(
        tomllib.loads("""
            [[quota]]
            user = "CN=etl,O=acme"
            client-id = "spark-etl"
            producer_byte_rate = "5MB"
            [[quota]]
            client-id = "<default>"
            consumer_byte_rate = 1000000
            burst_seconds = 0.5
            mode = "auto"
            [[quota]]
            client-id = '"<default>"'
            consumer_byte_rate = 1e6
            """)
    )
    assert entries == [
        QuotaEntry(Entity("CN=etl,O=acme", "spark-etl"), {PRODUCER_BYTE_RATE: 5_000_000}),
        QuotaEntry(Entity(None, DEFAULT), {CONSUMER_BYTE_RATE: 1_000_000}, mode="auto", burst_seconds=Fraction(1, 2)),
        QuotaEntry(Entity(None, "<default>"), {CONSUMER_BYTE_RATE: 1_000_000}),
    ]
    assert Registry(entries).resolve("CN=etl,O=acme", "spark-etl").produce.limits[0].rate == 5_000_000


def test_an_empty_file_holds_nobody() -> None:
    assert load_quotas({}) == []
    assert load_quotas({"quota": []}) == []


def test_every_error_of_a_file_is_found_with_its_place() -> None:
    with pytest.raises(SpecErrors) as caught:
        load_quotas(
            tomllib.loads("""
                quotas = 1
                [[quota]]
                client-id = "a"
                producer_byte_rate = 5
                [[quota]]
                client_id = "a"
                producer_byte_rate = 5.5
                [[quota]]
                client-id = "a"
                producer_byte_rat = 5
                mode = "delay"
                [[quota]]
                user = ["a", "b"]
                producer_byte_rate = true
                burst_seconds = "long"
                [[resource-group]]
                name = "etl"
                """)
        )
    assert [(error.place, error.message.split("\n")[0]) for error in caught.value.errors] == [
        ("quotas", "unknown key 'quotas'"),
        ("quota[1].client_id", "unknown limit 'client_id'"),
        ("quota[1].producer_byte_rate", "producer_byte_rate cannot be a fractional value."),
        ("quota[1]", "Invalid empty client quota entity"),
        ("quota[2].producer_byte_rat", "unknown limit 'producer_byte_rat'"),
        ("quota[2].mode", "mode 'delay' is not available in this version"),
        ("quota[3].user", "expected a name in quotes, not ['a', 'b']"),
        ("quota[3].producer_byte_rate", "expected a number, not True"),
        ("quota[3].burst_seconds", "expected a number, not 'long'"),
        ("quota[2]", "client-id:a has an entry already: quota[0]"),
        ("resource-group", "'resource-group' is not available in this version"),
    ]
    hints = {error.place: error.hint for error in caught.value.errors}
    assert hints["quota[1].client_id"] == f"did you mean 'client-id'? allowed: {KEYS}"
    assert hints["quotas"] == "did you mean 'quota'? allowed: quota"
    assert hints["quota[3].user"] is None


@pytest.mark.parametrize(
    ("data", "place", "says"),
    [
        ({"quota": {"client-id": "a"}}, "quota", "expected a list of tables\n  write [[quota]], with two brackets"),
        ({"quota": [5]}, "quota[0]", "expected a table, not 5"),
        ({"quota": [{"client-id": "a", "mode": 5, "producer_byte_rate": 1}]}, "quota[0].mode", "unknown mode 5"),
    ],
)
def test_a_file_of_another_shape_is_refused(data: dict[str, object], place: str, says: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        load_quotas(data)
    (error,) = caught.value.errors
    assert error.place == place
    assert f"{place}: {says}" in str(error)


def test_duplicates_are_found_wherever_the_entries_came_from() -> None:
    placed = [("--quota 'a'", Entity("a")), ("--quota 'b'", Entity("b")), ("--quota 'c'", Entity("a"))]
    (error,) = duplicates(placed)
    assert str(error) == (
        "--quota 'c': user:a has an entry already: --quota 'a'\n  put all limits of an entity into one entry"
    )


def test_an_error_without_a_hint_is_one_line() -> None:
    assert str(SpecError("quota[0]", "wrong")) == "quota[0]: wrong"
