"""`server.properties` of one node of a cluster that lives on a single machine."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

Address = tuple[str, int]


@dataclass(frozen=True, slots=True)
class NodeAddressing:
    """The listen address of one node and its advertised address.

    client: the listener that clients use; advertised: what Metadata says of it; internal: replication between brokers,
    kept apart so that a tap in front of `client` sees clients only; controller: the KRaft quorum; more: further
    listeners of clients, by the name of their security protocol.
    """

    client: Address
    advertised: Address
    internal: Address
    controller: Address
    more: Mapping[str, Address] = field(default_factory=dict)


def server_properties(
    node: int, cluster: Mapping[int, NodeAddressing], data: Path, overrides: Mapping[str, str]
) -> dict[str, str]:
    """All settings of a combined broker and controller; `overrides` come last and may replace any of them."""
    own = cluster[node]
    replicas = min(3, len(cluster))
    in_sync = max(1, replicas - 1)
    more = "".join(f",{name}://{_text(at)}" for name, at in own.more.items())
    properties = {
        "process.roles": "broker,controller",
        "node.id": f"{node}",
        "controller.quorum.voters": ",".join(f"{each}@{_text(at.controller)}" for each, at in cluster.items()),
        "controller.listener.names": "CONTROLLER",
        "listeners": (
            f"PLAINTEXT://{_text(own.client)},INTERNAL://{_text(own.internal)},CONTROLLER://{_text(own.controller)}{more}"
        ),
        "advertised.listeners": f"PLAINTEXT://{_text(own.advertised)},INTERNAL://{_text(own.internal)}{more}",
        "inter.broker.listener.name": "INTERNAL",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT"
        + "".join(f",{name}:{name}" for name in own.more),
        "log.dirs": f"{data}",
        "num.partitions": "1",
        "default.replication.factor": f"{replicas}",
        "min.insync.replicas": f"{in_sync}",
        # Few partitions: each costs files and start-up time, and no test has many groups.
        "offsets.topic.num.partitions": "5",
        "offsets.topic.replication.factor": f"{replicas}",
        "transaction.state.log.num.partitions": "5",
        "transaction.state.log.replication.factor": f"{replicas}",
        "transaction.state.log.min.isr": f"{in_sync}",
        "share.coordinator.state.topic.num.partitions": "5",
        "share.coordinator.state.topic.replication.factor": f"{replicas}",
        "share.coordinator.state.topic.min.isr": f"{in_sync}",
        "group.initial.rebalance.delay.ms": "0",  # a group of one need not wait for others to join
        # A killed broker is noticed after 6 s instead of 9, without fencing one that a busy machine holds up.
        "broker.session.timeout.ms": "6000",
        "broker.heartbeat.interval.ms": "500",
        "num.network.threads": "2",
        "num.io.threads": "4",
    }
    return {**properties, **overrides}


def properties_text(properties: Mapping[str, str]) -> str:
    """The file's text. Backslashes in values are doubled, as the format of Java's property files demands."""
    return "".join(f"{key}={value}\n".replace("\\", "\\\\") for key, value in properties.items())


def _text(address: Address) -> str:
    return f"{address[0]}:{address[1]}"
