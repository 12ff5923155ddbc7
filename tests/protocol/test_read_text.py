"""Names that are not UTF-8: read as a broker reads them. Kafka's own class is the oracle."""

import itertools
import random
import struct
import subprocess
import time
from pathlib import Path

import pytest

from deploy.local.tools import program_command
from protocol.errors import ProtocolError
from protocol.request_header import peek_request
from protocol.wire import read_text

PROGRAM = Path(__file__).with_name("ReadHeaders.java")
#: The first and the last byte of each class that UTF-8 has.
BYTES = bytes.fromhex("41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


def heartbeat(client_id: bytes, length: int | None = None) -> bytes:
    """Of version 0, without the length of its frame."""
    return struct.pack(">hhih", 12, 0, 7, len(client_id) if length is None else length) + client_id


def client_id_of(request: bytes) -> str:
    """As the broker prints it: in hex, or that there is an error."""
    frame = bytearray(struct.pack(">i", len(request)) + request)
    try:
        header = peek_request(frame, 0, len(frame), 1_000_000)
    except ProtocolError:
        return "InvalidRequestException"
    assert header is not None
    return header.client_id.encode("utf-16-be").hex()


@pytest.mark.claim("limits", "a name that is not UTF-8 is the one that a broker reads; limits hold for it")
def test_client_ids_are_those_that_a_broker_reads() -> None:
    """Malformed sequences of each kind, whole, cut and one after the other; null by any negative length; no end."""
    names = [bytes(each) for size in (1, 2) for each in itertools.product(BYTES, repeat=size)]
    names += [bytes([first, *rest]) for first in b"\xe0\xed\xef\xf0\xf4" for rest in itertools.product(BYTES, repeat=2)]
    rest = random.Random(41)
    names += [bytes(rest.choices(BYTES, k=rest.randrange(3, 12))) for _ in range(5_000)]
    names += [b"", "Büro".encode("latin-1"), b"nul\0", b'line\nbreak"', b"\xed\xa0\xbd\xed\xb8\x80"]
    requests = [heartbeat(name) for name in names]
    requests += [heartbeat(b"", length) for length in (-1, -2, -(2**15))] + [heartbeat(b"short", 6)]
    command = program_command("4.3.1", PROGRAM)
    lines = "\n".join(each.hex() for each in requests)
    done = subprocess.run(command, input=lines, capture_output=True, timeout=120, check=True, text=True)
    broker = dict(zip(requests, done.stdout.splitlines(), strict=True))
    assert {each: client_id_of(each) for each in requests} == broker


@pytest.mark.parametrize("name", [b"\xff" * 32_767, b"\xed\xa0\x80" * 10_922], ids=["bytes", "surrogates"])
def test_a_long_name_costs_little(name: bytes) -> None:
    """Each request may have another one, so it must not take milliseconds: replacing one by one took 15."""
    began = time.process_time()
    for _ in range(20):
        read_text(name)
    assert time.process_time() - began < 20 * 0.01
