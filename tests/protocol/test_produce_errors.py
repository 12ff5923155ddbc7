"""What brokers refused, read from Produce responses of every version that kio has."""

import contextlib
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from protocol.apis import APIS, PRODUCE
from protocol.errors import ProtocolError
from protocol.produce_errors import FIRST_WITH_SCHEMA, refused_share
from protocol.produce_walk import FIRST_WITH_TOPIC_IDS
from protocol.topics import NO_TOPIC_ID
from tests.protocol.kafka_messages import response_bytes, responses

VERSIONS = range(FIRST_WITH_SCHEMA, APIS[PRODUCE].max_version + 1)


def expected(version: int, body: Any) -> dict[str | bytes, Fraction]:
    """As `refused_share`, said slowly; of a topic told of twice the last counts."""
    found: dict[str | bytes, Fraction] = {}
    for topic in body.responses:
        errors = [partition.error_code for partition in topic.partition_responses]
        failed = [error for error in errors if error != ErrorCode.none]
        if not failed:
            continue
        if version < FIRST_WITH_TOPIC_IDS:
            found[topic.name] = Fraction(len(failed), len(errors))
        else:
            found[NO_TOPIC_ID if topic.topic_id is None else topic.topic_id.bytes] = Fraction(len(failed), len(errors))
    return found


@pytest.mark.parametrize("version", VERSIONS)
@given(data=st.data())
def test_a_topic_counts_by_its_share_of_partitions_with_errors(version: int, data: st.DataObject) -> None:
    body = data.draw(responses(PRODUCE, version))
    assert refused_share(version, response_bytes(PRODUCE, version, body)) == expected(version, body)


@pytest.mark.parametrize("version", range(FIRST_WITH_SCHEMA))
def test_of_versions_without_a_schema_nothing_is_known(version: int) -> None:
    assert refused_share(version, b"\x00" * 40) == {}


@pytest.mark.parametrize("version", VERSIONS)
@given(response=st.binary(max_size=100))
def test_any_bytes_are_read_or_refused(version: int, response: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        refused_share(version, response)
