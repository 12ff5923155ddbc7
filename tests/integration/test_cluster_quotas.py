"""The cluster's own client quotas, set by Kafka's own tools, enforced by the proxy on open connections."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from confluent_kafka import Producer

from deploy.local.broker_quota import Entity, alter_quotas
from deploy.local.cluster import KafkaCluster
from deploy.local.security import Security
from deploy.local.tap import Tap
from tests.conftest import UniqueName
from tests.integration.bytes_passed import SECONDS, check_frames, span
from tests.integration.flood import Flood
from tests.integration.java_tools import run_tool
from tests.integration.proxy_process import ProxyProcess, eventually
from tests.integration.test_check import checked
from tests.integration.topics import create_topics

#: A reading every ten seconds or so, on a busy machine.
DEADLINE_SECONDS = 60.0
PRODUCED, FETCHED = "producer_byte_rate", "consumer_byte_rate"
RATE = 500_000
#: What is enforced of a byte rate, with the windows that brokers have by default.
SHARE = 0.95


def configs(bootstrap: str, *arguments: str) -> str:
    return run_tool("kafka.admin.ConfigCommand", "--bootstrap-server", bootstrap, *arguments).strip()


def limits(proxy: ProxyProcess, client_id: str) -> dict[str, float]:
    """Those of the cluster for this client id, by name."""
    rows = proxy.page("/limits")
    place = f"client-id:{client_id}", "--cluster-quotas"
    return {row["limit"]: row["limit_value"] for row in rows if (row["entity"], row["source"]) == place}


@pytest.mark.claim("limits", "what kafka-configs through the proxy does")
@pytest.mark.claim(
    "limits", "the cluster's own quotas apply on open connections, with their source, and nothing disconnects"
)
@pytest.mark.timeout(250)
def test_kafka_configs_changes_what_an_open_connection_may_send(
    tap: Tap, tapped_cluster: KafkaCluster, unique_name: UniqueName
) -> None:
    """A default, then an entry of its own, which is altered and deleted, through the proxy. The broker enforces them,
    too: by the share the proxy's limits are half of these, so that it is the proxy that holds. The proxy's own quota is
    not among those that the tool shows.
    """
    client_id, other = unique_name("etl"), unique_name("other")
    create_topics(tapped_cluster, client_id)
    flags = ("--cluster-quotas", "total", "--quota-share", "0.5", "--quota", f"client-id={other},{PRODUCED}=5MB")
    with ProxyProcess(tapped_cluster.bootstrap_servers, *flags) as proxy:
        alter = partial(configs, proxy.bootstrap_servers, "--alter", "--entity-type", "clients")
        frames = partial(tap.sizes, "produce", client_id)

        def becomes(rate: float | None, what: str) -> None:
            below = None if rate is None else rate * SHARE
            eventually(lambda: limits(proxy, client_id).get(PRODUCED) == below, DEADLINE_SECONDS, what)

        alter("--entity-default", "--add-config", f"{PRODUCED}={4 * RATE}")
        proxy.wait_for_event("cluster_quotas_read", DEADLINE_SECONDS, entities=1)  # without a signal
        with Flood(proxy.bootstrap_servers, client_id, client_id) as flood:
            becomes(2 * RATE, "the default applies")
            told = alter("--entity-name", client_id, "--add-config", f"{PRODUCED}={2 * RATE},request_percentage=5000")
            assert told == f"Completed updating config for client {client_id}."
            shown = configs(proxy.bootstrap_servers, "--describe", "--entity-type", "clients")
            assert (f"client-id '{client_id}'" in shown, f"{PRODUCED}={2.0 * RATE}" in shown) == (True, True)
            assert other not in shown
            becomes(RATE, "its own entry is stronger")
            since_ns = frames()[-1][0]

            def later() -> list[tuple[int, int]]:
                return [each for each in frames() if each[0] > since_ns]

            eventually(lambda: span(later()) > SECONDS * 10**9, DEADLINE_SECONDS, "it has sent for some seconds")
            check_frames(later(), int(RATE * SHARE))
            assert "request_percentage of 1 " in proxy.wait_for_event("cluster_quotas_left_out", 1)["limits"]
            alter("--entity-name", client_id, "--add-config", f"{PRODUCED}={8 * RATE}")
            proxy.reload()
            becomes(4 * RATE, "altered; a signal reads it at once")
            alter("--entity-name", client_id, "--delete-config", PRODUCED)
            proxy.reload()
            becomes(2 * RATE, "deleted: the default applies")
            alter("--entity-default", "--delete-config", PRODUCED)
            proxy.reload()
            becomes(None, "nothing applies")
            flood.wait_for(flood.records() + 200)
            assert proxy.metric("cluster_quotas_last_read_successful") == 1
        assert flood.problems == []
    assert len({frame.connection for frame in tap.frames("produce", client_id)}) == 1
    assert not [each for each in proxy.events if each["event"] == "cluster_quotas_failed"]


@pytest.mark.nightly
@pytest.mark.timeout(150)
def test_the_broker_never_mutes_a_client_that_the_proxy_holds(
    tap: Tap, tapped_cluster: KafkaCluster, unique_name: UniqueName
) -> None:
    """At the figure that both enforce, for longer than its windows: the first ten seconds are always well."""
    client_id = unique_name("etl")
    create_topics(tapped_cluster, client_id)
    entry = ("--entity-type", "clients", "--entity-name", client_id, "--add-config", f"{PRODUCED}={4 * RATE}")
    configs(tapped_cluster.bootstrap_servers, "--alter", *entry)
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--cluster-quotas", "total") as proxy:
        proxy.wait_for_event("cluster_quotas_read", DEADLINE_SECONDS)
        with Flood(proxy.bootstrap_servers, client_id, client_id):
            eventually(lambda: span(tap.sizes("produce", client_id)) > 15 * 10**9, 180, "it sends for 15 s")
        assert proxy.metric("broker_throttle_seconds_total", client_id=client_id) == 0


# ---- against the broker's own answer

#: From the strongest level, with rates that are far enough from each other: the broker tells each by its throttle time.
LEVELS: Final[dict[Entity, int]] = {
    (("user", "alice"), ("client-id", "etl")): 3_000,
    (("user", "alice"), ("client-id", None)): 4_500,
    (("user", "bob"),): 7_000,
    (("user", None), ("client-id", "etl")): 10_000,
    (("user", None), ("client-id", None)): 15_000,
    (("user", None),): 23_000,
    (("client-id", "etl"),): 35_000,
    (("client-id", None),): 52_000,
}
#: Seconds of a limit that one request takes. Of its throttle time Kafka subtracts the ten seconds of its windows.
REQUEST_SECONDS, WINDOW_SECONDS = 15, 10
LOGIN = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}


def throttled_seconds(
    servers: str, user: str, password: str, client_id: str, topic: str, size: int, then: Callable[[], object] = bool
) -> float:
    """What the broker tells this client after one request of that size. `then`: with the connection still open."""
    found: list[float] = []
    settings = {**LOGIN, "bootstrap.servers": servers, "sasl.username": user, "sasl.password": password}
    told = {"throttle_cb": lambda event: found.append(event.throttle_time)}
    producer = Producer({"client.id": client_id, **settings, **told})
    producer.produce(topic, bytes(size))
    eventually(lambda: producer.poll(0.05) or found or not len(producer), DEADLINE_SECONDS, "an answer")
    producer.poll(0.5)
    then()
    return max(found, default=0.0)


def limit_of(proxy: ProxyProcess, user: str, client_id: str) -> float:
    """The producer's limit of this client, which is connected to the proxy; 0: none yet."""
    clients = proxy.page("/clients")
    limits = [each["limits"] for each in clients if (each["user"], each["client_id"]) == (user, client_id)]
    rows = proxy.page("/limits")
    found = {(each["limit"], each["entity"]): each["limit_value"] for each in rows}
    return sum(float(found.get((name, entity), 0)) for each in limits for name, entity in each if name == PRODUCED)


@pytest.mark.claim("limits", "at each of the eight levels they limit as the broker does")
@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_at_each_of_the_eight_levels_the_broker_limits_by_the_same_entry(
    security: Security, unique_name: UniqueName, tmp_path: Path
) -> None:
    """The broker enforces them, too: what it tells a client that bypasses the proxy follows from the limit that the
    proxy has for this client. With another entry's it would be nothing, or at least twice as much.
    """
    file, topic = tmp_path / "client.properties", unique_name("orders")
    file.write_text("security.protocol=SASL_PLAINTEXT\n")
    with KafkaCluster(1, security=security) as cluster:
        own = tmp_path / "own.properties"
        own.write_text(f"bootstrap.servers={cluster.bootstrap_servers}\n")
        create_topics(cluster, topic)
        direct = cluster.secure_addresses("SASL_PLAINTEXT")
        flags = ("--command-config", str(file), "--own-client-config", str(own), "--cluster-quotas", "total")
        alter_quotas(cluster.advertised_addresses[1], {entity: {PRODUCED: rate} for entity, rate in LEVELS.items()})
        with ProxyProcess(direct, *flags) as proxy:

            def check(expected: int, *clients: tuple[str, str]) -> None:
                """Of these clients, when this number of entries is left."""
                eventually(lambda: any(each.get("entities") == expected for each in proxy.events), 60, "read")
                for user, client_id in clients:
                    name = user, security.users[user], client_id, topic

                    def look(user: str = user, client_id: str = client_id) -> None:
                        has_limit = partial(limit_of, proxy, user, client_id)
                        seen.append(eventually(has_limit, DEADLINE_SECONDS, f"the limit of {user}, {client_id}"))

                    throttled_seconds(proxy.bootstrap_servers, *name, 10, look)
                    told = throttled_seconds(direct, *name, int(REQUEST_SECONDS * seen[-1] / SHARE))
                    assert REQUEST_SECONDS - WINDOW_SECONDS - 2 < told < REQUEST_SECONDS - WINDOW_SECONDS + 2, name

            def remove(*entities: Entity) -> None:
                alter_quotas(cluster.advertised_addresses[1], {each: {PRODUCED: None} for each in entities})
                proxy.reload()

            seen = list[float]()
            check(8, ("alice", "etl"), ("alice", "other"), ("bob", "etl"), ("etl", "etl"), ("etl", "other"))
            remove((("user", None), ("client-id", "etl")), (("user", None), ("client-id", None)))
            check(6, ("etl", "any"))
            remove((("user", None),))
            check(5, ("etl", "etl"), ("etl", "else"))
            assert seen == [SHARE * rate for rate in LEVELS.values()]


@pytest.mark.claim(
    "security",
    "the proxy's own client reads the cluster's quotas with one right, DescribeConfigs on the "
    "cluster; without it nothing that was read before changes",
)
@pytest.mark.nightly
@pytest.mark.timeout(200)
def test_a_thousand_entities_and_the_rights_that_reading_them_needs(
    security: Security, unique_name: UniqueName, tmp_path: Path
) -> None:
    """The proxy's own user has no right first; Kafka's own tool gives it the one that the log names."""
    own = tmp_path / "own.properties"
    password = security.users["bob"]
    authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
    overrides = {"authorizer.class.name": authorizer, "super.users": "User:ANONYMOUS"}
    with KafkaCluster(1, overrides=overrides, security=security) as cluster:
        lines = [f"{key}={value}" for key, value in LOGIN.items()]
        lines += ["sasl.username=bob", f"sasl.password={password}"]
        own.write_text("\n".join([f"bootstrap.servers={cluster.secure_addresses('SASL_PLAINTEXT')}", *lines]))
        names = [unique_name("job") for _ in range(1_000)]
        quotas: dict[Entity, dict[str, float | None]] = {
            (("client-id", name),): {PRODUCED: 1_000 + number} for number, name in enumerate(names)
        }
        alter_quotas(cluster.advertised_addresses[1], quotas)
        flags = ("--cluster-quotas", "total", "--own-client-config", str(own))
        with ProxyProcess(cluster.bootstrap_servers, *flags) as proxy:
            failed = proxy.wait_for_event("cluster_quotas_failed", DEADLINE_SECONDS)
            assert failed["message"].startswith("cluster_authorization_failed")
            assert "--allow-principal User:bob --operation DescribeConfigs --cluster" in failed["hint"]
            assert proxy.metric("cluster_quotas_last_read_successful") == 0
            code, shown = checked("--bootstrap-servers", cluster.bootstrap_servers, *flags)
            assert code == 1
            assert [line for line in shown if line.startswith("✗ --cluster-quotas: cluster_authorization_failed")]
            principal = ("--allow-principal", "User:bob", "--operation", "DescribeConfigs", "--cluster")
            run_tool("AclCommand", "--bootstrap-server", cluster.bootstrap_servers, "--add", *principal)
            assert proxy.wait_for_event("cluster_quotas_read", DEADLINE_SECONDS)["entities"] == 1_000
            proxy.wait_for_event("cluster_quotas_recovered", DEADLINE_SECONDS)
            with Flood(proxy.bootstrap_servers, names[500], unique_name("orders")):
                eventually(lambda: limits(proxy, names[500]) == {PRODUCED: SHARE * 1_500}, DEADLINE_SECONDS, "own")
            code, shown = checked("--bootstrap-servers", cluster.bootstrap_servers, *flags)
            assert shown[-1] == "✓ --cluster-quotas: 1000 entities with quotas can be read"
            assert sum(each["event"] == "cluster_quotas_failed" for each in proxy.events) == 1
        assert password not in json.dumps(proxy.events)
