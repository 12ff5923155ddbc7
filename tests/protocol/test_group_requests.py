"""What the head of a group's request tells, in each version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.apis import APIS
from protocol.group_requests import GROUP_APIS, JOIN_GROUP, SYNC_GROUP, GroupEvent, group_event
from protocol.messages import encode
from tests.protocol.kafka_messages import of_request

NAMES = {
    11: "JoinGroupRequest",
    14: "SyncGroupRequest",
    68: "ConsumerGroupHeartbeatRequest",
    76: "ShareGroupHeartbeatRequest",
    88: "StreamsGroupHeartbeatRequest",
}
CASES = [
    (api, version)
    for api in sorted(GROUP_APIS - {88})  # kio does not know this one; it has the layout of the other two
    for version in range(APIS[api].min_version, APIS[api].max_version + 1)
]


def event(api: int, version: int, body: bytes) -> GroupEvent | None:
    return group_event(api, version, body, is_flexible=APIS[api].is_flexible(version))


def body_of(api: int, version: int, epoch: int, member: str) -> bytes:
    epochs = {} if api == JOIN_GROUP else {"generation_id" if api == SYNC_GROUP else "member_epoch": epoch}
    return encode(of_request(api, version, NAMES[api], group_id="team", member_id=member, **epochs))


@pytest.mark.parametrize(("api", "version"), CASES)
def test_group_epoch_and_who_joins(api: int, version: int) -> None:
    is_join, is_heartbeat = api == JOIN_GROUP, api not in {JOIN_GROUP, SYNC_GROUP}
    assert event(api, version, body_of(api, version, 7, "m-1")) == GroupEvent("team", 0 if is_join else 7, joins=False)
    assert event(api, version, body_of(api, version, 0, "")) == GroupEvent("team", 0, joins=is_join or is_heartbeat)
    if is_heartbeat:
        assert event(api, version, body_of(api, version, -1, "m-1")) == GroupEvent("team", 0, joins=False)


@given(st.sampled_from(CASES), st.binary(max_size=60))
def test_any_bytes(case: tuple[int, int], data: bytes) -> None:
    event(*case, data)
    whole = body_of(*case, 7, "m-1")
    assert event(*case, whole[: len(data)]) in {None, event(*case, whole)}
