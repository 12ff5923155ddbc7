"""Host names to addresses, as the system's resolver has them."""

import socket
from typing import Any

import pytest

from proxy.config.host_names import addresses_of


def test_the_system_is_asked() -> None:
    assert addresses_of("localhost")[0] == "127.0.0.1"
    assert addresses_of("127.0.0.1") == ["127.0.0.1"]


def test_ipv4_comes_first_and_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_arguments: object, **_options: object) -> list[Any]:
        return [
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::2", 0, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.9", 0)),
            (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("2001:db8::1", 0, 0, 0)),
            (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("10.0.0.1", 0)),
        ]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    assert addresses_of("node-1") == ["10.0.0.9", "10.0.0.1", "2001:db8::2", "2001:db8::1"]


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\0b", "a" * 64 + ".invalid", "x..y", "\ud800", "host:1"])
def test_what_is_no_host_has_no_address(name: str) -> None:
    assert addresses_of(name) == []


def test_a_failing_resolver_returns_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_arguments: object, **_options: object) -> list[Any]:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    assert addresses_of("node-1") == []
