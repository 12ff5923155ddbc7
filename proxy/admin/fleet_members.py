"""Asks all members of a fleet for a page at once, for commands with `--fleet`.

Their addresses come from a topic that others may be able to write to. So an address is only a host and a port, it gets
one GET with a path of this proxy, and redirects are not followed. The bytes of an answer, the time for it and the
number of connections are bounded, and an answer counts only if it names the member that was asked. A loopback address
is asked only if the first proxy was reached at one, because it means another host otherwise.
"""

import asyncio
import json
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from http import HTTPStatus
from typing import Any, Final, NamedTuple

import h11

from proxy.admin.http_server import MEMBER_FIELD
from proxy.background.threads import OutsideThreads
from proxy.config.addresses import Address, format_address, ip_literal, is_loopback
from proxy.fleet.admin_address import FACT, address_of, may_be_asked

MAX_AT_ONCE: Final = 32
PATIENCE_SECONDS: Final = 2.0
MAX_BYTES: Final = 4 << 20
"""Of one answer. All answers together have at most `MAX_BYTES_OF_ALL`."""
MAX_BYTES_OF_ALL: Final = 256 << 20
_MAX_HEAD_BYTES: Final = 8_192


class MemberAnswer(NamedTuple):
    """What one member answered.

    address   as text; "" if it advertises none
    page      the parsed JSON, of any shape
    problem   why there is no page; "" if there is one
    """

    member: str
    address: str
    page: Any = None
    problem: str = ""


class NoAnswer(Exception):
    """Why a member's page is not known."""


def ask_all(proxy: Address, fleet_page: Mapping[str, Any], path: str) -> list[MemberAnswer]:
    """The page of each member in the page /fleet of `proxy`, in the order of their names. Takes `PATIENCE_SECONDS` for
    each `MAX_AT_ONCE` of them at most.
    """
    return asyncio.run(_ask_all(proxy, fleet_page["admin_addresses"], path))


async def _ask_all(proxy: Address, members: Sequence[Mapping[str, Any]], path: str) -> list[MemberAnswer]:
    slots, threads = asyncio.Semaphore(MAX_AT_ONCE), OutsideThreads("resolver", MAX_AT_ONCE)
    most, is_local = min(MAX_BYTES, MAX_BYTES_OF_ALL // max(1, len(members))), is_loopback(proxy[0])

    async def ask(member: str, address: Address | None) -> MemberAnswer:
        if address is None:
            return MemberAnswer(member, "", problem="it advertises no address of its admin port")
        text = format_address(address)
        try:
            async with slots, asyncio.timeout(PATIENCE_SECONDS):
                target = await _target(address, threads, is_local=is_local)
                return MemberAnswer(member, text, json.loads(await _get(target, text, path, member, most)))
        except TimeoutError:
            return MemberAnswer(member, text, problem=f"no answer within {PATIENCE_SECONDS:.0f} s")
        except (OSError, NoAnswer, h11.RemoteProtocolError) as error:
            return MemberAnswer(member, text, problem=str(error) or type(error).__name__)
        except (ValueError, RecursionError):
            return MemberAnswer(member, text, problem="the answer is not JSON")

    asked = [(each["member"], proxy if each["here"] else address_of({FACT: each["admin"] or ""})) for each in members]
    return await asyncio.gather(*(ask(*each) for each in sorted(asked, key=lambda each: each[0])))


async def _target(address: Address, threads: OutsideThreads, *, is_local: bool) -> Address:
    """An address with an IP literal. Raises NoAnswer if it must not be asked."""
    host, port = address
    if ip_literal(host) is None:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(threads, socket.getaddrinfo, host, port, 0, socket.SOCK_STREAM)
        host = str(found[0][4][0])
    if not may_be_asked(host):
        raise NoAnswer("such an address is not asked")
    if is_loopback(host) and not is_local:
        raise NoAnswer("its admin port is on loopback: see --metrics-listen and --fleet-admin-address")
    return host, port


async def _get(target: Address, host: str, path: str, member: str, most: int) -> bytes:
    """The body of a page. Raises NoAnswer, OSError and h11.RemoteProtocolError."""
    reader, writer = await asyncio.open_connection(*target)
    with closing(writer.transport):
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=_MAX_HEAD_BYTES)
        fields = [("Host", host), ("Accept", "application/json"), ("Connection", "close")]
        writer.write(http.send(h11.Request(method="GET", target=path, headers=fields)) or b"")
        http.send(h11.EndOfMessage())
        body = bytearray()
        while not isinstance(event := http.next_event(), h11.EndOfMessage | h11.ConnectionClosed):
            if event is h11.NEED_DATA:
                http.receive_data(await reader.read(65_536))
            elif isinstance(event, h11.Response):
                _check(event, member)
            elif isinstance(event, h11.Data):
                body += event.data
                if len(body) > most:
                    raise NoAnswer(f"the answer has more than {most} bytes")
        return bytes(body)


def _check(response: h11.Response, member: str) -> None:
    named = dict(response.headers).get(MEMBER_FIELD.lower().encode(), b"").decode(errors="replace")
    if response.status_code != HTTPStatus.OK:
        raise NoAnswer(f"it answered with {response.status_code}")
    if named != member:
        raise NoAnswer("another process answers there")
