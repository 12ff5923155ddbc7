"""What the head of a Fetch response tells of the consumer's lag, in each version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import APIS, FETCH
from protocol.fetch_lag import Position, first_position
from tests.protocol.fetch_responses import fetch_response
from tests.protocol.kafka_messages import record_batch

VERSIONS = range(APIS[FETCH].max_version + 1)
#: Offsets 0 to 9, of a partition with 4,711 records.
BATCH = record_batch(10, bytes(200))


def position(response: bytes, version: int, arrived: int | None = None) -> Position | None:
    return first_position(bytearray(response), 0, len(response) if arrived is None else arrived, version)


@pytest.mark.parametrize("version", VERSIONS)
def test_what_follows_the_first_batch(version: int) -> None:
    """The partitions that the builders make have 4,711 records, those of old versions 9."""
    found = position(fetch_response(version, [[BATCH, BATCH], [None]]), version)
    assert found is not None
    assert found.behind == (4_711 - 10 if version >= 4 else 0)
    assert found.partition.endswith((3 if version >= 4 else 0).to_bytes(4, "big"))


@pytest.mark.parametrize("version", range(4, VERSIONS.stop))
def test_nothing_new(version: int) -> None:
    found = position(fetch_response(version, [[None]]), version)
    assert found is not None
    assert found.behind == 0
    assert found.partition
    assert position(fetch_response(version, []), version) == (Position(b"", 0) if version >= 7 else None)


@given(st.sampled_from(VERSIONS), st.integers(0, 400))
def test_a_response_that_has_arrived_in_part_tells_the_same_or_nothing(version: int, arrived: int) -> None:
    response = fetch_response(version, [[BATCH], [None]])
    assert position(response, version, min(arrived, len(response))) in {None, position(response, version)}


@given(st.sampled_from(VERSIONS), st.binary(max_size=300))
def test_any_bytes(version: int, data: bytes) -> None:
    position(data, version)
