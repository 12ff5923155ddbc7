"""Clients for which each name of `DOMAIN` is the loopback address: no name server and no file of the system says so."""

import ctypes
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import confluent_kafka
import pytest

from tests.integration.librdkafka_client import COPY, FIRST_PARTITION, ON_RESOLVE, PRODUCER, Librdkafka

DOMAIN: Final = "kafka.test"
_LOOPBACK: Final = "127.0.0.1"
_DELIVERY_MS: Final = 60_000
_libc: Final = ctypes.CDLL(None)


def resolve_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """For aiokafka, which runs in this process."""
    resolve = socket.getaddrinfo

    def resolved(host: Any, *arguments: Any, **options: Any) -> Any:
        return resolve(_LOOPBACK if str(host).endswith(f".{DOMAIN}") else host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", resolved)


def java_options(directory: Path, names: Iterable[str]) -> list[str]:
    """For Java: it knows these names then, and no other."""
    file = directory / "hosts"
    file.write_text(f"{_LOOPBACK} localhost {' '.join(names)}\n")
    return [f"-Djdk.net.hosts.file={file}"]


def _on_resolve(host: bytes | None, port: bytes | None, hints: int | None, result: Any, _opaque: object) -> int:
    if host is None:
        _libc.freeaddrinfo(ctypes.c_void_p(result.contents.value))
        return 0
    return int(_libc.getaddrinfo(_LOOPBACK.encode(), port, ctypes.c_void_p(hints), result))


class NamedLibrdkafka(Librdkafka):
    """A producer of one topic by the library of confluent-kafka, whose Python part cannot set how names resolve."""

    def __init__(self, settings: dict[str, str], topic: str) -> None:
        (path,) = Path(confluent_kafka.__file__).parent.with_suffix(".libs").glob("librdkafka-*.so*")
        super().__init__(str(path))
        self.on_resolve = ON_RESOLVE(_on_resolve)
        self._client = self.client(PRODUCER, {**settings, "message.timeout.ms": f"{_DELIVERY_MS}"})
        self._topic = self.topic(self._client, topic)

    def send(self, value: bytes, partitions: int) -> None:
        """To each partition; until all are delivered. Raises AssertionError with the errors of those that were not."""
        for partition in range(FIRST_PARTITION, partitions):
            size, nothing = ctypes.c_size_t(len(value)), ctypes.c_size_t(0)
            self["produce"](self._topic, partition, COPY, value, size, None, nothing, None)
        assert (self["flush"](self._client, _DELIVERY_MS), self.undelivered) == (0, [])

    def close(self) -> None:
        self["topic_destroy"](self._topic)
        self["destroy"](self._client)
