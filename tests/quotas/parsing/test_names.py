"""The one form that a name has inside."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import DEFAULT, DEFAULT_NAME
from quotas.parsing.names import ENTITY_KEYS, canonical_ip, entity_name
from quotas.problems import Refusal


@given(st.ip_addresses(v=6))
def test_every_way_to_write_an_address_is_the_same(address: ipaddress.IPv6Address) -> None:
    ways = {canonical_ip(text) for text in (str(address), address.exploded, address.exploded.upper())}
    assert ways == {str(address.ipv4_mapped or address)}


@given(st.ip_addresses(v=4))
def test_ipv4_is_the_same_within_ipv6(address: ipaddress.IPv4Address) -> None:
    assert canonical_ip(f"::ffff:{address}") == canonical_ip(str(address)) == str(address)


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("bootstrap", "bootstrap"),
        ("9092", "9092"),
        ("09092", "9092"),
        (9092, "9092"),
        ("localhost:9092", "9092"),
        ("[::1]:9092", "9092"),
        ("65535", "65535"),
    ],
)
def test_a_listener_is_bootstrap_or_its_port(value: object, name: str) -> None:
    assert entity_name("listener", value, real_name=False) == name


@pytest.mark.parametrize(
    "value",
    ["Bootstrap", "0", "65536", "000009092", "-1", ":9092", "::1:9092", "host:", "host:http", "9092 ", "\u0661", 0],
)
def test_what_is_no_listener(value: object) -> None:
    with pytest.raises(Refusal, match="expected bootstrap, a port, HOST:PORT or <default>, not"):
        entity_name("listener", value, real_name=False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "Topic name is invalid: '.' or '..' is not allowed"),
        ("..", "Topic name is invalid: '.' or '..' is not allowed"),
        ("a" * 250, f"Topic name is invalid: the length of '{'a' * 250}' is longer than the max allowed length 249"),
        (
            "caf\u00e9",
            "Topic name is invalid: 'caf\u00e9' contains one or more characters other than ASCII alphanumerics, "
            "'.', '_' and '-'",
        ),
    ],
)  # fmt: skip
def test_what_no_topic_can_be_called(name: str, message: str) -> None:
    with pytest.raises(Refusal) as caught:
        entity_name("topic", name, real_name=False)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [True, "true", "all", "proxy", "<default>"])
def test_ways_to_say_the_total(value: object) -> None:
    assert entity_name("total", value, real_name=False) == ""


@pytest.mark.parametrize("value", [False, "false", "", "True", None, 1, 0.5, [], {}])
def test_what_is_not_the_total(value: object) -> None:
    with pytest.raises(Refusal, match="expected total=true, not"):
        entity_name("total", value, real_name=False)


@pytest.mark.parametrize("key", ["user", "client-id", "ip", "listener", "topic"])
def test_the_default_entity(key: str) -> None:
    assert entity_name(key, DEFAULT_NAME, real_name=False) is DEFAULT


@pytest.mark.parametrize("key", ["ip", "listener", "topic"])
def test_no_address_listener_or_topic_is_called_default(key: str) -> None:
    with pytest.raises(Refusal):
        entity_name(key, DEFAULT_NAME, real_name=True)


@pytest.mark.parametrize("key", [key for key in ENTITY_KEYS if key != "total"])
@pytest.mark.parametrize("value", [True, None, 0.5, ["a"], {"a": 1}])
def test_a_name_is_text(key: str, value: object) -> None:
    with pytest.raises(Refusal, match="expected a name in quotes, not "):
        entity_name(key, value, real_name=False)
