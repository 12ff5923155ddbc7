"""What `check` finds before a client connects, at brokers that answer what the tests say."""

import asyncio
import socket
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from proxy.command.check import results
from proxy.config.config import SecurityOptions
from quotas.problems import Problem
from tests.proxy.brokers.test_nodes import free_ports
from tests.proxy.command_line import config
from tests.proxy.tls_peer import Certificates

API_VERSIONS, METADATA, SASL_HANDSHAKE = 18, 3, 17
LOOPBACK = "127.0.0.1"


class Broker:
    """Answers what `check` asks. `advertises`: ports of the cluster; `mechanisms`: of SASL."""

    def __init__(self) -> None:
        self.advertises: list[int] = []
        self.node_ids: list[int] = []
        self.mechanisms: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        length = int.from_bytes(await reader.readexactly(4), "big")
        api = int.from_bytes((await reader.readexactly(length))[:2], "big")
        if api == API_VERSIONS:
            body = struct.pack(">hi", 0, 0)
        elif api == METADATA and not self.mechanisms:
            pairs = zip(self.node_ids or [7] * len(self.advertises), self.advertises, strict=True)
            brokers = [struct.pack(">ih9sih", node, 9, LOOPBACK.encode(), port, -1) for node, port in pairs]
            body = struct.pack(">i", len(brokers)) + b"".join(brokers) + struct.pack(">ii", -1, 0)
        elif api == SASL_HANDSHAKE:
            names = [struct.pack(">h", len(each)) + each.encode() for each in self.mechanisms]
            body = struct.pack(">hi", 33 if names else 34, len(names)) + b"".join(names)
        else:  # before a login a broker closes the connection
            writer.close()
            return
        writer.write(struct.pack(">ii", len(body) + 4, 1) + body)
        writer.close()


@pytest.fixture
async def broker() -> AsyncIterator[tuple[Broker, int]]:
    found = Broker()
    async with await asyncio.start_server(found.serve, LOOPBACK, 0) as server:
        port = server.sockets[0].getsockname()[1]
        found.advertises = [port]
        yield found, port


async def checked(port: int, *arguments: str) -> list[str]:
    ports = () if "--listen" in arguments else ("--listen", f"{LOOPBACK}:0")
    own = ("--bootstrap-servers", f"{LOOPBACK}:{port}", "--metrics-listen", f"{LOOPBACK}:0", *ports, *arguments)
    return [f"{'no' if isinstance(each, Problem) else 'ok'} {each}" async for each in results(config(*own))]


async def test_all_is_well(broker: tuple[Broker, int]) -> None:
    found = await checked(broker[1])
    assert [line[:2] for line in found] == ["ok"] * len(found)
    assert [line.split(":")[0] for line in found[1:]] == [
        "ok ports",
        "ok --advertised-host",
        "ok advertised.listeners of broker 7",
    ]
    assert found[-1].endswith(f"{LOOPBACK}:{broker[1]} answers")


async def test_the_hosts_of_all_brokers(broker: tuple[Broker, int], tmp_path: Path) -> None:
    server = Certificates(tmp_path).issue("wildcard", "*.localhost.invalid")
    location = ("--ssl-certificate-location", str(server.both))
    found = await checked(broker[1], "--sni-host", "broker-{node}.localhost.invalid", *location)
    assert found[2].startswith("ok ports")
    assert found[3].startswith("no --sni-host: broker-7.localhost.invalid does not resolve here: ")
    assert found[3].endswith("\n  give --sni-host a name or address by which clients reach this proxy")


async def test_a_broker_that_no_client_could_reach(broker: tuple[Broker, int]) -> None:
    """The bootstrap server answers, and names another one that nothing listens for."""
    with socket.create_server((LOOPBACK, 0)) as unused:
        gone = unused.getsockname()[1]
    broker[0].advertises.append(gone)
    *_, last = await checked(broker[1])
    assert last.startswith(
        f"no advertised.listeners of broker 7: {LOOPBACK}:{gone}: Connection refused\n  nothing listens"
    )
    *_, last = await checked(gone)
    assert last.startswith(f"no --bootstrap-servers: {LOOPBACK}:{gone}: Connection refused")


@pytest.mark.parametrize(
    ("ports", "result"),
    [
        ("20", "no --broker-ports: broker 21 is at port {12}, because broker 1 has its own port\n"
               "  give --broker-port 21=PORT, or a larger --broker-ports range"),
        ("1", "no --broker-ports: clients cannot see broker 21, because no port of --broker-ports is left\n"
              "  give --broker-port 21=PORT, or a larger --broker-ports range"),
        ("21", "ok --broker-ports: each of 2 brokers has its own port"),
    ],
)  # fmt: skip
async def test_two_brokers_of_one_port(broker: tuple[Broker, int], ports: str, result: str) -> None:
    found, port = broker
    found.node_ids, found.advertises = [1, 21], [port, port + 1]
    free = free_ports(22)
    of_brokers = f"{free[1]}-{free[int(ports)]}"
    lines = await checked(port, "--listen", f"{LOOPBACK}:{free[0]}", "--broker-ports", of_brokers)
    assert result.replace("{12}", str(free[1] + 12)) in lines


async def test_a_listener_that_wants_logins(broker: tuple[Broker, int]) -> None:
    broker[0].mechanisms = ["PLAIN", "SCRAM-SHA-512"]
    *_, last = await checked(broker[1])
    assert "answers, with PLAIN, SCRAM-SHA-512: its clients must log in (security.protocol=SASL_..." in last


async def test_ports_and_names_that_cannot_be_used(broker: tuple[Broker, int]) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        found = await checked(broker[1], "--listen", f"{LOOPBACK}:{port}", "--broker-ports", "0")
    assert found[1].startswith(
        f"no ports: --listen: cannot listen on {LOOPBACK}:{port}: Address already in use\n  to see which process has it"
    )
    found = await checked(broker[1], "--advertised-host", "no-such-host.invalid")
    assert found[2].startswith("no --advertised-host: no-such-host.invalid does not resolve here: ")


@pytest.mark.parametrize("host", ["127.0.0.99", "192.0.2.7"])
async def test_a_name_that_leads_where_the_proxy_does_not_listen(broker: tuple[Broker, int], host: str) -> None:
    found = await checked(broker[1], "--advertised-host", host)
    assert found[2] == (
        f"no --advertised-host: {host} is {host}, and --listen 127.0.0.1 does not listen there\n"
        f"  listen on {host}, or 0.0.0.0"
    )
    found = await checked(broker[1], "--advertised-host", host, "--listen", "0.0.0.0:0")
    assert found[2].startswith(f"ok --advertised-host: {host} is {host}, ")


async def test_descriptors(broker: tuple[Broker, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    first, *_ = await checked(broker[1], "--max-connections", str(SecurityOptions().max_connections + 1))
    assert first.startswith("no descriptors: 1024, fewer than 40004\n  raise the hard limit")


async def test_topics_without_brokers(tmp_path: Path) -> None:
    """Errors of the proxy's own clients have the option, and what they say."""
    with socket.create_server((LOOPBACK, 0)) as unused:
        gone = unused.getsockname()[1]
    *_, usage, fleet = await checked(gone, "--usage-topic", "usage", "--fleet", "one", "--broker-ports", "0")
    assert usage.startswith(f"no --usage-topic: --usage-topic usage at {LOOPBACK}:{gone}: ")
    assert fleet.startswith("no --fleet-topic: ")


async def test_a_service_without_quotas_of_clients(broker: tuple[Broker, int]) -> None:
    *_, last = await checked(broker[1], "--cluster-quotas", "total")
    assert last.startswith(f"no --cluster-quotas: not_offered: {LOOPBACK}:{broker[1]}: it does not offer Describe")
    assert "put the limits into --quotas-file" in last
