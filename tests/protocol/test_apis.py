"""The table against Kafka's own message definitions: those of 4.4.0, and of 3.9.1 for the versions that 4.x dropped."""

import json
import re
import zipfile
from dataclasses import dataclass
from typing import Any

import pytest

from deploy.local import artifacts
from protocol.api_versions import negotiate
from protocol.apis import API_VERSIONS, APIS, DESCRIBE_CONFIGS, SASL_HANDSHAKE, Treatment
from tests.protocol.kafka_messages import LAST_OF_KIO, parsed, response_schema
from tests.protocol.test_api_versions import offer, ranges

BETWEEN_BROKERS = {27, 83, 84, 85, 86, 87}
"""WriteTxnMarkers and the state of share groups: on the broker listener, but not for clients."""
NARROWED = {17: (1, 1), 22: (0, 5), 32: (1, 4)}
"""SaslHandshake and DescribeConfigs without 0, InitProducerId without the unstable 6: see the table's head."""
CLIENT_ENDPOINTS = {88, 89}
"""StreamsGroupHeartbeat and StreamsGroupDescribe: hosts and ports there are those of applications, not of brokers."""


@dataclass(frozen=True)
class Definition:
    """What Kafka's JSON says of one API."""

    name: str
    listeners: list[str]
    versions: tuple[int, int] | None
    unstable: bool
    flexible_from: int | None
    response: dict[str, Any]


def definitions(kafka: artifacts.ArtifactSet) -> dict[int, Definition]:
    jar = next(path for path in artifacts.ensure(kafka) if path.name.startswith("kafka-clients-"))
    found: dict[int, dict[str, Any]] = {}
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            if re.fullmatch(r"common/message/\w+\.json", name):
                lines = archive.read(name).decode().splitlines()
                message = json.loads(
                    "\n".join(re.sub(r"//[^\"]*$", "", line) for line in lines if line.strip()[:2] != "//")
                )
                if message["type"] in ("request", "response"):
                    found.setdefault(message["apiKey"], {})[message["type"]] = message
    return {key: _definition(both["request"], both["response"]) for key, both in found.items() if len(both) == 2}


def _definition(request: dict[str, Any], response: dict[str, Any]) -> Definition:
    bounds = [int(bound) for bound in request["validVersions"].split("-") if bound != "none"]
    flexible = request.get("flexibleVersions", "none")
    return Definition(
        name=request["name"].removesuffix("Request"),
        listeners=request.get("listeners") or [],
        versions=(bounds[0], bounds[-1]) if bounds else None,
        unstable=request.get("latestVersionUnstable", False),
        flexible_from=None if flexible == "none" else int(flexible.rstrip("+")),
        response=response,
    )


@pytest.fixture(scope="module")
def newest() -> dict[int, Definition]:
    return definitions(artifacts.KAFKA_4_4_0)


@pytest.fixture(scope="module")
def older() -> dict[int, Definition]:
    return definitions(artifacts.KAFKA_3_9_1)


def test_lists_what_brokers_offer_to_clients(newest: dict[int, Definition]) -> None:
    offered = {key for key, api in newest.items() if "broker" in api.listeners and api.versions}

    assert set(APIS) == offered - BETWEEN_BROKERS


def test_versions(newest: dict[int, Definition], older: dict[int, Definition]) -> None:
    for key, api in APIS.items():
        lowest, highest = newest[key].versions or (None, None)
        assert lowest is not None
        assert highest is not None
        before = older.get(key)
        if before is not None and before.versions and not before.unstable:
            lowest = min(lowest, before.versions[0])
            assert before.versions[1] <= highest
        assert (api.min_version, api.max_version) == NARROWED.get(key, (lowest, highest)), api.name


@pytest.mark.parametrize(
    ("kafka", "below_the_table"),
    [
        (artifacts.KAFKA_3_9_1, {SASL_HANDSHAKE, DESCRIBE_CONFIGS}),
        (artifacts.KAFKA_4_3_1, {SASL_HANDSHAKE}),
        (artifacts.KAFKA_4_4_0, {SASL_HANDSHAKE}),
    ],
    ids=["3.9.1", "4.3.1", "4.4.0"],
)
def test_no_minimum_that_is_offered_is_above_the_brokers(
    kafka: artifacts.ArtifactSet, below_the_table: set[int]
) -> None:
    """Clients test for versions that they do not send. Brokers do not offer versions that are not stable."""
    brokers = {
        key: (api.versions[0], api.versions[1] - api.unstable)
        for key, api in definitions(kafka).items()
        if key in APIS and "broker" in api.listeners and api.versions
    }
    brokers = {key: (lowest, highest) for key, (lowest, highest) in brokers.items() if lowest <= highest}
    broker = offer(3, *((key, *versions) for key, versions in brokers.items()))

    offered = ranges(parsed(API_VERSIONS, 3, negotiate(broker, 3, pass_unknown_apis=False)))

    assert {key: lowest for key, lowest, _ in offered} == {key: lowest for key, (lowest, _) in brokers.items()}
    assert {key for key, lowest, _ in offered if not APIS[key].covers(lowest)} == below_the_table


def test_unstable_versions_are_left_out(newest: dict[int, Definition]) -> None:
    for key, api in APIS.items():
        if newest[key].unstable:
            assert api.max_version < (newest[key].versions or (0, 0))[1], api.name


def test_names_and_flexible_versions(newest: dict[int, Definition], older: dict[int, Definition]) -> None:
    for key, api in APIS.items():
        assert api.name == newest[key].name
        assert api.flexible_from == newest[key].flexible_from, api.name
        if key in older and older[key].versions:
            assert api.flexible_from == older[key].flexible_from, api.name


FIXED_SIZES = {"bool": 1, "int8": 1, "int16": 2, "int32": 4, "int64": 8, "uuid": 16}


def test_throttle_times(newest: dict[int, Definition]) -> None:
    for key, api in APIS.items():
        fields = newest[key].response["fields"]
        names = [field["name"] for field in fields]
        if "ThrottleTimeMs" not in names:
            assert (api.throttle_from, api.throttle_at) == (None, None), api.name
            continue
        index = names.index("ThrottleTimeMs")
        assert api.throttle_from == int(fields[index]["versions"].rstrip("+")), api.name
        sizes = [FIXED_SIZES.get(field["type"]) if field["versions"] == "0+" else None for field in fields[:index]]
        assert api.throttle_at == (None if None in sizes else sum(size or 0 for size in sizes)), api.name


ADDRESSES_REPLACED_OR_HIDDEN = {
    Treatment.PRODUCE,
    Treatment.FETCH,
    Treatment.METADATA,
    Treatment.REWRITE,
    Treatment.HIDE,
}


def test_no_response_with_an_address_is_forwarded_unchanged(newest: dict[int, Definition]) -> None:
    """Each field named Port is part of an endpoint. A new one in Kafka's definitions fails here."""
    for key, api in APIS.items():
        if '"Port"' in json.dumps(newest[key].response) and key not in CLIENT_ENDPOINTS:
            assert api.treatment in ADDRESSES_REPLACED_OR_HIDDEN, api.name


def test_each_treatment_is_used() -> None:
    assert {api.treatment for api in APIS.values()} == set(Treatment)


def test_kio_reads_every_version_that_is_decoded() -> None:
    decoded = (Treatment.NEGOTIATE, Treatment.REWRITE, Treatment.METADATA, Treatment.HIDE, Treatment.INSPECT)
    for api in APIS.values():
        if api.treatment in decoded:
            for version in range(api.min_version, api.max_version + 1):
                assert response_schema(api.key, version).__flexible__ == api.is_flexible(version)


def test_what_kio_does_not_have_is_as_its_last_version(newest: dict[int, Definition]) -> None:
    """No field of the response has another version than "to the end", so none begins or ends after kio's last."""
    for key, last in LAST_OF_KIO.items():
        versions = re.findall(
            r'"(?:taggedVersions|versions|nullableVersions)": "([^"]*)"', json.dumps(newest[key].response)
        )
        assert versions
        assert all(int(each.removesuffix("+")) <= last for each in versions)


def test_the_header_of_an_api_versions_response_is_never_flexible() -> None:
    api = APIS[API_VERSIONS]
    assert api.is_flexible(4)
    assert not api.response_header_is_flexible(4)
    assert APIS[3].response_header_is_flexible(9)
    assert not APIS[3].response_header_is_flexible(8)
