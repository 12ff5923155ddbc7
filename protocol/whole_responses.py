"""Small responses held whole: decoded, the broker addresses in them replaced or hidden, encoded again."""

from dataclasses import replace
from typing import Any

from kio.index import load_response_schema

from protocol.addresses import NodeAddresses
from protocol.apis import APIS, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, DESCRIBE_QUORUM, FIND_COORDINATOR
from protocol.errors import UnknownApi, UnsupportedVersion
from protocol.messages import decode, encode
from protocol.wire import skip, skip_tags

FIRST_DESCRIBE_QUORUM_WITH_NODES = 2
CONTROLLER_ENDPOINTS = 2
"""DescribeCluster's endpoint type (KIP-919)."""
BROKER_RESOURCE = 4
"""DescribeConfigs' resource type."""

ADDRESS_CONFIGS = ("listeners", "quorum.voters", "bootstrap.servers")
"""How the names of broker configs end whose values hold broker addresses: `listeners`, `advertised.listeners`,
`controller.quorum.voters`, `controller.quorum.bootstrap.servers`, and the `...bootstrap.servers` of plug-ins."""
_ADDRESS_CONFIG_BYTES = tuple(ending.encode() for ending in ADDRESS_CONFIGS)


def rewrite_response(api_key: int, version: int, response: bytes, addresses: NodeAddresses) -> bytes:
    """A response of FindCoordinator, DescribeCluster, DescribeConfigs or DescribeQuorum as the client may see it.

    Args:
        version: of the request that this answers.
        response: the whole response from its correlation id on.

    Raises:
        UnknownApi: another API.
        UnsupportedVersion: the table does not let this version pass.
        MalformedFrame: the bytes are no such response.
    """
    rewrite = _REWRITES.get(api_key)
    if rewrite is None:
        raise UnknownApi(api_key)
    api = APIS[api_key]
    if not api.covers(version):
        raise UnsupportedVersion(api.name, version)
    if not _may_hold_addresses(api_key, version, response):
        return response
    body_start = skip(0, 4, len(response), 0, "correlation id")
    if api.response_header_is_flexible(version):
        body_start = skip_tags(response, body_start, len(response), 0)
    body = decode(load_response_schema(api_key, version), response, body_start)
    return response[:body_start] + encode(rewrite(body, addresses))


def _may_hold_addresses(api_key: int, version: int, response: bytes) -> bool:
    if api_key == DESCRIBE_QUORUM:
        return version >= FIRST_DESCRIBE_QUORUM_WITH_NODES
    if api_key == DESCRIBE_CONFIGS:
        # Admin tools ask for all topics at once: tens of thousands of configs, none of which is a broker's.
        return any(ending in response for ending in _ADDRESS_CONFIG_BYTES)
    return True


# kio has one class for each version of a message, all alike in what is used here: hence `Any`.


def _rewrite_find_coordinator(body: Any, addresses: NodeAddresses) -> Any:
    if hasattr(body, "coordinators"):  # 4+: a batch (KIP-699)
        return replace(body, coordinators=tuple(_rewrite_coordinator(one, addresses) for one in body.coordinators))
    return _rewrite_coordinator(body, addresses)


def _rewrite_coordinator(coordinator: Any, addresses: NodeAddresses) -> Any:
    if not coordinator.host or coordinator.port < 0:
        return coordinator  # an error: there is no coordinator yet
    host, port = addresses.advertise(coordinator.node_id, coordinator.host, coordinator.port)
    return replace(coordinator, host=host, port=port)


def _rewrite_describe_cluster(body: Any, addresses: NodeAddresses) -> Any:
    if getattr(body, "endpoint_type", None) == CONTROLLER_ENDPOINTS:
        # The proxy does not stand before controllers, so there is no address to give.
        return replace(body, brokers=tuple(replace(node, host="", port=-1) for node in body.brokers))
    # KIP-1073: fenced brokers are named where a client asks for them. None of them can be reached, and one that was
    # retired stays fenced until somebody unregisters it.
    living = [broker for broker in body.brokers if not _is_fenced(broker)]
    told = iter(addresses.advertise_all([(broker.broker_id, broker.host, broker.port) for broker in living]))
    brokers = []
    for broker in body.brokers:
        host, port = ("", -1) if _is_fenced(broker) else next(told)
        brokers.append(replace(broker, host=host, port=port))
    return replace(body, brokers=tuple(brokers))


def _is_fenced(broker: Any) -> bool:
    return getattr(broker, "is_fenced", False)


def _rewrite_describe_quorum(body: Any, addresses: NodeAddresses) -> Any:
    # KIP-853: listeners of controllers, before which the proxy does not stand.
    return replace(body, nodes=tuple(replace(node, listeners=()) for node in body.nodes))


def _rewrite_describe_configs(body: Any, addresses: NodeAddresses) -> Any:
    return replace(body, results=tuple(_without_addresses(result) for result in body.results))


def _without_addresses(result: Any) -> Any:
    if result.resource_type != BROKER_RESOURCE:
        return result
    configs = []
    for config in result.configs:
        if config.name.endswith(ADDRESS_CONFIGS):
            synonyms = tuple(replace(synonym, value=None) for synonym in config.synonyms)
            configs.append(replace(config, value=None, synonyms=synonyms))
        else:
            configs.append(config)
    return replace(result, configs=tuple(configs))


_REWRITES = {
    FIND_COORDINATOR: _rewrite_find_coordinator,
    DESCRIBE_CONFIGS: _rewrite_describe_configs,
    DESCRIBE_QUORUM: _rewrite_describe_quorum,
    DESCRIBE_CLUSTER: _rewrite_describe_cluster,
}
