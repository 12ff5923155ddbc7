"""A consumer group far over its quota: no rebalance, and heartbeats as fast as without a limit."""

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from statistics import median, median_low
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic

from bench.enforcement.outcome import rebalances_in
from bench.greedy_consumers import HEARTBEAT_INTERVAL_MS, command
from bench.load import percentile
from deploy.local.cluster import KafkaCluster
from deploy.local.settings import Address
from deploy.local.tap import Tap
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.scanned_proxy import RelayedProxy, relayed_by
from tests.integration.test_fetch_quota import fill, reading
from tests.integration.time_in_proxy import times_in_proxy
from tests.integration.wire import Wire, schema

pytestmark = pytest.mark.alone

RATE = 200_000
MEMBERS, PARTITIONS = 3, 6
HEARTBEAT = 12
NODE = 1
SESSION_SECONDS = 6
#: The acknowledge type of ShareFetch.
RENEW = 4


def create_filled_topic(cluster: KafkaCluster, name: str, partitions: int, size: int) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    admin.create_topics([NewTopic(name, partitions)])[name].result(30)
    fill(cluster, name, size, partitions)


@pytest.mark.parametrize("library", ["librdkafka", "java"])
@pytest.mark.parametrize("seconds", [8, pytest.param(120, marks=pytest.mark.nightly)])
@pytest.mark.timeout(300)
def test_members_ten_times_over_their_quota_do_not_rebalance(
    tapped_cluster: KafkaCluster,
    tap: Tap,
    unique_name: Callable[[str], str],
    library: str,
    seconds: int,
) -> None:
    """They want all of a backlog of ten times what they get. Their sessions end after 6 s without a heartbeat."""
    group = unique_name(library)
    create_filled_topic(tapped_cluster, group, PARTITIONS, 10 * RATE * (seconds + 10))
    quota = f"client-id={group},consumer_byte_rate={RATE},burst_seconds=0.1"

    def log() -> str:
        return tapped_cluster.log_path(NODE).read_text(errors="replace")

    with RelayedProxy(tapped_cluster, "--quota", quota, relay_port=relayed_by(tap)) as front, ExitStack() as stack:
        for _ in range(MEMBERS):
            stack.enter_context(reading(command(library, front.bootstrap_servers, group, group)))
        stable = f"Stabilized group {group} "
        eventually(lambda: f"with {MEMBERS} members" in log()[log().rfind(stable) :], 60, "all are members")
        began_ns, rebalances = time.monotonic_ns(), rebalances_in(log(), group)
        eventually(lambda: time.monotonic_ns() > began_ns + seconds * 10**9, seconds + 5, "the time is over")
        ended_ns = time.monotonic_ns()
        assert rebalances_in(log(), group) == rebalances
        assert front.proxy.metric("throttled_total", client_id=group, limit="consumer_byte_rate") > seconds

        def read_since(began_ns: int) -> int:
            return sum(size for at, size in tap.sizes("fetch", group) if at > began_ns) // 2  # both sides are tapped

        assert read_since(began_ns) < RATE * (seconds + 1) + MEMBERS * 1_048_588
        front.proxy.toggle_enforcement()
        freed_ns = time.monotonic_ns()
        eventually(lambda: read_since(freed_ns) > 10 * RATE * 2, 2, "without the limit they read ten times as much")
    heartbeats = [each for each in tap.exchanges(HEARTBEAT, group) if began_ns < each.sent_ns < ended_ns]
    took_ns = sorted(each.took_ns for each in times_in_proxy(heartbeats))
    print(
        f"{len(took_ns)} heartbeats, ms in the proxy: {[round(at / 1e6, 2) for at in (median(took_ns), took_ns[-1])]}"
    )
    assert len(took_ns) >= MEMBERS * (seconds * 1_000 // HEARTBEAT_INTERVAL_MS - 1)
    assert took_ns[-1] < 100_000_000, "the shortest hold is longer"


class Member:
    """The only member of a group, on a connection of its own."""

    def __init__(self, stack: ExitStack, address: Address, group: str) -> None:
        self.wire = stack.enter_context(Wire(*address, group))
        joined = eventually(lambda: self._join(group), 30, "the coordinator of the group is there")
        generation, member = joined.generation_id, joined.member_id
        sync = schema("sync_group", 3)
        mine = sync.SyncGroupRequestAssignment(member_id=member, assignment=b"")
        self.wire.ask_entity(
            sync.SyncGroupRequest(group_id=group, generation_id=generation, member_id=member, assignments=(mine,))
        )
        self.heartbeat = schema("heartbeat", 3).HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member
        )

    def _join(self, group: str) -> Any:
        """The response; None while there is no coordinator."""
        self.wire.ask_entity(schema("find_coordinator", 3).FindCoordinatorRequest(key=group, key_type=0))
        join = schema("join_group", 3)
        request = join.JoinGroupRequest(
            group_id=group,
            session_timeout=timedelta(seconds=SESSION_SECONDS),
            rebalance_timeout=timedelta(seconds=60),
            member_id="",
            protocol_type="consumer",
            protocols=(join.JoinGroupRequestProtocol(name="range", metadata=b""),),
        )
        joined, _ = self.wire.ask_entity(request)
        return joined if joined.generation_id > 0 else None

    def beat(self) -> int:
        """Nanoseconds that a heartbeat takes."""
        began_ns = time.monotonic_ns()
        answer, _ = self.wire.ask_entity(self.heartbeat)
        took_ns = time.monotonic_ns() - began_ns
        assert int(answer.error_code.value) == 0, answer
        return took_ns


def fetch_of(topic: str, size: int) -> Any:
    """A request for the beginning of a topic of one partition."""
    module = schema("fetch", 12)
    asked = module.FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=size)
    return module.FetchRequest(
        max_wait=timedelta(milliseconds=100),
        min_bytes=1,
        topics=(module.FetchTopic(topic=topic, partitions=(asked,)),),
        forgotten_topics_data=(),
    )


class Readers:
    """Connections that fetch again at once, whatever throttle time a response contains, while `is_reading` is set."""

    def __init__(self, stack: ExitStack, address: Address, topic: str, count: int) -> None:
        self.is_reading = threading.Event()
        self._is_over = False
        self._request = fetch_of(topic, 100_000)
        threads = [
            threading.Thread(target=self._read, args=(stack.enter_context(Wire(*address, topic)),))
            for _ in range(count)
        ]
        for thread in threads:
            thread.start()
        stack.callback(self._end, threads)

    def _read(self, wire: Wire) -> None:
        while self.is_reading.wait() and not self._is_over:
            wire.ask_entity(self._request)

    def _end(self, threads: list[threading.Thread]) -> None:
        self._is_over = True
        self.is_reading.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(("rounds", "seconds"), [(2, 1.5), pytest.param(6, 10, marks=pytest.mark.nightly)])
@pytest.mark.timeout(300)
def test_heartbeats_are_not_slower_while_fetches_are_held(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], rounds: int, seconds: float
) -> None:
    """On a connection of their own, as Java and librdkafka send them. The same client id has held fetches on others."""
    topic = unique_name("held")
    create_filled_topic(kafka_cluster, topic, 1, 1_000_000)
    quota = f"client-id={topic},consumer_byte_rate={RATE},burst_seconds=0.1"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
        host, _, port = proxy.bootstrap_servers.rpartition(":")
        through = Member(stack, (host, int(port)), topic)
        direct = Member(stack, kafka_cluster.node_addresses[NODE], f"{topic}-direct")
        readers = Readers(stack, (host, int(port)), topic, 4)
        p99s: dict[tuple[str, bool], list[float]] = {}

        def held() -> float:
            return proxy.metric("paused_connections", reason="quota")

        for number in range(2 * rounds):
            is_held = number % 2 == 1
            if is_held:
                readers.is_reading.set()
                eventually(lambda: held() > 1, 10, "fetches are held")
            else:
                readers.is_reading.clear()
                eventually(lambda: not held(), 10, "nothing is held")
            took_ns: dict[str, list[int]] = {"proxy": [], "broker": []}
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                took_ns["proxy"].append(through.beat())
                took_ns["broker"].append(direct.beat())
            if is_held:
                assert held() > 1, "fetches are still held"
            for name, each in took_ns.items():
                p99s.setdefault((name, is_held), []).append(percentile(each, 0.99) / 1e6)
        readers.is_reading.set()
    found = {key: median_low(each) for key, each in p99s.items()}
    print("p99 of heartbeats in ms:", {key: round(each, 2) for key, each in found.items()})
    ratio = found["proxy", True] / found["proxy", False]
    ratio_of_the_broker = found["broker", True] / found["broker", False]
    print(f"while fetches are held: {ratio:.2f} times through the proxy, {ratio_of_the_broker:.2f} direct")
    assert found["proxy", True] < 2 * found["proxy", False] + 2


@pytest.mark.parametrize("seconds", [2, pytest.param(60, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("waits", [True, False], ids=["waits", "ignores"])
@pytest.mark.timeout(120)
def test_heartbeats_on_the_connection_of_the_fetches(
    kafka_cluster: KafkaCluster, unique_name: Callable[[str], str], waits: bool, seconds: int
) -> None:
    """A client that waits for the throttle time is never held. For one that does not, a heartbeat after a held fetch
    waits for the debt of one response: the session goes on.
    """
    topic = unique_name("one-connection")
    create_filled_topic(kafka_cluster, topic, 1, 1_000_000)
    quota = f"client-id={topic},consumer_byte_rate={RATE},burst_seconds=0.1"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
        host, _, port = proxy.bootstrap_servers.rpartition(":")
        member = Member(stack, (host, int(port)), topic)
        fetch, took_ns, sizes = fetch_of(topic, 100_000), list[int](), list[int]()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            fetched = member.wire.send_entity(fetch)
            began_ns = time.monotonic_ns()
            beat = member.wire.send_entity(member.heartbeat)
            answer, data = member.wire.receive_entity(fetch, fetched)
            member.wire.receive(beat)
            took_ns.append(time.monotonic_ns() - began_ns)
            sizes.append(len(data))
            throttled_until = time.monotonic() + answer.throttle_time.total_seconds() * waits
            while time.monotonic() < throttled_until:
                took_ns.append(member.beat())
        member.beat()
        held = proxy.metric("throttled_total", client_id=topic, mode="pause")
        throttled = proxy.metric("throttled_total", client_id=topic)
    longest_hold = max(sizes) / RATE
    print(
        f"{len(took_ns)} heartbeats, longest {max(took_ns) / 1e9:.3f} s; longest hold {longest_hold:.3f} s; {held} held"
    )
    assert throttled >= len(sizes) - 2
    assert (held == 0) == waits
    assert max(took_ns) / 1e9 < (0.3 if waits else longest_hold + 0.3)


class ShareMember:
    """The only member of a share group, which reads a topic of one partition."""

    def __init__(self, wire: Wire, topic: str, group: str) -> None:
        self.wire = wire
        self._group = group
        self._member = str(uuid.uuid4())
        self._epoch = -1
        metadata = schema("metadata", 12)
        asked = metadata.MetadataRequestTopic(topic_id=None, name=topic)
        answer, _ = wire.ask_entity(
            metadata.MetadataRequest(include_topic_authorized_operations=False, topics=(asked,))
        )
        self._topic_id = answer.topics[0].topic_id
        wire.ask_entity(schema("find_coordinator", 3).FindCoordinatorRequest(key=group, key_type=0))
        heartbeat = schema("share_group_heartbeat", 1)
        join = heartbeat.ShareGroupHeartbeatRequest(
            group_id=group, member_id=self._member, member_epoch=0, subscribed_topic_names=(topic,)
        )

        def has_joined() -> bool:
            answer = wire.receive(wire.send_entity(join))
            return answer[5:7] == bytes(2)  # the error code, after no tags and the throttle time

        eventually(has_joined, 30, "it is a member")

    def fetch(self, size: int, renewed: tuple[int, int] | None = None) -> Any:
        """The partition of the response. renewed: the first and last offset of the locks that this renews, no more."""
        self._epoch += 1
        module = schema("share_fetch", 2)
        acknowledged: tuple[Any, ...] = ()
        if renewed is not None:
            first, last = renewed
            acknowledged = (
                module.AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=(RENEW,)),
            )
        asked = module.FetchPartition(partition_index=0, acknowledgement_batches=acknowledged)
        answer, _ = self.wire.ask_entity(
            module.ShareFetchRequest(
                group_id=self._group,
                member_id=self._member,
                share_session_epoch=self._epoch,
                max_wait=timedelta(milliseconds=0 if renewed else 200),
                min_bytes=0 if renewed else 1,
                max_bytes=size,
                max_records=0 if renewed else 100,
                batch_size=0 if renewed else 100,
                is_renew_ack=renewed is not None,
                topics=(module.FetchTopic(topic_id=self._topic_id, partitions=(asked,)),),
                forgotten_topics_data=(),
            )
        )
        assert not answer.error_code.value, answer
        return answer.responses[0].partitions[0] if answer.responses else None


@pytest.mark.timeout(120)
def test_renewals_of_locks_are_never_held(kafka_cluster: KafkaCluster, unique_name: Callable[[str], str]) -> None:
    """A ShareFetch that only renews locks (KIP-1222) passes at once, in debt; the next one for records is held."""
    topic, rate = unique_name("renewed"), 10_000
    create_filled_topic(kafka_cluster, topic, 1, 400_000)
    admin = AdminClient({"bootstrap.servers": kafka_cluster.bootstrap_servers})
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    reset = ConfigResource(ConfigResource.Type.GROUP, topic, incremental_configs=[earliest])
    for changed in admin.incremental_alter_configs([reset]).values():
        changed.result(30)
    quota = f"client-id={topic},consumer_byte_rate={rate},burst_seconds=0.1"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
        host, _, port = proxy.bootstrap_servers.rpartition(":")
        member = ShareMember(stack.enter_context(Wire(host, int(port), topic)), topic, topic)

        def acquired() -> tuple[int, int] | None:
            found = member.fetch(100_000)
            if found is None or not found.acquired_records:
                return None
            return found.acquired_records[0].first_offset, found.acquired_records[-1].last_offset

        locked = eventually(acquired, 60, "records are acquired")
        assert locked is not None
        took_ns = []
        for _ in range(20):
            began_ns = time.monotonic_ns()
            renewed = member.fetch(0, locked)
            took_ns.append(time.monotonic_ns() - began_ns)
            assert renewed is None or not renewed.acknowledge_error_code
        left = proxy.metric("quota_debt_seconds", entity=f"client-id:{topic}")
        print(f"the longest of {len(took_ns)} renewals took {max(took_ns) / 1e6:.1f} ms; debt after them {left:.1f} s")
        assert left > 0
        assert proxy.metric("throttled_total", client_id=topic, mode="pause") == 0
        assert max(took_ns) / 1e9 < left
        member.fetch(100_000)
        assert proxy.metric("throttled_total", client_id=topic, mode="pause") == 1
