"""Which address of its admin port a member advertises, and which of those that are advertised are asked."""

import socket

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from proxy.config.config import Config, FleetOptions, ObservabilityOptions
from proxy.fleet.admin_address import address_of, advertise, own_host
from quotas.fleet.record import is_fact
from quotas.fleet.roster import OwnFacts

pytestmark = pytest.mark.claim(
    "fleet", "the address of the admin port comes from a topic: a host and a port, or nothing"
)


@pytest.mark.parametrize(
    ("listen", "given_address", "expected"),
    [
        ("10.1.2.3", None, "10.1.2.3:19404"),
        ("127.0.0.1", None, "127.0.0.1:19404"),
        ("0.0.0.0", None, "127.0.0.1:19404"),  # noqa: S104 - the way to the broker is loopback
        ("::", None, "127.0.0.1:19404"),
        ("0.0.0.0", ("etl-7.example.com", 80), "etl-7.example.com:80"),  # noqa: S104
        ("a" * 200, None, None),
    ],
)
async def test_a_member_advertises_where_its_port_can_be_reached(
    listen: str, given_address: tuple[str, int] | None, expected: str | None
) -> None:
    facts = OwnFacts()
    config = Config(
        bootstrap_servers=(("127.0.0.1", 9092),),
        fleet=FleetOptions(name="etl", admin_address=given_address),
        observability=ObservabilityOptions(metrics_listen=(listen, 0)),
    )
    await advertise(facts, config, 19404)
    assert facts.all.get("admin") == expected


def test_without_a_server_that_can_be_resolved_there_is_no_own_host() -> None:
    assert own_host([("\udc80", 1), ("127.0.0.1", 9092)], socket.AF_UNSPEC) == "127.0.0.1"
    assert own_host([("\udc80", 1)], socket.AF_UNSPEC) == ""


@given(st.text(max_size=128) | st.integers())
@example("169.254.169.254:80")
@example("[::ffff:169.254.169.254]:80")
@example("0.0.0.0:19404")
@example("224.0.0.1:19404")
@example("http://10.0.0.7:19404")
@example("10.0.0.7:19404/quit")
@example("user@10.0.0.7:19404")
@example("10.0.0.7:19404 ")
@example("10.0.0.7:0")
@example("a\x1b[2J:1")
def test_whatever_is_advertised_is_a_host_and_a_port_or_not_asked(text: str | int) -> None:
    found = address_of({"admin": text})
    if found is not None:
        host, port = found
        assert host
        assert host.isprintable()
        assert not set(host) & set(" /@?#\\'\"<>")
        assert 0 < port < 1 << 16
        assert not host.startswith(("169.254.", "224.", "0.0.0.0", "::ffff:169.254."))  # noqa: S104


def test_addresses_that_members_advertise_are_asked() -> None:
    for text in ("10.0.0.7:19404", "[fd00::7]:19404", "etl-7.example.com:19404"):
        assert is_fact("admin", text)
        assert address_of({"admin": text})
