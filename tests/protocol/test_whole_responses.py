"""Small responses in every version, as kio writes them."""

import datetime
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_payload_module
from kio.schema.errors import ErrorCode
from kio.static.constants import EntityType

from protocol.apis import (
    APIS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_QUORUM,
    FETCH,
    FIND_COORDINATOR,
)
from protocol.errors import MalformedFrame, UnknownApi, UnsupportedVersion
from protocol.whole_responses import BROKER_RESOURCE, CONTROLLER_ENDPOINTS, rewrite_response
from tests.protocol.kafka_messages import (
    PROXY_HOST,
    REAL_HOST,
    REAL_HOSTS,
    Addresses,
    parsed,
    proxy_port,
    response_bytes,
    responses,
)

REWRITTEN = [FIND_COORDINATOR, DESCRIBE_CONFIGS, DESCRIBE_QUORUM, DESCRIBE_CLUSTER]
APIS_AND_VERSIONS = [
    (key, version) for key in REWRITTEN for version in range(APIS[key].min_version, APIS[key].max_version + 1)
]
NO_TIME = datetime.timedelta(0)
PORTS = st.integers(1, 65_535)
CONFIG_NAMES = st.sampled_from(
    [
        "listeners",
        "advertised.listeners",
        "controller.quorum.voters",
        "controller.quorum.bootstrap.servers",
        "metrics.reporter.bootstrap.servers",
    ]
)
REAL_ADDRESSES = st.sampled_from([f"PLAINTEXT://{REAL_HOST}:9092", f"1@{REAL_HOST}:9093,2@{REAL_HOST}:9093", None])


def rewritten(api_key: int, version: int, body: Any, addresses: Addresses | None = None) -> Any:
    response = response_bytes(api_key, version, body)
    after = rewrite_response(api_key, version, response, addresses or Addresses())
    return parsed(api_key, version, after)


@pytest.mark.parametrize(("api_key", "version"), APIS_AND_VERSIONS)
@given(data=st.data())
def test_no_real_address_is_left(api_key: int, version: int, data: st.DataObject) -> None:
    fixed = {"host": REAL_HOSTS, "port": PORTS}
    if api_key == DESCRIBE_CONFIGS:
        fixed = {"name": CONFIG_NAMES, "value": REAL_ADDRESSES, "resource_type": st.just(BROKER_RESOURCE)}
    body = data.draw(responses(api_key, version, **fixed))

    after = rewrite_response(api_key, version, response_bytes(api_key, version, body), Addresses())

    assert REAL_HOST.encode() not in after
    parsed(api_key, version, after)


@pytest.mark.parametrize("version", range(4))
@given(data=st.data())
def test_find_coordinator(version: int, data: st.DataObject) -> None:
    body = data.draw(responses(FIND_COORDINATOR, version, host=REAL_HOSTS, port=PORTS))
    addresses = Addresses()

    after = rewritten(FIND_COORDINATOR, version, body, addresses)

    assert after == replace(body, host=PROXY_HOST, port=proxy_port(body.node_id))
    assert addresses.told == [(body.node_id, REAL_HOST, body.port)]


@pytest.mark.parametrize("version", range(4, 7))
@given(data=st.data())
def test_find_coordinators(version: int, data: st.DataObject) -> None:
    body = data.draw(responses(FIND_COORDINATOR, version, host=REAL_HOSTS, port=PORTS))

    after = rewritten(FIND_COORDINATOR, version, body)

    expected = tuple(replace(one, host=PROXY_HOST, port=proxy_port(one.node_id)) for one in body.coordinators)
    assert after == replace(body, coordinators=expected)


@pytest.mark.parametrize("version", range(7))
def test_no_coordinator(version: int) -> None:
    """Nothing is made up where the broker had nothing to say."""
    module: Any = load_payload_module(FIND_COORDINATOR, version, EntityType.response)
    nobody = {"error_code": ErrorCode.coordinator_not_available, "node_id": -1, "host": "", "port": -1}
    throttle = {"throttle_time": NO_TIME} if version >= 1 else {}
    if version >= 4:
        body = module.FindCoordinatorResponse(
            coordinators=(module.Coordinator(key="g", error_message=None, **nobody),), **throttle
        )
    else:
        message = {"error_message": None} if version >= 1 else {}
        body = module.FindCoordinatorResponse(**nobody, **message, **throttle)
    addresses = Addresses()

    assert rewritten(FIND_COORDINATOR, version, body, addresses) == body
    assert addresses.told == []


@pytest.mark.parametrize("version", range(3))
@given(data=st.data())
def test_describe_cluster(version: int, data: st.DataObject) -> None:
    fixed = {"endpoint_type": st.just(1)} if version >= 1 else {}
    body = data.draw(responses(DESCRIBE_CLUSTER, version, host=REAL_HOSTS, port=PORTS, **fixed))
    addresses = Addresses()

    after = rewritten(DESCRIBE_CLUSTER, version, body, addresses)

    living = [one for one in body.brokers if version < 2 or not one.is_fenced]
    brokers = tuple(
        replace(one, host=PROXY_HOST, port=proxy_port(one.broker_id))
        if one in living
        else replace(one, host="", port=-1)
        for one in body.brokers
    )
    assert after == replace(body, brokers=brokers)
    assert addresses.lists == [[(one.broker_id, REAL_HOST, one.port) for one in living]]
    assert not addresses.told, "who is not in the list has left, so it is told as a whole"


@pytest.mark.parametrize("version", [1, 2])
@given(data=st.data())
def test_describe_cluster_of_controllers(version: int, data: st.DataObject) -> None:
    body = data.draw(
        responses(DESCRIBE_CLUSTER, version, host=REAL_HOSTS, port=PORTS, endpoint_type=st.just(CONTROLLER_ENDPOINTS))
    )
    addresses = Addresses()

    after = rewritten(DESCRIBE_CLUSTER, version, body, addresses)

    assert after == replace(body, brokers=tuple(replace(one, host="", port=-1) for one in body.brokers))
    assert not addresses.told
    assert not addresses.lists


@given(data=st.data())
def test_describe_quorum(data: st.DataObject) -> None:
    body = data.draw(responses(DESCRIBE_QUORUM, 2, host=REAL_HOSTS))

    after = rewritten(DESCRIBE_QUORUM, 2, body)

    assert after == replace(body, nodes=tuple(replace(node, listeners=()) for node in body.nodes))


@pytest.mark.parametrize("version", [0, 1])
@given(data=st.data())
def test_describe_quorum_without_nodes_is_left_as_it_is(version: int, data: st.DataObject) -> None:
    response = response_bytes(DESCRIBE_QUORUM, version, data.draw(responses(DESCRIBE_QUORUM, version)))

    assert rewrite_response(DESCRIBE_QUORUM, version, response, Addresses()) is response


def configs(version: int, resource_type: int, **values: str) -> Any:
    module: Any = load_payload_module(DESCRIBE_CONFIGS, version, EntityType.response)
    described = []
    for name, value in values.items():
        dotted = name.replace("_", ".")
        synonym = module.DescribeConfigsSynonym(name=f"listener.name.x.{dotted}", value=value, source=4)
        described.append(
            module.DescribeConfigsResourceResult(
                name=dotted,
                value=value,
                read_only=False,
                config_source=4,
                is_sensitive=False,
                synonyms=(synonym,),
                **({"documentation": None} if version >= 3 else {}),
            )
        )
    result = module.DescribeConfigsResult(
        error_code=ErrorCode.none,
        error_message=None,
        resource_type=resource_type,
        resource_name="1",
        configs=tuple(described),
    )
    return module.DescribeConfigsResponse(throttle_time=NO_TIME, results=(result,))


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_of_a_broker(version: int) -> None:
    address = f"PLAINTEXT://{REAL_HOST}:9092"
    body = configs(
        version,
        BROKER_RESOURCE,
        listeners=address,
        advertised_listeners=address,
        log_dirs="/data",
        broker_rack="r1",
        controller_quorum_bootstrap_servers=f"{REAL_HOST}:9093",
        controller_quorum_voters=f"1@{REAL_HOST}:9093",
    )

    described = rewritten(DESCRIBE_CONFIGS, version, body).results[0].configs

    values = {config.name: [config.value, *(synonym.value for synonym in config.synonyms)] for config in described}
    assert values == {
        "listeners": [None, None],
        "advertised.listeners": [None, None],
        "controller.quorum.bootstrap.servers": [None, None],
        "controller.quorum.voters": [None, None],
        "log.dirs": ["/data", "/data"],
        "broker.rack": ["r1", "r1"],
    }


@pytest.mark.parametrize("version", range(1, 5))
def test_describe_configs_of_a_topic(version: int) -> None:
    """Topics have no such configs; what looks like one is their owner's business."""
    response = response_bytes(DESCRIBE_CONFIGS, version, configs(version, 2, cleanup_policy="compact"))
    assert rewrite_response(DESCRIBE_CONFIGS, version, response, Addresses()) is response

    body = configs(version, 2, my_listeners="someone")
    assert rewritten(DESCRIBE_CONFIGS, version, body) == body


@pytest.mark.parametrize("api_key", REWRITTEN)
def test_versions_outside_of_the_table(api_key: int) -> None:
    for version in (APIS[api_key].min_version - 1, APIS[api_key].max_version + 1):
        with pytest.raises(UnsupportedVersion):
            rewrite_response(api_key, version, bytes(100), Addresses())


def test_another_api() -> None:
    with pytest.raises(UnknownApi):
        rewrite_response(FETCH, 12, bytes(100), Addresses())


@pytest.mark.parametrize(("api_key", "version"), APIS_AND_VERSIONS)
@given(data=st.data())
def test_cut_short_or_too_long(api_key: int, version: int, data: st.DataObject) -> None:
    fixed = {"name": CONFIG_NAMES} if api_key == DESCRIBE_CONFIGS else {}
    body = data.draw(responses(api_key, version, **fixed))
    response = response_bytes(api_key, version, body)
    if rewrite_response(api_key, version, response, Addresses()) is response:
        return  # nothing to look for
    cut = data.draw(st.integers(0, len(response) - 1))
    broken = data.draw(st.sampled_from([response[:cut], response + b"\x00"]))
    try:
        after = rewrite_response(api_key, version, broken, Addresses())
    except MalformedFrame:
        return
    assert after is broken  # cut before the first name of a config that holds addresses
