"""What a user may write for one value, and what is said when it is something else."""

from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.addresses import format_address
from proxy.config.values import (
    INT32_MAX,
    SMALLEST_FRACTION,
    parse_address,
    parse_addresses,
    parse_disk_marks,
    parse_duration,
    parse_exempt,
    parse_fraction,
    parse_host,
    parse_name,
    parse_node_port,
    parse_port_range,
    parse_size,
    parse_switch,
    split_specs,
    whole_number,
)
from quotas.algorithms.token_bucket import TokenBucket
from quotas.exemption import Exemption
from quotas.problems import InvalidValue
from quotas.rates import SMALLEST_RATE, exact


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("broker-1:9092", ("broker-1", 9092)),
        (" 127.0.0.1:1 ", ("127.0.0.1", 1)),
        ("[::1]:65535", ("::1", 65535)),
        ("[fe80::1%eth0]:9092", ("fe80::1%eth0", 9092)),
        ("kafka.example.com.:9092", ("kafka.example.com.", 9092)),
        ("my_broker.example:9092", ("my_broker.example", 9092)),
        ("b\u00fccher.example:9092", ("b\u00fccher.example", 9092)),
        (f"{'a' * 63}.example:9092", (f"{'a' * 63}.example", 9092)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address
    assert parse_address(format_address(address)) == address


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("foo", "the port is missing"),
        ("", None),
        (":9092", "the host is missing"),
        ("foo:", "the port is a number from 1 to 65535, not ''"),
        ("foo:65536", "the port is a number from 1 to 65535, not '65536'"),
        ("foo:0", "the port is a number from 1 to 65535, not '0'"),
        ("foo:٣", "the port is a number from 1 to 65535, not '٣'"),
        ("foo:" + "9" * 5000, None),
        ("::1:9092", "put an IPv6 address in brackets, as in [::1]:19092"),
        ("[::1]", "the port is missing"),
        ("[foo]:9092", "brackets are for IPv6 addresses only, as in [::1]:19092"),
        ("25192", "the host is missing: 127.0.0.1:25192"),
        ("off", "it cannot be switched off: 127.0.0.1:0 is any free port, for this host only"),
        ("kafka://foo:9092", "write foo:9092, without a scheme and a path"),
        ("a,b:9092", "'a,b' is not a host name or IP address"),
        ("fo o:9092", "'fo o' is not a host name or IP address"),
        (f"{64 * 'a'}.test:1", f"'{64 * 'a'}.test': each part of a name between two dots has 1 to 63 characters"),
        ("kafka..example:9092", "'kafka..example': each part of a name between two dots has 1 to 63 characters"),
    ],
)
def test_what_is_no_address(text: str, hint: str | None) -> None:
    with pytest.raises(InvalidValue) as raised:
        parse_address(text)
    assert raised.value.message == "expected HOST:PORT"
    if hint is not None:
        assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("parse", "good", "wrong", "message"),
    [
        (
            parse_host,
            {"proxy.svc": "proxy.svc", "[::1]": "::1", "::1": "::1"},
            ["proxy:9092", "", "a b", "http://proxy", 5],
            "HOST",
        ),
        (
            parse_port_range,
            {"19093-19112": range(19093, 19113), "7-7": range(7, 8), "0": range(0), 0: range(0)},
            ["9000", "0-5", "5-", "-5", "a-b", "65000-65536", 9000, True, None, "1-2-3"],
            "FIRST-LAST",
        ),
        (
            parse_node_port,
            {"7=19200": (7, 19200)},
            ["7", "7=", "=7", "a=1", "-1=5", "7=0", "7=65536", f"{INT32_MAX + 1}=5", 7],
            "NODE=PORT",
        ),
        (
            parse_duration,
            {"20s": 20, "500ms": 0.5, "2m": 120, "1h": 3600, "15": 15, "1.5 s": 1.5, "0": 0, 20: 20, 0.25: 0.25},
            ["", "s", "-1s", "20 parsecs", "25h", "1e3s", "inf", True, None, [20], "9" * 400],
            "expected a duration such as 20s, 500ms or 2m",
        ),
        (
            parse_size,
            {"104857600": 104_857_600, "100MiB": 104_857_600, "1.5 kB": 1500, "1gib": 2**30, INT32_MAX: INT32_MAX},
            ["0", "-1", "2GiB", "1.5", "100 furlongs", "", False, None, {}],
            "expected a size such as 104857600, 100MB or 256MiB",
        ),
        (
            parse_fraction,
            {"0.25": 0.25, 0.25: 0.25, "1": 1, 1: 1, "1/40": 0.025, "2 / 8": 0.25},
            ["0", "1.01", "-0.5", "1/", "/2", "1/0", "3/2", "1/2/3", "nan", "inf", "half", "", True, None],
            "expected a fraction above 0 and at most 1",
        ),
        (
            whole_number(1, 10),
            {"10": 10, 10: 10},
            ["0", "11", 0, 11, "1.0", 1.0, "", "ten", True, None],
            "expected a whole number from 1 to 10",
        ),
        (
            parse_switch,
            dict.fromkeys(["true", "1", "on", "YES", True], True) | dict.fromkeys(["false", "off", "No", False], False),
            ["maybe", "2", None, []],
            "expected true or false",
        ),
        (
            partial(parse_duration, lowest=0.001, highest=600),
            {"1": 1, "1ms": 0.001, 0.5: 0.5, "10m": 600},
            ["0", "0.0009", "601"],
            "from 0.001s to 600s",
        ),
        (parse_name, {"CN=etl,O=acme": "CN=etl,O=acme"}, ["", "  ", "a\nb", 5], "expected a name"),
    ],
)
def test_value(
    parse: Callable[[object], object], good: dict[object, object], wrong: list[object], message: str
) -> None:
    assert {text: parse(text) for text in good} == good
    for text in wrong:
        with pytest.raises(InvalidValue, match=message):
            parse(text)


def test_the_smallest_share_of_the_smallest_rate_makes_a_wait_that_can_be_told() -> None:
    with pytest.raises(InvalidValue) as refused:
        parse_fraction(5e-324)
    assert refused.value.hint == "at least 0.000001"
    assert parse_fraction("0.000001") == SMALLEST_FRACTION
    bucket = TokenBucket(SMALLEST_RATE * exact(SMALLEST_FRACTION))
    assert bucket.record(2**31, 0) / 1e9 == pytest.approx(2**31 * 1e12)


@pytest.mark.parametrize(
    ("text", "soft", "hard", "is_free"),
    [
        ("85%..95%", Fraction(85, 100), Fraction(95, 100), False),
        (" 99.5 % .. 100% ", Fraction(995, 1000), 1, False),
        ("50GB..20GB", 50 * 10**9, 20 * 10**9, True),
        ("1TiB..1TB", 2**40, 10**12, True),
    ],
)
def test_marks_of_disks_are_used_shares_or_free_bytes(text: str, soft: object, hard: object, is_free: bool) -> None:
    marks = parse_disk_marks(text)
    assert (marks.soft, marks.hard, marks.is_free, str(marks)) == (soft, hard, is_free, text.strip())


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("95%..85%", "SOFT is above 0% and below HARD"),
        ("90%..90%", "SOFT is above 0% and below HARD"),
        ("-5%..90%", "SOFT is above 0% and below HARD"),
        ("85%..105%", "percentages go up to 100%"),
        ("85%..20GB", "both marks are used shares, or both are free bytes"),
        ("85..95", "a mark has % or a unit of bytes"),
        ("0.85..0.95", "a mark has % or a unit of bytes"),
        ("20GB..50GB", "with free bytes, SOFT is more than HARD, which is above 0"),
        ("50XB..20GB", "unknown unit 'XB'; allowed: GB, TB, GiB, TiB"),
        ("85%-95%", "two marks, with .. between them"),
        ("85%..90%..95%", "two marks, with .. between them"),
        ("..95%", "two marks, with .. between them"),
        ("x%..95%", None),
        ("GB..20GB", None),
        (0.9, None),
    ],
)
def test_wrong_marks_are_refused_in_one_line(value: object, hint: str | None) -> None:
    with pytest.raises(InvalidValue) as refused:
        parse_disk_marks(value)
    assert refused.value.hint == hint
    assert refused.value.message.startswith("expected SOFT..HARD")


def test_exempt_producers() -> None:
    assert parse_exempt("user=root") == Exemption(("root",))
    assert parse_exempt("client-id=ops-*") == Exemption((), ("ops-*",))
    for wrong in ("root", "user=", "topic=x", "client-id=a*b", "", None, 7):
        with pytest.raises(InvalidValue):
            parse_exempt(wrong)


def test_several_specs_in_one_variable() -> None:
    assert split_specs("a=1,b=2;c=3\n d=4 ;\n") == ["a=1,b=2", "c=3", "d=4"]
    assert split_specs('user="x;y",a=1;b=2') == ['user="x;y",a=1', "b=2"]
    assert split_specs(r'user="x\";y",a=1;user="z\\";b=2') == [r'user="x\";y",a=1', r'user="z\\"', "b=2"]
    assert split_specs("") == []


@given(st.one_of(st.text(), st.integers(), st.floats(), st.booleans(), st.none(), st.lists(st.text())))
def test_anything_else_is_refused_and_never_a_crash(value: object) -> None:
    for parse in (
        parse_address,
        parse_addresses,
        parse_disk_marks,
        parse_exempt,
        parse_duration,
        parse_fraction,
        parse_host,
        parse_name,
        parse_node_port,
        parse_port_range,
        parse_size,
        parse_switch,
        whole_number(0),
    ):
        try:
            parse(value)
        except InvalidValue as error:
            assert error.message  # noqa: PT017  (either outcome is right; only another exception is wrong)
