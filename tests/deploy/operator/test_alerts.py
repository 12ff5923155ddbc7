"""Each alert fires by a real fault of a real proxy, in a real Prometheus, with the times of its rule shortened."""

import datetime
import os
import re
import resource
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import pytest
import trustme
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from deploy.local.cluster import KafkaCluster
from protocol.apis import FETCH
from tests.conftest import UniqueName
from tests.deploy.operator.prometheus import RULES, Prometheus, address_of, hurried
from tests.integration.delaying_relay import DelayingRelay
from tests.integration.flood import Flood
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.topics import create_topics
from tests.proxy.frames import request

PREFIX: Final = "KafkaQuotaProxy"
PATIENCE_SECONDS: Final = 240
ALERTS: Final = [
    rule["alert"] for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"] if "alert" in rule
]
#: For clients that send no request.
WAITS: Final = ("--handshake-timeout", "off")
#: An address that nothing else uses, so that no other process takes one of its ports before its proxy starts (again).
ALONE: Final = "127.0.0.77"
#: Of a proxy that is to run out of them.
DESCRIPTORS: Final = 100
#: Alerts that end while others are waited for: each is looked for right after its fault.
PASSING: Final = {"UpstreamSilent", "UpstreamDown", "Restarts", "Gone"}
#: Alerts of all proxies of a job: without an instance.
OF_A_JOB: Final = {"LimitNearlyUsed", "EntryUnmatched", "BrokerSlow"}
#: Of proxies without a fault, on a machine that is too busy for them, or for a scrape in half a second.
BUSY: Final = {f"{PREFIX}LoopLag", f"{PREFIX}Gone"}
#: No broker answers a flood so fast.
YIELDS: Final = "resource-group=b,client-id=b,producer_byte_rate=1kB..2kB,yield_to=client-id:flood,target=1ms"
#: Of a topic for clients that read nothing, in bytes, and what each of them asks for.
STORED, FETCHED = 20_000_000, 15_000_000
#: Such clients. What the kernel takes for each depends on the machine; about ten use up 0.6 of 2 MiB.
MOST_SLOW: Final = 100


def test_shorter_rules_have_the_same_expressions() -> None:
    text = RULES.read_text()

    def without_times(rules: str) -> str:
        return re.sub(r"\[\d+m?[smhd]\]|for: \d+m?[smh]$", "", rules, flags=re.MULTILINE)

    short = hurried(text)
    assert short != text
    assert without_times(short) == without_times(text)
    assert not re.search(r"\[\d+[smhd]\]|for: \d+[smhd]$", short, flags=re.MULTILINE), "all of them"
    assert "[5m]" in text
    assert "[20000ms]" in short


@contextmanager
def repeated(action: Callable[[], object], pause_seconds: float) -> Iterator[None]:
    """Does it again and again while the block lasts."""
    is_over = threading.Event()

    def run() -> None:
        while not is_over.wait(pause_seconds):
            with suppress(OSError):
                action()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def ports_of_alone() -> list[int]:
    """Three ports of `ALONE`."""
    with ExitStack() as bound:
        return [bound.enter_context(socket.create_server((ALONE, 0))).getsockname()[1] for _ in range(3)]


def connect(proxy: ProxyProcess) -> socket.socket:
    host, _, port = proxy.bootstrap_servers.rpartition(":")
    return socket.create_connection((host, int(port)), 10)


def slow_reader(proxy: ProxyProcess, topic: str) -> socket.socket:
    """A client that has asked for many records, and reads none of them."""
    host, _, port = proxy.bootstrap_servers.rpartition(":")
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)  # the kernel is to keep little
    client.connect((host, int(port)))
    name = struct.pack(">h", len(topic)) + topic.encode()
    body = struct.pack(">iiiibi", -1, 500, 1, FETCHED, 0, 1) + name + struct.pack(">iiqi", 1, 0, 0, FETCHED)
    client.sendall(request(FETCH, 4, 1, body))
    return client


def stop_for_a_moment(proxy: ProxyProcess) -> None:
    """As a container that has used up its share of the CPU."""
    os.kill(proxy.pid, signal.SIGSTOP)
    try:
        threading.Event().wait(0.4)
    finally:
        os.kill(proxy.pid, signal.SIGCONT)


def descriptors(proxy: ProxyProcess) -> int:
    return len(list(Path(f"/proc/{proxy.pid}/fd").iterdir()))


def pid_of_broker(cluster: KafkaCluster) -> int:
    leash = cluster._nodes[1]._process
    assert leash is not None
    [broker] = Path(f"/proc/{leash.pid}/task/{leash.pid}/children").read_text().split()
    return int(broker)


@pytest.mark.deploy
@pytest.mark.timeout(900)
def test_each_alert_fires_by_a_real_fault(
    kafka_cluster: KafkaCluster, kafka_cluster3: KafkaCluster, unique_name: UniqueName, tmp_path: Path
) -> None:
    servers, topic, lost = kafka_cluster.bootstrap_servers, unique_name("alerts"), unique_name("usage")
    stored = unique_name("stored")
    create_topics(kafka_cluster, topic, stored)
    producer = Producer({"bootstrap.servers": servers})
    for _ in range(STORED // 500_000):
        producer.produce(stored, bytes(500_000))
    assert producer.flush(60) == 0
    producer.close()
    create_topics(kafka_cluster, lost, config={"cleanup.policy": "compact"})
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[[quota]]\nclient-id = "etl"\nproducer_byte_rate = 1000\n')
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=3)
    certificate = tmp_path / "proxy.pem"
    trustme.CA().issue_cert("127.0.0.1", not_after=ends).private_key_and_cert_chain_pem.write_to_path(str(certificate))
    restarted_at, one_port, closed_port = ports_of_alone()

    with ExitStack() as stack:
        victim = stack.enter_context(KafkaCluster(1))
        relay = stack.enter_context(DelayingRelay())
        far = stack.enter_context(KafkaCluster(1, advertised=relay.advertise))
        create_topics(victim, topic)
        create_topics(far, topic)
        relay.delay_seconds = 1.0
        small = ("--fleet-max-members", "1", "--fleet-topic", unique_name("fleet"))
        other_limits = ("--fleet", "lacking", "--fleet-topic", small[-1])
        flags: dict[str, tuple[str, ...]] = {
            "fine": (),
            "LimitSaturated": ("--quota", "client-id=flood,producer_byte_rate=100kB"),
            "ClientsRefused": ("--max-connections", "1", *WAITS),
            "Upstream": (),
            "BrokerSlow": (),
            "LoopLag": (),
            "MemoryNearBound": ("--max-buffered-bytes", "2MiB"),
            "ReloadFailed": ("--quotas-file", str(quotas)),
            "EnforcementOff": ("--dry-run",),
            "UsageLost": ("--usage-topic", lost, "--usage-interval", "1s"),
            "FleetAway": ("--fleet", "away", "--fleet-topic", lost),
            "FleetDiffers": (*small, "--fleet", "small"),
            "a second one": (*small, "--fleet", "small"),
            "FleetLacksLimits": (*other_limits, "--quota", "client-id=a,producer_byte_rate=1MB"),
            "a third one": (*other_limits, "--quota", "client-id=b,producer_byte_rate=1MB"),
            "ProtectedSlow": ("--quota", YIELDS),
            "DiskGuard": ("--disk-guard", "1%..2%"),
            "DisksUnknown": ("--disk-guard", "98%..99%"),
            "BrokerPortConflict": ("--listen", f"{ALONE}:0", "--broker-ports", f"{one_port}-{one_port}"),
            "CertificateEnds": ("--ssl-certificate-location", str(certificate)),
            "Descriptors": WAITS,
            "Restarts": ("--metrics-listen", f"{ALONE}:{restarted_at}"),
        }
        proxies: dict[str, ProxyProcess] = {}
        for name, given in flags.items():
            upstreams = {"Upstream": victim, "BrokerSlow": far, "BrokerPortConflict": kafka_cluster3}
            upstream = upstreams.get(name, kafka_cluster).bootstrap_servers
            proxy = ProxyProcess(f"{ALONE}:{closed_port}" if name == "DisksUnknown" else upstream, *given)
            proxy.expected_errors = {"usage_records_refused", "config_refused", "fleet_topic_refused"}
            proxies[name] = stack.enter_context(proxy)
        rules = tmp_path / "rules.yaml"
        rules.write_text(hurried(RULES.read_text()))
        prometheus = stack.enter_context(Prometheus(tmp_path, proxies.values(), rules, "500ms"))

        def fires(*alerts: str, on: str = "") -> Callable[[], bool]:
            wanted = {(PREFIX + each, "" if each in OF_A_JOB else address_of(proxies[on or each])) for each in alerts}
            return lambda: wanted <= prometheus.firing()

        up = f"sum(up) == {len(proxies)}"
        eventually(lambda: prometheus.rows(up), PATIENCE_SECONDS, "all are scraped")
        begun = {"EnforcementOff", "CertificateEnds", "FleetAway", "FleetDiffers", "DiskGuard", "DisksUnknown"}
        at_rest = {(PREFIX + each, each) for each in begun | {"FleetLacksLimits"}}
        at_rest |= {(PREFIX + "FleetLacksLimits", "a third one"), (PREFIX + "UpstreamDown", "DisksUnknown")}
        at_rest.add((PREFIX + "FleetDiffers", "a second one"))
        # Until a fleet's first members have joined, which takes 16 s.
        fleets = ("FleetDiffers", "a second one", "FleetLacksLimits", "a third one")
        at_rest |= {(PREFIX + "FleetAway", each) for each in fleets}
        names = {address_of(proxy): name for name, proxy in proxies.items()}
        early = {(alert, names.get(instance, instance)) for alert, instance in prometheus.firing()}
        assert {each for each in early if each[0] not in BUSY} <= at_rest, "nothing else has happened yet"

        # The entry of ReloadFailed is for `etl`, and no client has that name; LimitSaturated's is used up.
        for name in ("LimitSaturated", "UsageLost", "Upstream", "BrokerSlow", "ProtectedSlow"):
            often = {"reconnect.backoff.max.ms": 500}
            stack.enter_context(Flood(proxies[name].bootstrap_servers, "flood", topic, **often))
        AdminClient({"bootstrap.servers": proxies["BrokerPortConflict"].bootstrap_servers}).list_topics(timeout=20)
        stack.enter_context(closing(connect(proxies["ClientsRefused"])))
        stack.enter_context(repeated(lambda: connect(proxies["ClientsRefused"]).close(), 0.2))
        stack.enter_context(repeated(lambda: stop_for_a_moment(proxies["LoopLag"]), 0.2))
        quotas.write_text("[[quota]]\n")
        full = proxies["Descriptors"]
        resource.prlimit(full.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        while (before := descriptors(full)) <= DESCRIPTORS * 0.85:  # with all of them open it could not be scraped
            stack.enter_context(closing(connect(full)))
            eventually(lambda: descriptors(full) > before, 30, "accepted")
        filled, slow = proxies["MemoryNearBound"], 0
        while filled.metric("memory_used_ratio") < 0.8:
            assert slow < MOST_SLOW
            stack.enter_context(closing(slow_reader(filled, stored)))
            slow += 1
            eventually(lambda: filled.metric("paused_connections", reason="write_backpressure") == slow, 30, "slow")  # noqa: B023
        assert not filled.metric("memory_paused"), "the warning comes before anyone waits for memory"
        start = f'process_start_time_seconds{{instance="{ALONE}:{restarted_at}"}}'
        for _ in range(3):
            [row] = prometheus.rows(start)
            proxies["Restarts"].kill()
            proxies["Restarts"].start()
            eventually(lambda: prometheus.rows(f"{start} != {row['value'][1]}"), 60, "scraped again")  # noqa: B023
        eventually(fires("Restarts"), PATIENCE_SECONDS, "a proxy starts again and again")
        proxies["Restarts"].kill()
        eventually(fires("Gone", on="Restarts"), PATIENCE_SECONDS, "a proxy has ended")
        proxies["Restarts"].start()
        eventually(lambda: not fires("Gone", on="Restarts")(), PATIENCE_SECONDS, "it is back")
        os.kill(pid_of_broker(victim), signal.SIGSTOP)
        eventually(fires("UpstreamSilent", on="Upstream"), PATIENCE_SECONDS, "a broker is silent")
        victim.stop_broker(1, graceful=False)
        eventually(fires("UpstreamDown", on="Upstream"), PATIENCE_SECONDS, "a broker is down")
        others = {alert.removeprefix(PREFIX) for alert in ALERTS} - PASSING
        assert others - {"LimitNearlyUsed", "EntryUnmatched"} <= proxies.keys(), "a new alert needs its fault here"
        for each in sorted(others):
            eventually(fires(each), PATIENCE_SECONDS, each)
        quiet = {alert for alert, instance in prometheus.firing() if names.get(instance) == "fine"}
        assert quiet <= BUSY, "a proxy without a fault has none, but a busy machine may be late"
