"""The name to resolve and the name in certificates."""

import pytest

from proxy.config.addresses import is_of_this_host, server_name

pytestmark = pytest.mark.claim(
    "security",
    "a broker's name may end with a dot, in upper case, or be an IPv6 address with a zone: what "
    "is sent and verified is the name in certificates",
)


@pytest.mark.parametrize(
    ("host", "name"),
    [
        ("kafka.example.com", "kafka.example.com"),
        ("kafka.example.com.", "kafka.example.com"),
        ("Kafka.Example.COM.", "kafka.example.com"),
        ("broker_1.kafka", "broker_1.kafka"),
        ("B\u00fccher.example.", "b\u00fccher.example"),
        ("10.0.0.1", "10.0.0.1"),
        ("::1", "::1"),
        ("[::1]", "::1"),
        ("FE80::1%eth0", "fe80::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("localhost.", "localhost"),
    ],
)
def test_what_tls_knows_a_host_by(host: str, name: str) -> None:
    assert server_name(host) == name


@pytest.mark.parametrize(
    ("host", "is_here"),
    [("127.0.0.1", True), ("127.9.8.7", True), ("::ffff:127.0.0.1", True), ("192.0.2.1", False), ("localhost", False)],
)
def test_which_addresses_are_of_this_host(host: str, *, is_here: bool) -> None:
    assert is_of_this_host(host) is is_here
