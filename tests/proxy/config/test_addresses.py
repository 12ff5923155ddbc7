"""The name to resolve and the name in certificates."""

import pytest

from proxy.config.addresses import server_name


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
