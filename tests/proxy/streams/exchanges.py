"""One exchange for each handler: a request, what the broker answers, and what each side is to receive."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

from protocol.apis import API_VERSIONS, APIS, CREATE_TOPICS, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, SHARE_ACKNOWLEDGE
from protocol.messages import encode
from tests.protocol.kafka_messages import of_request, of_response
from tests.proxy import frames
from tests.proxy.frames import REAL_HOST, REAL_PORT, TOPIC_ID, answer, batch, request
from tests.proxy.mutation_frames import create, created

NODE = 7
PROXY = ("127.0.0.1", 19_093 + NODE)
"""Where clients find the broker of `REAL_HOST`."""


@dataclass(frozen=True)
class Exchange:
    """`forwarded` and `returned`: what broker and client receive where nothing is limited; None: parse it."""

    request: bytes
    forwarded: bytes
    response: bytes
    returned: bytes | None

    @property
    def correlation_id(self) -> int:
        return int.from_bytes(self.request[8:12], "big")


def unchanged(sent: bytes, response: bytes) -> Exchange:
    return Exchange(sent, sent, response, response)


# ---- one for each handler; `n` is the correlation id, and varies the payload
def forward(n: int) -> Exchange:
    return unchanged(frames.heartbeat(n), heartbeat_answered(n))


def heartbeat_answered(n: int, throttle_ms: int = 0) -> bytes:
    """Tags of the header, throttle time, error code, tags."""
    return frames.frame(struct.pack(">ibihb", n, 0, throttle_ms, 0, 0))


def produce(n: int) -> Exchange:
    version = (0, 3, 8, 9, 10, 12, 13)[n % 7]
    return unchanged(frames.produce(n, 100 + n % 300, version), frames.produced(n, version))


def produce_records(n: int) -> Exchange:
    version = (3, 8, 9, 12)[n % 4]
    return unchanged(frames.produce_records(n, _topics(n), version), frames.produced(n, version))


def records_hidden(n: int) -> Exchange:
    sent = frames.produce_records(n, _topics(n), 12)
    return Exchange(sent, sent, frames.produced(n, 12, endpoints=True), None)


def records_unanswered(n: int) -> Exchange:
    return unchanged(frames.produce_records(n, _topics(n), acks=0), b"")


def _topics(n: int) -> dict[frames.Topic, list[bytes | None]]:
    return {f"topic-{n % 3}": [batch(1 + n % 5, 200), None], "other": [batch(2, 100)]}


def produce_hidden(n: int) -> Exchange:
    """The response names a broker, which is hidden."""
    return Exchange(
        sent := frames.produce(n, 60, 10 + n % 3), sent, frames.produced(n, 10 + n % 3, endpoints=True), None
    )


def produce_unanswered(n: int) -> Exchange:
    return unchanged(frames.produce(n, 80 + n % 100, acks=0), b"")


def fetch(n: int) -> Exchange:
    version = (1, 4, 11, 12, 13, 15)[n % 6]
    return unchanged(frames.fetch(n, version), frames.fetched(n, version, 100 + n % 500))


def fetch_hidden(n: int) -> Exchange:
    version = 16 + n % 3
    return Exchange(sent := frames.fetch(n, version), sent, frames.fetched_with_endpoints(n, version), None)


def share_fetch(n: int) -> Exchange:
    return Exchange(sent := frames.share_fetch(n), sent, frames.share_fetched(n), None)


def metadata(n: int) -> Exchange:
    version = 9 + n % 4
    topics = n % 4
    return Exchange(
        sent := frames.metadata(n, version),
        sent,
        frames.metadata_answer(n, {NODE: (REAL_HOST, REAL_PORT)}, topics, version),
        frames.metadata_answer(n, {NODE: PROXY}, topics, version),
    )


def rewrite(n: int) -> Exchange:
    return Exchange(
        sent := frames.find_coordinator(n),
        sent,
        frames.coordinator_answer(n, NODE, REAL_HOST, REAL_PORT),
        frames.coordinator_answer(n, NODE, *PROXY),
    )


def describe_cluster(n: int) -> Exchange:
    sent = request(DESCRIBE_CLUSTER, 1, n, b"\x00\x01\x00")
    return Exchange(sent, sent, _cluster(n, REAL_HOST, REAL_PORT), _cluster(n, *PROXY))


def describe_configs(n: int) -> Exchange:
    """Of a topic: nothing in the response is changed."""
    return unchanged(_configs_request(n, 2), _configs(n, 2, "a topic may say anything"))


def describe_broker_configs(n: int) -> Exchange:
    """Of a broker: its addresses are removed."""
    return Exchange(sent := _configs_request(n, 4), sent, _configs(n, 4, f"PLAINTEXT://{REAL_HOST}:{REAL_PORT}"), None)


def hide(n: int) -> Exchange:
    sent = request(SHARE_ACKNOWLEDGE, 1, n, b"\x06group\x07member" + struct.pack(">i", 1) + b"\x01\x00")
    return Exchange(sent, sent, _acknowledged(n), None)


def limit(n: int) -> Exchange:
    topics = {f"new-{each}": 1 + each for each in range(1 + n % 3)}
    return unchanged(create(n, topics), created(n, topics))


def negotiate(n: int) -> Exchange:
    """The response has one range that the proxy cuts."""
    return Exchange(sent := frames.api_versions(n, 3), sent, _versions(n, 99), _versions(n, APIS[0].max_version))


def negotiate_unknown(n: int) -> Exchange:
    """A version that the proxy answers itself: the broker gets nothing."""
    return Exchange(frames.api_versions(n, 99), b"", b"", None)


#: Their payload is noise, so they are for clients whose records are not read.
NOISE: dict[str, Callable[[int], Exchange]] = {
    "produce": produce,
    "produce, endpoints hidden": produce_hidden,
    "produce without response": produce_unanswered,
}
HANDLED: dict[str, Callable[[int], Exchange]] = {
    "forward": forward,
    "produce records": produce_records,
    "records, endpoints hidden": records_hidden,
    "records without response": records_unanswered,
    "fetch": fetch,
    "fetch, endpoints hidden": fetch_hidden,
    "share fetch": share_fetch,
    "metadata": metadata,
    "rewrite": rewrite,
    "rewrite a list": describe_cluster,
    "rewrite nothing": describe_configs,
    "rewrite configs": describe_broker_configs,
    "hide": hide,
    "limit": limit,
    "negotiate": negotiate,
    "negotiate an unknown version": negotiate_unknown,
}


def _cluster(n: int, host: str, port: int) -> bytes:
    broker = of_response(DESCRIBE_CLUSTER, 1, "DescribeClusterBroker", broker_id=NODE, host=host, port=port)
    values = {"cluster_id": "cluster", "controller_id": NODE, "brokers": (broker,)}
    return answer(DESCRIBE_CLUSTER, 1, n, of_response(DESCRIBE_CLUSTER, 1, "DescribeClusterResponse", **values))


def _configs_request(n: int, resource_type: int) -> bytes:
    values = {"resource_type": resource_type, "resource_name": str(NODE)}
    resource = of_request(DESCRIBE_CONFIGS, 4, "DescribeConfigsResource", **values)
    body = of_request(DESCRIBE_CONFIGS, 4, "DescribeConfigsRequest", resources=(resource,))
    return request(DESCRIBE_CONFIGS, 4, n, encode(body))


def _configs(n: int, resource_type: int, listeners: str) -> bytes:
    configs = tuple(
        of_response(DESCRIBE_CONFIGS, 4, "DescribeConfigsResourceResult", name=name, value=value, config_source=5)
        for name, value in (("advertised.listeners", listeners), ("num.io", "8"))
    )
    values = {"resource_type": resource_type, "resource_name": str(NODE), "configs": configs}
    result = of_response(DESCRIBE_CONFIGS, 4, "DescribeConfigsResult", **values)
    return answer(
        DESCRIBE_CONFIGS, 4, n, of_response(DESCRIBE_CONFIGS, 4, "DescribeConfigsResponse", results=(result,))
    )


def _acknowledged(n: int) -> bytes:
    leader = of_response(SHARE_ACKNOWLEDGE, 1, "LeaderIdAndEpoch", leader_id=NODE, leader_epoch=3)
    partition = of_response(SHARE_ACKNOWLEDGE, 1, "PartitionData", current_leader=leader)
    topic = of_response(
        SHARE_ACKNOWLEDGE, 1, "ShareAcknowledgeTopicResponse", topic_id=TOPIC_ID, partitions=(partition,)
    )
    endpoint = of_response(SHARE_ACKNOWLEDGE, 1, "NodeEndpoint", node_id=NODE, host=REAL_HOST, port=REAL_PORT)
    values = {"responses": (topic,), "node_endpoints": (endpoint,)}
    return answer(SHARE_ACKNOWLEDGE, 1, n, of_response(SHARE_ACKNOWLEDGE, 1, "ShareAcknowledgeResponse", **values))


def _versions(n: int, produce_version: int) -> bytes:
    ranges = ((0, 0, produce_version), (12, 0, 4), (API_VERSIONS, 0, 4), (CREATE_TOPICS, 2, 7))
    rows = b"".join(struct.pack(">hhh", *each) + b"\x00" for each in ranges)
    return frames.frame(struct.pack(">ih", n, 0) + bytes([len(ranges) + 1]) + rows + struct.pack(">i", 0) + b"\x00")
