"""Tries what a proxy needs before a client connects: the command `check`.

It binds the ports, asks each broker the way the proxy will, opens the proxy's internal topics (creating missing ones),
and reads the cluster's own quotas and disks if the proxy needs them.
"""

import asyncio
import resource
import socket
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from ipaddress import ip_address
from typing import Final

from kio.schema.sasl_handshake.v1.request import SaslHandshakeRequest
from kio.schema.sasl_handshake.v1.response import SaslHandshakeResponse

from protocol.client_quotas import BROKERS_REQUEST, brokers_in
from protocol.errors import ProtocolError
from protocol.messages import decode, request_frame
from proxy.background.host import Host, listening_socket
from proxy.brokers.connect import ask_broker
from proxy.brokers.health import Health
from proxy.brokers.places import placed
from proxy.brokers.readiness import PROBE_TIMEOUT_SECONDS, Readiness
from proxy.brokers.upstream import BrokerFailed
from proxy.command.quotas_topic import stored_quotas
from proxy.config.addresses import Address, format_address, is_wildcard
from proxy.config.config import OFF, Config
from proxy.config.errors import BindError, ConfigError
from proxy.config.quota_sources import CLUSTER
from proxy.files.tls import TlsContexts
from proxy.fleet.topic_log import TopicLog
from proxy.internal_clients.client import InternalClient
from proxy.internal_clients.cluster_quotas import ClusterReader, entries_in
from proxy.internal_clients.failures import LogFailed
from proxy.internal_clients.log_dirs import DiskAnswer, LogDirs
from proxy.observability.metrics import Metrics
from proxy.process.start_log import few_descriptors
from proxy.usage.topic_sink import TopicSink
from quotas.problems import Problem

_BODY: Final = 4  # after the correlation id
_NEEDS_LOGIN: Final = (
    "its clients must log in (security.protocol=SASL_...), since --command-config has no sasl settings"
)

Result = str | Problem
"""A sentence about what works, or a problem with what to do."""


async def results(config: Config) -> AsyncIterator[Result]:
    """The result of each check, in the order in which `run` would fail. Raises ConfigError for certificates and
    keys.
    """
    tls = TlsContexts(config, Metrics())
    if tls.shown:
        yield f"certificate of the listener: {tls.shown}"
    hard, wanted = resource.getrlimit(resource.RLIMIT_NOFILE)[1], few_descriptors(config)
    hint = "raise the hard limit (ulimit -Hn, LimitNOFILE=) or lower --max-connections"
    yield Problem("descriptors", f"{hard}, fewer than {wanted}", hint) if wanted else f"descriptors: {hard}"
    yield _bound(config)
    readiness = Readiness((), tls, Health(config, Counter(), time.monotonic_ns), time.monotonic_ns)
    nodes: dict[Address, int] = {}
    for address in config.bootstrap_servers:
        nodes |= await _brokers_of(address, tls)
    for result in _placed(config, set(nodes.values())):
        yield result
    flag = "--advertised-host" if config.listening.sni_host is None else "--sni-host"
    for host in dict.fromkeys(map(config.listening.host_of, nodes.values() or (0,))):
        yield await _advertised(flag, host, config.listening.address)
    brokers: dict[Address, str] = dict.fromkeys(config.bootstrap_servers, "--bootstrap-servers")
    brokers |= {address: f"advertised.listeners of broker {node}" for address, node in nodes.items()}
    for address, place in brokers.items():
        status = await readiness.probe(address)
        if status.ok:
            words = [status.reason, "TLS" * (tls.to_brokers is not None)]
            words.append(f"logged in by {tls.upstream.login}" if tls.upstream.login else await _login_of(address, tls))
            yield f"{place}: {', '.join(filter(None, words))}"
        else:
            yield Problem(place, *status.reason.removesuffix(")").partition(" (")[::2])
    async for result in _internal_clients(config):
        yield result


def _bound(config: Config) -> Result:
    """Whether all ports can be bound; checks up to the first that cannot."""
    listening, host = config.listening, config.listening.address[0]
    of_brokers = [*(listening.broker_ports or ()), *listening.node_ports.values()]
    wanted = [("--listen", listening.address), *(("--broker-ports", (host, port)) for port in of_brokers)]
    wanted.append(("--metrics-listen", config.observability.metrics_listen))
    for flag, address in wanted:
        try:
            listening_socket(address).close()
        except OSError as error:
            hint = f"to see which process has it: ss -ltnp 'sport = :{address[1]}'"
            return Problem("ports", str(BindError(flag, address, error)).removeprefix("error: "), hint)
    return f"ports: {format_address(listening.address)} and {len(wanted) - 1} more are free"


def _placed(config: Config, nodes: set[int]) -> Iterator[Result]:
    """Whether each broker has its own, stable port of the proxy."""
    if not nodes or not config.listening.broker_ports:
        return
    placement = placed(config.listening, nodes, {})
    conflicts = "; ".join(placement.conflicts())
    if conflicts:
        yield Problem("--broker-ports", conflicts, placement.remedy)
    else:
        yield f"--broker-ports: each of {len(nodes)} brokers has its own port"


async def _advertised(flag: str, host: str, listen: Address) -> Result:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        hint = f"give {flag} a name or address by which clients reach this proxy"
        return Problem(flag, f"{host} does not resolve here: {error}", hint)
    addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
    resolved = f"{host} is {', '.join(addresses)}"
    own = [each for each in addresses if _is_of_this_machine(each)]
    if not is_wildcard(listen[0]):
        bound = socket.getaddrinfo(*listen, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][4][0]
        if bound not in addresses and (own or ip_address(bound).is_loopback):
            hint = f"listen on {host}, or 0.0.0.0"
            return Problem(flag, f"{resolved}, and --listen {listen[0]} does not listen there", hint)
    if own:
        return f"{flag}: {resolved}, which is this machine"
    outside = "which is not this machine: a load balancer, Service or router there must forward to these ports"
    return f"{flag}: {resolved}, {outside}"


def _is_of_this_machine(address: str) -> bool:
    try:
        socket.create_server((address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET).close()
    except OSError:
        return False
    return True


async def _brokers_of(address: Address, tls: TlsContexts) -> dict[Address, int]:
    """The ids of all brokers by advertised address; empty if this broker does not return them, as before a login."""
    with suppress(BrokerFailed, ProtocolError):
        found = brokers_in(await ask_broker(address, tls, BROKERS_REQUEST, PROBE_TIMEOUT_SECONDS))
        return {(each.host, each.port): each.node_id for each in found}
    return {}


async def _login_of(address: Address, tls: TlsContexts) -> str:
    """What a broker's listener requires if it offers SASL mechanisms; otherwise ""."""
    request = request_frame(SaslHandshakeRequest(mechanism=""), 1)
    with suppress(BrokerFailed, ProtocolError):
        answer = decode(SaslHandshakeResponse, await ask_broker(address, tls, request, PROBE_TIMEOUT_SECONDS), _BODY)
        if answer.mechanisms:
            return f"with {', '.join(answer.mechanisms)}: {_NEEDS_LOGIN}"
    return ""


async def _disks(config: Config) -> AsyncIterator[Result]:
    """Whether the disk guard can read the disks of each broker."""
    if config.enforcement.disk_guard is None:
        return
    log_dirs, answers = LogDirs(config, Host()), list[DiskAnswer]()
    try:
        answers = await log_dirs.answers()
    except (BrokerFailed, ProtocolError, ConfigError) as error:
        yield Problem("--disk-guard", *log_dirs.explain(error)[1:])
    for broker, directories, failure in answers:
        if failure is not None:
            yield Problem("--disk-guard", *log_dirs.explain(failure)[1:])
        else:
            used = max((1 - each.usable / each.total for each in directories), default=0)
            yield f"--disk-guard: the fullest disk of broker {broker} is used to {used:.0%}"


async def _internal_clients(config: Config) -> AsyncIterator[Result]:
    usage, fleet = config.usage, config.fleet
    async for result in _disks(config):
        yield result
    if config.quotas.cluster != OFF:
        reader = ClusterReader(config, Host())
        try:
            found = await asyncio.to_thread(entries_in, await reader.answer(), config.quotas)
            yield f"{CLUSTER}: {len(found.entries)} entities with quotas can be read"
        except (BrokerFailed, ProtocolError, ConfigError) as error:
            yield reader.problem(error)[1]
    if config.quotas.topic is not None:
        try:
            async with stored_quotas(config, creates=True) as stored:
                count = len(stored.table)
                yield f"--quotas-topic: {config.quotas.topic} can be read; it has quotas of {count} entities"
        except LogFailed as error:
            yield Problem("--quotas-topic", error.message)
    if usage.topic is not None:
        sink = TopicSink(config, b"")
        try:
            await sink.write(())
            yield f"--usage-topic: {usage.topic} can be written"
        except LogFailed as error:
            yield Problem("--usage-topic", error.message)
        await sink.close()
    if fleet.name is not None:
        log = TopicLog(InternalClient(config, "kafka-quota-proxy-fleet"), fleet.topic)
        try:
            await log.open()
            yield f"--fleet-topic: {fleet.topic} can be read and written"
        except LogFailed as error:
            yield Problem("--fleet-topic", error.message)
        await log.close()
