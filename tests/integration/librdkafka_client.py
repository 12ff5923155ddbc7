"""A program: a librdkafka of any age produces the first record of a topic, and reads it back.

    python librdkafka_client.py LIBRARY SETTINGS TOPIC VALUE

`LIBRARY` is a shared object, which is loaded into this process alone. `SETTINGS` has librdkafka's own names, as JSON.
Prints a JSON object: `version` of the library, `read`: the value that came back, or null, and `errors`: what librdkafka
has reported, in its words.
"""

import ctypes
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

PRODUCER, CONSUMER = 0, 1
FIRST_PARTITION, FIRST_OFFSET = 0, 0
COPY = 2
TEXT_SIZE = 512
DEADLINE_SECONDS = 20


class Message(ctypes.Structure):
    """`rd_kafka_message_t`."""

    _fields_ = (
        ("err", ctypes.c_int),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("payload", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_size", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("private", ctypes.c_void_p),
    )


ON_ERROR = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
ON_DELIVERY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Message), ctypes.c_void_p)
#: Host, port, hints, result; without a host the result is to be freed.
ON_RESOLVE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)


class Librdkafka:
    """The functions of one library, without their prefix, and the errors that it has reported."""

    def __init__(self, path: str) -> None:
        self._library = ctypes.CDLL(path)
        self.errors: list[str] = []
        self.undelivered: list[str] = []
        self._on_error = ON_ERROR(lambda _client, _code, reason, _opaque: self.errors.append(reason.decode()))
        #: In place of the name server's answers: of type `ON_RESOLVE`, for libraries since 1.9.
        self.on_resolve: Any = None
        self._on_delivery = ON_DELIVERY(lambda _client, message, _opaque: self._delivered(message.contents.err))
        for name in ("conf_new", "new", "topic_new"):
            self[name].restype = ctypes.c_void_p
        for name in ("version_str", "err2str"):
            self[name].restype = ctypes.c_char_p
        self["consume"].restype = ctypes.POINTER(Message)

    def __getitem__(self, name: str) -> Any:
        return getattr(self._library, f"rd_kafka_{name}")

    def client(self, kind: int, settings: Mapping[str, str]) -> ctypes.c_void_p:
        text = ctypes.create_string_buffer(TEXT_SIZE)
        conf = ctypes.c_void_p(self["conf_new"]())
        for name, value in settings.items():
            if self["conf_set"](conf, name.encode(), value.encode(), text, TEXT_SIZE) != 0:
                raise ValueError(text.value.decode())
        self["conf_set_error_cb"](conf, self._on_error)
        self["conf_set_dr_msg_cb"](conf, self._on_delivery)
        if self.on_resolve is not None:
            self["conf_set_resolve_cb"](conf, self.on_resolve)
        client = ctypes.c_void_p(self["new"](kind, conf, text, TEXT_SIZE))
        if not client:
            raise ValueError(text.value.decode())
        return client

    def produce(self, settings: Mapping[str, str], topic: str, value: bytes) -> None:
        """Until the record is delivered, or its time is over."""
        client = self.client(PRODUCER, {**settings, "message.timeout.ms": f"{DEADLINE_SECONDS * 1_000}"})
        handle = self.topic(client, topic)
        size = ctypes.c_size_t(len(value))
        self["produce"](handle, FIRST_PARTITION, COPY, value, size, None, ctypes.c_size_t(0), None)
        self["flush"](client, 2 * DEADLINE_SECONDS * 1_000)

    def read(self, settings: Mapping[str, str], topic: str) -> bytes | None:
        """The first value of the topic. By its offset: to ask for the earliest, the oldest send ListOffsets 0."""
        handle = self.topic(self.client(CONSUMER, settings), topic)
        self["consume_start"](handle, FIRST_PARTITION, ctypes.c_int64(FIRST_OFFSET))
        deadline = time.monotonic() + DEADLINE_SECONDS
        while time.monotonic() < deadline:
            message = self["consume"](handle, FIRST_PARTITION, 500)
            if message and message.contents.err == 0:
                return ctypes.string_at(message.contents.payload, message.contents.size)
        return None

    def topic(self, client: ctypes.c_void_p, name: str) -> ctypes.c_void_p:
        return ctypes.c_void_p(self["topic_new"](client, name.encode(), None))

    def _delivered(self, error: int) -> None:
        if error:
            self.undelivered.append(self["err2str"](error).decode())
            self.errors.append(self.undelivered[-1])


def main(path: str, settings: str, topic: str, value: str = "") -> None:
    """Without a value: produce one, and stay until stdin ends."""
    library = Librdkafka(path)
    library.produce(json.loads(settings), topic, value.encode() or b"x")
    if not value:
        sys.stdin.read()
        return
    read = None if library.errors else library.read(json.loads(settings), topic)
    version = library["version_str"]().decode()
    print(json.dumps({"version": version, "read": read and read.decode(), "errors": library.errors}))


if __name__ == "__main__":
    main(*sys.argv[1:])
