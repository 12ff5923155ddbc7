"""The one form that a name has inside."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quotas.entity import DEFAULT_NAME
from quotas.parsing.names import ENTITY_KEYS, canonical_ip, entity_name
from quotas.problems import InvalidValue
from tests.quotas.ip_networks import NETWORKS, Network


@given(st.ip_addresses(v=6))
def test_every_way_to_write_an_address_is_the_same(address: ipaddress.IPv6Address) -> None:
    ways = {canonical_ip(text) for text in (str(address), address.exploded, address.exploded.upper())}
    assert ways == {str(address.ipv4_mapped or address)}


@given(st.ip_addresses(v=4))
def test_ipv4_is_the_same_within_ipv6(address: ipaddress.IPv4Address) -> None:
    assert canonical_ip(f"::ffff:{address}") == canonical_ip(str(address)) == str(address)


def network_name(text: str) -> str:
    return str(entity_name("ip", text, real_name=False, resolve=lambda _: ["10.0.0.1"]))


@given(NETWORKS)
def test_every_way_to_write_a_network_is_the_same(network: Network) -> None:
    name = str(network) if network.num_addresses > 1 else str(network.network_address)
    assert {network_name(text) for text in (str(network), network.exploded, network.exploded.upper())} == {name}
    if network.version == 4:
        mapped = f"::ffff:{network.network_address}/{96 + network.prefixlen}"
        assert network_name(mapped) == name
    else:
        assert network.network_address.ipv4_mapped is None or network.prefixlen < 96


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10.1.2.3/16", "10.1.2.3/16 has host bits set\n  did you mean 10.1.0.0/16?"),
        ("2001:db8::1/32", "2001:db8::1/32 has host bits set\n  did you mean 2001:db8::/32?"),
        ("::ffff:10.1.2.3/112", "::ffff:10.1.2.3/112 has host bits set\n  did you mean 10.1.0.0/16?"),
        ("10.1.0.0/255.255.0.0", "has a netmask instead of a prefix length\n  did you mean 10.1.0.0/16?"),
        ("10.1.0.0/0.0.255.255", "has a netmask instead of a prefix length\n  did you mean 10.1.0.0/16?"),
        ("10.1.0.0/33", "10.1.0.0/33 is not a valid network\n  for example 10.1.0.0/16 or 2001:db8::/32"),
        ("10.1/16", "10.1/16 is not a valid network"),
        ("10.1.0.0/", "10.1.0.0/ is not a valid network"),
        ("/16", "/16 is not a valid network"),
        ("10.1.0.0/-1", "10.1.0.0/-1 is not a valid network"),
        ("10.1.0.0/\u0661\u0666", "is not a valid network"),
        ("10.1.0.0/16/24", "10.1.0.0/16/24 is not a valid network"),
        ("node-1/24", "node-1/24 is not a valid network"),
        ("010.0.0.7", "010.0.0.7 is not a valid IP or resolvable host.\n  write four numbers without leading zeros"),
        ("10.7", "10.7 is not a valid IP or resolvable host.\n  write four numbers without leading zeros"),
        ("fe80::1%eth0", "fe80::1%eth0 has a zone, but addresses of connections have none\n  write fe80::1"),
        ("fe80::%eth0/64", "fe80::%eth0/64 has a zone, but addresses of connections have none\n  write fe80::/64"),
    ],
)
def test_what_is_no_address_or_network(text: str, message: str) -> None:
    with pytest.raises(InvalidValue) as refused:
        network_name(text)
    assert message in str(refused.value.at("")[0])


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
    with pytest.raises(InvalidValue, match="expected bootstrap, a port, HOST:PORT or <default>, not"):
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
    with pytest.raises(InvalidValue) as caught:
        entity_name("topic", name, real_name=False)
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [True, "true", "all", "proxy", "<default>"])
def test_ways_to_say_the_total(value: object) -> None:
    assert entity_name("total", value, real_name=False) == ""


@pytest.mark.parametrize("value", [False, "false", "", "True", None, 1, 0.5, [], {}])
def test_what_is_not_the_total(value: object) -> None:
    with pytest.raises(InvalidValue, match="expected total=true, not"):
        entity_name("total", value, real_name=False)


@pytest.mark.parametrize("key", ["ip", "listener", "topic"])
def test_no_address_listener_or_topic_is_called_default(key: str) -> None:
    with pytest.raises(InvalidValue):
        entity_name(key, DEFAULT_NAME, real_name=True)


@pytest.mark.parametrize("key", [key for key in ENTITY_KEYS if key != "total"])
@pytest.mark.parametrize("value", [True, None, 0.5, ["a"], {"a": 1}])
def test_a_name_is_text(key: str, value: object) -> None:
    with pytest.raises(InvalidValue, match="expected a name in quotes, not "):
        entity_name(key, value, real_name=False)
