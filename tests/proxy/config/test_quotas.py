"""Quotas of flags and file: every limit can be given both ways, and what is wrong with all of them together is said."""

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxy.config.cautions import Caution, warnings_of
from proxy.config.checks import summary_of
from proxy.config.exemptions import MAX_LISTED
from proxy.config.quotas_file import active_quotas
from quotas.entity import EntityKind
from quotas.limit_kinds import LIMIT_NAMES
from tests.proxy.command_line import UPSTREAM, config, errors

QuotasFile = Callable[[str], tuple[str, str]]


def quotas(*specs: str) -> tuple[str, ...]:
    return tuple(argument for spec in specs for argument in ("--quota", spec))


def cautions(arguments: tuple[str, ...]) -> list[Caution]:
    """The warnings of a command line."""
    found = config(*arguments)
    return warnings_of(found, active_quotas(found))


def active_limits(*arguments: str) -> dict[str, dict[str, float]]:
    """Limits by entity."""
    return {
        str(entry.entity): {name: float(rate) for name, rate in entry.limits.items()}
        for entry in active_quotas(config(*UPSTREAM, *arguments)).entries
    }


WANTED: dict[str, dict[str, float]] = {
    "user:a": {
        "producer_byte_rate": 1_000_000,
        "consumer_byte_rate": 2_000_000,
        "request_rate": 3.5,
        "controller_mutation_rate": 0.5,
        "producer_ids_rate": 5,
    },
    "topic:orders": {
        "bytes_in_rate": 6_000_000,
        "messages_in_rate": 7,
        "bytes.in.per.sec.threshold": 8,
        "messages.in.per.sec.threshold": 9,
    },
    "total": {
        "total.bytes.in.per.sec.threshold": 10,
        "total.messages.in.per.sec.threshold": 11,
        "connection_creation_rate": 12,
        "connections": 13,
    },
}


def test_every_limit_can_be_given_by_flag_variable_and_file(
    quotas_file: QuotasFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {name for limits in WANTED.values() for name in limits} == set(LIMIT_NAMES)
    specs, tables = [], []
    for entity, limits in WANTED.items():
        key, _, name = entity.partition(":")
        specs.append(",".join([f"{key}={name or 'true'}", *(f"{each}={rate}" for each, rate in limits.items())]))
        tables += ["[[quota]]", f'{key} = "{name}"' if name else f"{key} = true"]
        tables += [f'"{each}" = {rate}' for each, rate in limits.items()]
    assert active_limits(*quotas(*specs)) == WANTED
    assert active_limits(*quotas_file("\n".join(tables))) == WANTED
    monkeypatch.setenv("KAFKA_QUOTA_PROXY_QUOTA", ";".join(specs))
    assert active_limits() == WANTED


def test_limits_of_the_file_replace_those_of_the_same_name_and_entity(quotas_file: QuotasFile) -> None:
    flags = quotas(
        "user=a,producer_byte_rate=1,consumer_byte_rate=2,request_rate=unlimited,mode=delay",
        "ip=10.0.0.1,connections=3",
        "topic=<default>,bytes_in_rate=4",
    )
    in_file = quotas_file(
        "[[quota]]\nuser = 'a'\nconsumer_byte_rate = 20\nrequest_rate = 30\n"
        "[[quota]]\nip = '10.0.0.1'\nconnections = 'unlimited'\n"
        "[[quota]]\ntopic = '<default>'\nmessages_in_rate = 40\nalgorithm = 'ewma'\n"
    )
    found = active_quotas(config(*UPSTREAM, *flags, *in_file))
    assert {(str(entry.entity), *entry.limits.items(), entry.options.mode) for entry in found.entries} == {
        ("user:a", ("producer_byte_rate", 1), "delay"),
        ("user:a", ("consumer_byte_rate", 20), ("request_rate", 30), None),
        ("ip:10.0.0.1", None),
        ("topic:<default>", ("bytes_in_rate", 4), None),
        ("topic:<default>", ("messages_in_rate", 40), None),
    }
    of_a, _ = found.configured.clients.find("a", "")
    assert {name: (int(applies.rate), applies.source) for name, applies in of_a.items()} == {
        "producer_byte_rate": (1, "--quota"),
        "consumer_byte_rate": (20, in_file[1]),
        "request_rate": (30, in_file[1]),
    }
    of_topic = found.configured.find(EntityKind.TOPIC, "orders")
    assert {name: applies.options.algorithm for name, applies in of_topic.items()} == {
        "bytes_in_rate": None,
        "messages_in_rate": "ewma",
    }


# ---- the share
@pytest.mark.parametrize(
    ("flag", "key", "share"),
    [
        (("--quota-share", "0.5"), "", 0.5),
        ((), "quota_share = 0.25", 0.25),
        (("--quota-share", "0.5"), "quota_share = 1", 1.0),
        (("--quota-share", "0.5"), "quota_share = '0.025'", 0.025),
    ],
)
def test_the_share_of_the_file_takes_the_place_of_the_flags(
    quotas_file: QuotasFile, flag: tuple[str, ...], key: str, share: float
) -> None:
    in_file = quotas_file(f'{key}\n[[quota]]\nclient-id = "a"\nproducer_byte_rate = 1\n')
    found = active_quotas(config(*UPSTREAM, *flag, *in_file))
    assert (found.share, len(found.entries)) == (share, 1)


@pytest.mark.parametrize("value", ["0", "1.001", "nan", "true", "'1/'", "[0.5]"])
def test_a_wrong_share_in_the_file_is_refused_as_the_flag_is(quotas_file: QuotasFile, value: str) -> None:
    flag, path = quotas_file(f"quota_share = {value}\n[[quota]]\nclient-id = 'a'\n")
    share, no_limit = errors(*UPSTREAM, flag, path)
    (of_flag,) = errors(*UPSTREAM, "--quota-share", "1.001")
    assert share.startswith(f"error: {path}: quota_share = ")
    if not value.startswith(("[", "t")):  # which no flag can be
        assert share.rpartition("': ")[2].rpartition(": ")[2] == of_flag.rpartition(": ")[2]
    assert "no limit given" in no_limit, "with everything else that is wrong"


@pytest.mark.parametrize(("value", "expected"), [("true", True), ("false", False), ("'on'", True)])
@pytest.mark.parametrize("flag", [(), ("--dry-run",)])
def test_dry_run_of_the_file_takes_the_place_of_the_flag(
    quotas_file: QuotasFile, flag: tuple[str, ...], value: str, expected: bool
) -> None:
    assert active_quotas(config(*UPSTREAM, *flag)).dry_run == bool(flag)
    found = config(*UPSTREAM, *flag, *quotas_file(f"dry_run = {value}"))
    assert active_quotas(found).dry_run == expected
    assert summary_of(found, active_quotas(found)).endswith("; dry run") == expected


# ---- listeners
@pytest.mark.parametrize("listener", ["bootstrap", "9000", "localhost:9000"])
def test_the_listener_of_listen_has_one_name(listener: str) -> None:
    spec = f"listener={listener},connections=5"
    assert active_limits("--listen", "127.0.0.1:9000", *quotas(spec)) == {"listener:bootstrap": {"connections": 5}}


def test_two_names_of_one_listener_are_one_entity(quotas_file: QuotasFile) -> None:
    at_9000 = ("--listen", "127.0.0.1:9000")
    twice = "listener:bootstrap is given twice\n  put its limits into one entry"
    two = quotas("listener=bootstrap,connections=5", "listener=9000,connections=6")
    assert errors(*UPSTREAM, *at_9000, *two) == [f"error: --quota: {twice}"]
    table = "[[quota]]\nlistener = 9000\nconnections = 6\n"
    in_file = quotas_file(table)
    assert active_limits(*at_9000, *two[:2], *in_file) == {"listener:bootstrap": {"connections": 6}}
    quotas_file(table + table.replace("9000", "'bootstrap'"))
    assert errors(*UPSTREAM, *at_9000, *in_file) == [f"error: {in_file[1]}: quota[1]: {twice}: quota[0]"]


def test_a_port_that_this_proxy_does_not_listen_on(quotas_file: QuotasFile) -> None:
    ports = ("--broker-ports", "9100-9101", "--broker-port", "7=9200")
    fine = ("listener=9100,connections=1", "listener=9200,connections=1", "listener=<default>,connections=1")
    assert len(active_limits(*ports, *quotas(*fine))) == 3
    message = "listener:9102: this proxy does not listen on port 9102\n  allowed: bootstrap, <default>, 9100-9101, 9200"
    assert errors(*UPSTREAM, *ports, *quotas("listener=9102,connections=1")) == [f"error: --quota: {message}"]
    in_file = quotas_file("[[quota]]\nlistener = 9102\nconnections = 1\n")
    assert errors(*UPSTREAM, *ports, *in_file) == [f"error: {in_file[1]}: quota[0]: {message}"]


# ---- thresholds
TOTAL = "total,total.bytes.in.per.sec.threshold=10MB"
BEYOND = (
    "bytes.in.per.sec.threshold of all topics sums to 12000000, above total.bytes.in.per.sec.threshold=10000000: "
    "raise the total, or lower the thresholds of topics"
)


def topic_table(name: str, threshold: str) -> str:
    return f'[[quota]]\ntopic = "{name}"\nbytes.in.per.sec.threshold = "{threshold}"\n'


def test_thresholds_of_flags_and_file_count_together(quotas_file: QuotasFile) -> None:
    by_flag = quotas(TOTAL, "topic=a,bytes.in.per.sec.threshold=5MB")
    too_much = quotas_file(topic_table("b", "7MB"))
    assert errors(*UPSTREAM, *by_flag, *too_much) == [f"error: {too_much[1]}: {BEYOND}"]
    assert len(active_limits(*by_flag, *quotas_file(topic_table("b", "5MB")))) == 3


# ---- all at once
def test_what_is_wrong_with_all_together_is_said_beside_what_is_wrong_with_each(quotas_file: QuotasFile) -> None:
    flag, path = quotas_file(
        "quota_share = 2\n"
        + "[[quota]]\nlistener = 5555\nconnections = 5\n"
        + "[[quota]]\nlistener = 5556\nconnections = 'X'\n"
        + "[[quota]]\nuser = 'a'\nproducer_byte_rat = 1\n"
        + "[[quota]]\nuser = 'a'\nproducer_byte_rate = 1\n"
        + "[[quota]]\ntotal.bytes.in.per.sec.threshold = '10MB'\nconnections = 'X'\n"
        + topic_table("a", "5MB")
        + topic_table("b", "7MB")
    )
    twice = quotas("client-id=b,producer_byte_rate=1", "client-id=b,producer_byte_rate=2")
    found = [message.partition("\n")[0] for message in errors(*UPSTREAM, flag, path, *twice)]
    quota = f"error: {path}: quota"
    assert found == [
        f"error: {path}: quota_share = 2: expected a fraction above 0 and at most 1, such as 0.25 or 1/40",
        f"{quota}[1].connections: expected a number, not 'X'",
        f"{quota}[2].producer_byte_rat: unknown key 'producer_byte_rat'",
        f"{quota}[4].connections: expected a number, not 'X'",
        "error: --quota: client-id:b is given twice",
        f"{quota}[0]: listener:5555: this proxy does not listen on port 5555",
        f"{quota}[1]: listener:5556: this proxy does not listen on port 5556",
        f"{quota}[3]: user:a is given twice",
        f"error: {path}: {BEYOND}",
    ]


def test_a_file_that_cannot_be_read_hides_nothing_of_the_flags(quotas_file: QuotasFile) -> None:
    no_toml, twice = errors(*UPSTREAM, *quotas_file("[[quota]"), *quotas(*["client-id=b,producer_byte_rate=1"] * 2))
    assert "is not TOML" in no_toml
    assert "--quota: client-id:b is given twice" in twice


@pytest.mark.parametrize(
    "wrong",
    [
        "[[quota]]\ntotal.bytes.in.per.sec.threshold = '10XB'\n",
        "[[quota]]\ntotals = true\n'total.bytes.in.per.sec.threshold' = '20MB'\n",
        "[quotas]\n",
    ],
)
def test_a_sum_that_an_entry_may_put_right_once_it_is_right_itself_is_not_said(
    quotas_file: QuotasFile, wrong: str
) -> None:
    by_flag = quotas(TOTAL, "topic=c,bytes.in.per.sec.threshold=7MB")
    found = errors(*UPSTREAM, *by_flag, *quotas_file(topic_table("a", "5MB") + wrong))
    assert found
    assert not [message for message in found if "sums to" in message]


LOGIN = "sasl.mechanism=PLAIN\nsasl.username=proxy\nsasl.password=x\n"


# ---- what is allowed but likely not meant
def test_a_limit_too_low_for_one_producer_is_warned_about() -> None:
    """The active rate is the rate times the share."""
    low = quotas("client-id=a,producer_byte_rate=349000", "topic=b,bytes_in_rate=1MB", "user=c,consumer_byte_rate=1")
    ((name, told),) = cautions((*UPSTREAM, *low))
    assert (name, told["entities"]) == ("quota_below_floor", "client-id:a producer_byte_rate=349000")
    ((_, told),) = cautions((*UPSTREAM, *low, "--quota-share", "0.25"))
    assert told["entities"] == "client-id:a producer_byte_rate=87250, topic:b bytes_in_rate=250000"


def test_limits_that_processes_with_one_port_do_not_share() -> None:
    shared = (*UPSTREAM, "--reuse-port", *quotas("client-id=a,request_rate=5", "ip=10.0.0.1,connections=5"))
    [(name, told)] = cautions(shared)
    assert (name, told["entities"]) == ("limits_not_shared", "client-id:a")
    assert cautions((*shared, "--fleet", "etl")) == []
    assert cautions((*UPSTREAM, "--reuse-port", *quotas("client-id=a,request_rate=5,scope=process"))) == []


def test_a_burst_that_no_bucket_has_is_warned_about() -> None:
    specs = quotas("client-id=a,request_rate=1,burst_seconds=2")
    by_entry = quotas("client-id=b,request_rate=1,burst_seconds=2,algorithm=token-bucket")
    assert cautions((*UPSTREAM, *specs)) == []
    ((name, told),) = cautions((*UPSTREAM, *specs, *by_entry, "--quota-algorithm", "ewma"))
    assert (name, told["entities"]) == ("burst_without_bucket", "client-id:a")


@pytest.mark.parametrize(
    ("spec", "flags", "warned"),
    [
        ("client-id=spark-etl,request_rate=1", ("--client-id", "etl"), ["--client-id etl"]),
        ("client-id=etl,request_rate=1", ("--client-id", "etl"), []),
        ("client-id=<default>,request_rate=1", ("--client-id", "etl"), []),
        ("client-id=spark-etl,request_rate=1", (), []),
        ("user=bob,request_rate=1", ("--principal", "alice"), ["--principal alice"]),
        ("user=alice,request_rate=1", ("--principal", "alice"), []),
        ("user=alice,client-id=b,request_rate=1", ("--principal", "alice", "--client-id", "a"), ["--client-id a"]),
        ("topic=a,bytes_in_rate=1GB", ("--client-id", "etl"), []),
        ("resource-group=g,client-id=spark-*,request_rate=1", ("--client-id", "etl"), []),
    ],
)
def test_an_entry_that_applies_to_no_client_is_warned_about(
    spec: str, flags: tuple[str, ...], warned: list[str]
) -> None:
    found = cautions((*UPSTREAM, *quotas(spec), *flags))
    assert [fields["flag"] for name, fields in found if name == "quota_never_matches"] == warned
    for name, fields in found:
        assert name == "quota_never_matches"
        assert fields["entities"] in {"user:alice,client-id:b", "user:bob", "client-id:spark-etl"}


def test_entries_that_apply_to_no_client_are_listed_up_to_a_bound() -> None:
    specs = quotas(*(f"client-id=c{number},request_rate=1" for number in range(MAX_LISTED + 3)))
    found = cautions((*UPSTREAM, *specs, "--client-id", "etl"))
    assert str(dict(found)["quota_never_matches"]["entities"]).endswith(f"client-id:c{MAX_LISTED - 1} and 3 more")


def test_names_that_look_like_patterns_are_warned_about() -> None:
    names = ["client-id=spark-*", "user=User:alice", "user=<Default>", "user=<default>", "user=a,client-id=<DEFAULT>"]
    names += ["client-id=default", 'client-id="<default>"']
    specs = quotas(*(f"{name},request_rate=1" for name in names), "resource-group=g,client-id=spark-*,request_rate=1")
    fields = dict(cautions((*UPSTREAM, "--principal", "a", *specs)))["quota_name_is_literal"]
    assert fields["entities"] == (
        'client-id:spark-*, user:User:alice, user:"<Default>", user:a,client-id:"<DEFAULT>", client-id:default'
    )
    assert "resource-group" in str(fields["hint"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("security.protocol=PLAINTEXT\n", "security.protocol=PLAINTEXT in {}: clients cannot log in"),
        (f"security.protocol=SASL_PLAINTEXT\n{LOGIN}", "the login in {}"),
        ("security.protocol=SASL_PLAINTEXT\n", None),
    ],
)
def test_users_where_no_client_can_log_in(tmp_path: Path, text: str, why: str | None) -> None:
    """Each is then the user of the proxy's own login, or ANONYMOUS."""
    file = tmp_path / "client.properties"
    file.write_text(text)
    file.chmod(0o600)
    specs = quotas(*(f"user={name},request_rate=1" for name in ("etl", "proxy", "ANONYMOUS", "<default>")))
    found = [fields for _, fields in cautions((*UPSTREAM, "--command-config", str(file), *specs))]
    if why is None:
        assert found == []
    else:
        [fields] = found
        assert (fields["flag"], "user:etl" in str(fields["entities"])) == (why.format(file), True)
        assert str(fields["entities"]).count("user:") == 2


@pytest.mark.parametrize(("uid", "read_only", "is_warned"), [(0, 0, True), (0, 1, False), (4711, 0, False)])
def test_a_secret_that_this_user_cannot_change_is_not_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uid: int, read_only: int, is_warned: bool
) -> None:
    """A pod finds its Secret mounted read-only, with the mode of its chart."""
    file = tmp_path / "client.properties"
    file.write_text(f"security.protocol=SASL_PLAINTEXT\n{LOGIN}")
    file.chmod(0o444)
    at = (*UPSTREAM, "--command-config", str(file))
    monkeypatch.setattr("os.geteuid", lambda: uid)
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(f_flag=read_only * os.ST_RDONLY))
    assert [name for name, _ in cautions(at)] == ["secret_readable"] * is_warned


def test_thresholds_warn_of_long_holds() -> None:
    ((name, told),) = cautions((*UPSTREAM, *quotas("total=true,total.bytes.in.per.sec.threshold=50MB")))
    assert (name, "140 s" in str(told["effect"])) == ("thresholds_hold_for_long", True)
