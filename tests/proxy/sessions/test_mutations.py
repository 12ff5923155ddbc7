"""`controller_mutation_rate`: which topics pass, what the broker gets, and what the client is told (KIP-599).

The limit has no burst unless a test says otherwise: what passes leaves a debt of its own partitions, 100 ms for each.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from protocol.apis import APIS, CREATE_PARTITIONS, CREATE_TOPICS, DELETE_TOPICS
from protocol.topics import TopicPartitions
from proxy.config.config import EnforcementOptions
from proxy.streams.handlers.limit import MAX_REQUEST_LENGTH
from quotas.entry import QuotaEntry
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Stage, cut, lines_of, send_in_pieces, without_burst
from tests.proxy.frames import heartbeat, heartbeat_answer, noise, request
from tests.proxy.mutation_frames import (
    PASSED,
    REFUSED,
    Answered,
    Told,
    Topic,
    create,
    created,
    deletion,
    done,
    in_debt,
    mutation,
    told,
)

OpenStage = Callable[..., Stage]
SPEC = "client-id=etl,controller_mutation_rate=10"
QUOTA = without_burst(SPEC)
MS_OF_ONE = 100
STRICT = [(CREATE_TOPICS, 6), (CREATE_TOPICS, 7), (DELETE_TOPICS, 5), (DELETE_TOPICS, 6), (CREATE_PARTITIONS, 3)]
PERMISSIVE = [(CREATE_TOPICS, each) for each in (2, 3, 4, 5)]
PERMISSIVE += [(DELETE_TOPICS, each) for each in (1, 2, 3, 4)] + [(CREATE_PARTITIONS, each) for each in (0, 1, 2)]
UNTOLD = [(CREATE_TOPICS, 1), (DELETE_TOPICS, 0)]
"""Without a throttle time in the response."""
#: No topic is known to the proxy, so CreatePartitions and DeleteTopics count each of them once.
TOPICS = {"a": 3, "b": 4, "c": 5}


def counts_of(api: int) -> int:
    return TOPICS["a"] if api == CREATE_TOPICS else 1


def throttles(stage: Stage, mode: str) -> list[float]:
    """How many requests of `etl` were throttled in that way, and the sum of their waits in seconds."""
    histogram = stage.metrics.entities.of("ANONYMOUS", "etl").throttles.get(("controller_mutation_rate", mode))
    return [0, 0] if histogram is None else [histogram.count, round(histogram.sum_seconds, 9)]


# ---- strict versions


@pytest.mark.parametrize("step", [1_000_000, 1])
@pytest.mark.parametrize(("api", "version"), STRICT)
async def test_topics_beyond_the_limit_are_taken_out_and_answered(
    open_stage: OpenStage, api: int, version: int, step: int
) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    sent = mutation(api, version, 7, TOPICS) + heartbeat(8)
    await send_in_pieces(client, session.client, cut(sent, [step] * len(sent)))
    assert await broker.frame() == mutation(api, version, 7, {"a": 3})
    assert await broker.frame() == heartbeat(8)
    stage.clock.pass_seconds(0.03)
    answers = done(api, version, 7, ["a"]) + heartbeat_answer(8)
    await send_in_pieces(broker, session.upstream, cut(answers, [step] * len(answers)))
    expected = Told(7, counts_of(api) * MS_OF_ONE - 30, {"a": PASSED, "b": REFUSED, "c": REFUSED})
    assert told(api, version, await client.frame()) == expected
    assert await client.frame() == heartbeat_answer(8)
    assert stage.memory.buffered_bytes == 0


@pytest.mark.parametrize("step", [1_000_000, 1])
@pytest.mark.parametrize(("api", "version"), STRICT)
async def test_the_proxy_answers_when_no_topic_may_pass(
    open_stage: OpenStage, api: int, version: int, step: int
) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    session = stage.session_of(client)
    sent = mutation(api, version, 7, TOPICS) + heartbeat(8)
    await send_in_pieces(client, session.client, cut(sent, [step] * len(sent)))
    assert told(api, version, await client.frame()) == Told(7, 300, dict.fromkeys(TOPICS, REFUSED))
    assert await broker.frame() == heartbeat(8), "nothing else is forwarded"
    await broker.send(heartbeat_answer(8))
    assert await client.frame() == heartbeat_answer(8)


async def test_a_topic_passes_as_soon_as_there_is_no_debt(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    stage.clock.now_ns += 300_000_000 - 1
    await client.send(create(1, {"x": 50}))
    assert told(CREATE_TOPICS, 7, await client.frame()) == Told(1, 1, {"x": REFUSED}), "rounded up"
    stage.clock.now_ns += 1
    await client.send(create(2, {"x": 50}))
    assert await broker.frame() == create(2, {"x": 50})


async def test_tokens_are_counted_exactly(open_stage: OpenStage) -> None:
    """Ten tokens: three topics of 4 partitions take twelve. The limit is out of debt 200 ms later."""
    stage = open_stage(quotas=[parse_spec(SPEC)])
    client, broker = await stage.pair()
    topics = dict.fromkeys("abcde", 4)
    await client.send(create(1, topics))
    assert await broker.frame() == create(1, dict.fromkeys("abc", 4))
    await broker.send(created(1, "abc"))
    assert told(CREATE_TOPICS, 7, await client.frame()) == Told(
        1, 200, dict.fromkeys("abc", PASSED) | dict.fromkeys("de", REFUSED)
    )
    stage.clock.pass_seconds(0.2)
    await client.send(create(2, {"d": 4, "e": 4}))
    assert await broker.frame() == create(2, {"d": 4})
    await broker.send(created(2, "d"))
    assert told(CREATE_TOPICS, 7, await client.frame()) == Told(2, 400, {"d": PASSED, "e": REFUSED})


@pytest.mark.parametrize(("broker_ms", "expected_ms"), [(0, 700), (699, 700), (701, 701), (9_000, 9_000)])
async def test_the_larger_throttle_time_wins_and_ours_is_capped(
    open_stage: OpenStage, broker_ms: int, expected_ms: int
) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=EnforcementOptions(max_throttle_ms=700))
    client, broker = await stage.pair()
    await client.send(create(1, {"a": 30, "b": 1}))
    await broker.frame()
    await broker.send(created(1, "a", broker_ms))
    assert told(CREATE_TOPICS, 7, await client.frame()).throttle_ms == expected_ms
    await client.send(create(2, {"b": 1}))
    assert told(CREATE_TOPICS, 7, await client.frame()).throttle_ms == 700


async def test_a_wait_that_is_over_when_the_broker_answers_is_not_reported(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(create(1, {"a": 3, "b": 1}))
    await broker.frame()
    stage.clock.pass_seconds(0.3)
    await broker.send(created(1, "a", 5))
    assert told(CREATE_TOPICS, 7, await client.frame()) == Told(1, 5, {"a": PASSED, "b": REFUSED})


async def test_the_brokers_result_for_a_topic_is_unchanged(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(create(1, {"a": 3, "b": 1}))
    await broker.frame()
    await broker.send(done(CREATE_TOPICS, 7, 1, "a", error=36))
    assert told(CREATE_TOPICS, 7, await client.frame()).errors == {"a": (36, None), "b": REFUSED}


async def test_partitions_of_known_topics_are_counted(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    ids = {name: bytes([number]) * 16 for number, name in enumerate("abc", 1)}
    stage.context.topics.learn(TopicPartitions(name, ids[name], 5) for name in "abc")
    client, broker = await stage.pair()
    steps = [
        (deletion(6, 1, [ids["a"]]), 500),  # all five, by id
        (deletion(6, 2, ["b"]), 500),
        (mutation(CREATE_PARTITIONS, 3, 3, {"c": 7}), 200),  # two more than it has
        (mutation(CREATE_PARTITIONS, 3, 4, {"c": 5}), 100),  # one at the least
    ]
    for sent, debt_ms in steps:
        await client.send(sent)
        assert await broker.frame() == sent
        [limit] = stage.registry.limits_in_use()
        assert limit.debt_ns(stage.clock()) == debt_ms * 1_000_000
        stage.clock.pass_seconds(10)


async def test_deletions_by_id_are_answered_by_id(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, _ = await in_debt(stage)
    topics: list[Topic] = [b"\x01" * 16, "by-name", b"\x02" * 16]
    await client.send(deletion(6, 9, topics))
    assert told(DELETE_TOPICS, 6, await client.frame()) == Told(9, 300, dict.fromkeys(topics, REFUSED))


# ---- permissive versions


@pytest.mark.parametrize("step", [1_000_000, 1])
@pytest.mark.parametrize(("api", "version"), PERMISSIVE)
async def test_older_versions_pass_with_a_throttle_time(
    open_stage: OpenStage, api: int, version: int, step: int
) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    session = stage.session_of(client)
    debt_ms = 0
    for correlation, broker_ms in ((1, 0), (2, 100_000), (3, 5)):
        sent = mutation(api, version, correlation, TOPICS)
        debt_ms += (12 if api == CREATE_TOPICS else 3) * MS_OF_ONE
        await send_in_pieces(client, session.client, cut(sent, [step] * len(sent)))
        assert await broker.frame() == sent
        answer = done(api, version, correlation, TOPICS, broker_ms)
        await send_in_pieces(broker, session.upstream, cut(answer, [step] * len(answer)))
        expected = done(api, version, correlation, TOPICS, max(broker_ms, debt_ms))
        assert await client.frame() == expected
    assert throttles(stage, "notify") == [3, 6 * debt_ms / 3 / 1000]


@pytest.mark.parametrize(("api", "version"), UNTOLD)
async def test_versions_without_a_throttle_time_are_charged(open_stage: OpenStage, api: int, version: int) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    sent = mutation(api, version, 1, TOPICS)
    await client.send(sent)
    assert await broker.frame() == sent
    answer = struct.pack(">ii", 24, 1) + noise(20)
    await broker.send(answer)
    assert await client.frame() == answer
    [limit] = stage.registry.limits_in_use()
    assert limit.debt_ns(stage.clock()) == (12 if api == CREATE_TOPICS else 3) * MS_OF_ONE * 1_000_000
    assert throttles(stage, "notify") == [0, 0]


@pytest.mark.parametrize(("api", "version"), [(CREATE_TOPICS, 4), (CREATE_TOPICS, 7)])
async def test_a_request_for_nothing_passes(open_stage: OpenStage, api: int, version: int) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await in_debt(stage)
    sent, answer = mutation(api, version, 1, {}), done(api, version, 1, [])
    await client.send(sent)
    assert await broker.frame() == sent
    await broker.send(answer)
    assert await client.frame() == answer


# ---- what is counted, and what is not


async def test_refusals_are_counted_and_logged(open_stage: OpenStage, caplog: pytest.LogCaptureFixture) -> None:
    stage = open_stage(quotas=[QUOTA, parse_spec("total=true,request_rate=1000")])
    client, broker = await in_debt(stage)
    await client.send(create(2, {"b": 1, "c": 1}))
    await client.frame()
    assert throttles(stage, "reject") == [1, 0.3], "once for each request, whatever it asks for"
    [line] = [fields for name, fields in lines_of(caplog.records) if name == "throttled"]
    assert line == line | {
        "client_id": "etl",
        "limit": "controller_mutation_rate",
        "entity": "client-id:etl",
        "limit_value": 10,
        "throttle_ms": 300,
        "mode": "reject",
    }
    by_name = {limit.name: limit for limit in stage.registry.limits_in_use()}
    assert by_name["request_rate"].algorithm.headroom(stage.clock()) == 998, "refused or not, each is a request"
    stage.clock.pass_seconds(0.3)
    await client.send(create(3, {"b": 1, "c": 1}))
    await broker.frame()
    await broker.send(created(3, "b"))
    await client.frame()
    assert throttles(stage, "reject") == [2, 0.4]
    assert {key: cell.value for key, cell in stage.metrics.requests.items()} == {("CreateTopics", "7"): 3}


async def test_each_request_is_charged_to_the_request_rate(open_stage: OpenStage) -> None:
    """Forwarded or refused, and without a mutation limit as well."""
    rate = parse_spec("total,request_rate=1000")
    for quotas, passed in (([rate], 4), ([QUOTA, rate], 1)):
        stage = open_stage(quotas=quotas)
        client, broker = await stage.pair()
        sent = [create(number, {"a": 1}) for number in range(4)]
        await client.send(b"".join(sent))
        assert [await broker.frame() for _ in range(passed)] == sent[:passed]
        by_name = {limit.name: limit for limit in stage.registry.limits_in_use()}
        assert by_name["request_rate"].algorithm.headroom(stage.clock()) == 996


@pytest.mark.parametrize(("api", "version"), [(CREATE_TOPICS, 7), (CREATE_TOPICS, 4)])
async def test_a_dry_run_counts_and_changes_no_byte(
    open_stage: OpenStage, caplog: pytest.LogCaptureFixture, api: int, version: int
) -> None:
    stage = open_stage(quotas=[QUOTA], enforcement=EnforcementOptions(dry_run=True))
    client, broker = await in_debt(stage)
    sent, answer = mutation(api, version, 7, TOPICS), done(api, version, 7, TOPICS, 3)
    await client.send(sent)
    assert await broker.frame() == sent
    await broker.send(answer)
    assert await client.frame() == answer
    mode, wait = ("reject", 0.3) if version == 7 else ("notify", 1.5)
    assert throttles(stage, mode) == [1, wait]
    assert [fields["mode"] for name, fields in lines_of(caplog.records) if name == "would_throttle"] == [mode]


async def test_a_refused_mutation_is_charged_to_no_limit(open_stage: OpenStage) -> None:
    total = without_burst("total,controller_mutation_rate=1")
    stage = open_stage(quotas=[QUOTA, total])
    client, broker = await stage.pair()
    await client.send(create(1, {"a": 2, "b": 1}))
    assert await broker.frame() == create(1, {"a": 2})
    await broker.send(created(1, "a"))
    assert told(CREATE_TOPICS, 7, await client.frame()) == Told(1, 2_000, {"a": PASSED, "b": REFUSED})
    debts = {str(limit.entity): limit.debt_ns(stage.clock()) for limit in stage.registry.limits_in_use()}
    assert debts == {"client-id:etl": 200_000_000, "total": 2_000_000_000}


async def test_a_limit_removed_while_the_broker_answers(open_stage: OpenStage) -> None:
    stage = open_stage(quotas=[QUOTA])
    client, broker = await stage.pair()
    await client.send(create(1, {"a": 3, "b": 1}))
    await broker.frame()
    stage.registry.replace([], stage.clock())
    await client.send(create(2, {"b": 1}))
    assert await broker.frame() == create(2, {"b": 1})
    await broker.send(created(1, "a") + created(2, "b"))
    assert told(CREATE_TOPICS, 7, await client.frame()) == Told(1, 300, {"a": PASSED, "b": REFUSED})
    assert await client.frame() == created(2, "b")


async def test_a_limit_added_while_the_broker_answers(open_stage: OpenStage) -> None:
    stage = open_stage()
    client, broker = await stage.pair()
    await client.send(create(1, {"a": 3}))
    await broker.frame()
    stage.registry.replace([QUOTA], stage.clock())
    await client.send(create(2, {"b": 3, "c": 1}))
    assert await broker.frame() == create(2, {"b": 3})
    await broker.send(created(1, "a") + created(2, "b"))
    assert await client.frame() == created(1, "a")
    assert told(CREATE_TOPICS, 7, await client.frame()) == Told(2, 300, {"b": PASSED, "c": REFUSED})


@pytest.mark.parametrize("quotas", [[], [without_burst("client-id=other,controller_mutation_rate=1")]])
@pytest.mark.parametrize("size", [40, 2 * MAX_REQUEST_LENGTH])
async def test_without_a_limit_bytes_pass_as_they_come(
    open_stage: OpenStage, quotas: list[QuotaEntry], size: int
) -> None:
    stage = open_stage(quotas=quotas)
    client, broker = await stage.pair()
    sent = request(CREATE_TOPICS, 7, 1, noise(size))
    await client.send(sent[:-1])
    assert await broker.read(len(sent) - 1) == sent[:-1], "nobody waits for the rest"
    await client.send(sent[-1:] + heartbeat(2))
    assert await broker.read(1) == sent[-1:]
    assert await broker.frame() == heartbeat(2)
    answer = struct.pack(">ii", 4 + size, 1) + noise(size)
    await broker.send(answer[:-1])
    assert await client.read(len(answer) - 1) == answer[:-1]
    await broker.send(answer[-1:] + heartbeat_answer(2))
    assert await client.read(1) == answer[-1:]
    assert await client.frame() == heartbeat_answer(2)


# ---- any mix of them

#: Milliseconds that pass before, API, version, and partitions of each topic.
asked = st.tuples(
    st.sampled_from([0, 1, 99, 100, 250, 700, 2_000]),
    st.sampled_from([*STRICT, *PERMISSIVE]),
    st.lists(st.integers(1, 9), max_size=5),
)


@given(st.lists(asked, min_size=1, max_size=12), st.lists(st.integers(1, 60), max_size=40))
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_any_requests_against_a_model(
    open_stage: OpenStage, steps: list[tuple[int, tuple[int, int], list[int]]], cuts: list[int]
) -> None:
    """The model is one number: milliseconds of debt, where a full bucket of one second is -1000."""
    async with open_stage(quotas=[parse_spec(SPEC)], enforcement=EnforcementOptions(max_throttle_ms=10**6)) as stage:
        client, broker = await stage.pair()
        session = stage.session_of(client)
        debt_ms = -1_000
        for correlation, (pause_ms, (api, version), partitions) in enumerate(steps):
            stage.clock.pass_seconds(pause_ms / 1_000)
            debt_ms = max(-1_000, debt_ms - pause_ms)
            topics = {f"t{number}": count for number, count in enumerate(partitions)}
            strict = (api, version) in STRICT
            passed = {}
            for name, count in topics.items():
                if debt_ms <= 0 or not strict:
                    passed[name] = count
                    debt_ms += MS_OF_ONE * (count if api == CREATE_TOPICS else 1)
            sent = mutation(api, version, correlation, topics)
            await send_in_pieces(client, session.client, cut(sent, cuts))
            if passed or not topics:
                assert await broker.frame() == mutation(api, version, correlation, passed)
                await send_in_pieces(broker, session.upstream, cut(done(api, version, correlation, passed), cuts))
            wait_ms = max(0, debt_ms) if len(passed) < len(topics) or (topics and not strict) else 0
            errors: dict[Topic, Answered] = {name: PASSED if name in passed else REFUSED for name in topics}
            assert told(api, version, await client.frame()) == Told(correlation, wait_ms, errors)
        assert not session.connection.in_flight
        assert not session.connection.in_flight


def test_these_are_all_versions() -> None:
    """CreateTopics 0 has no `validate_only`, and no throttle time: tests/protocol has it."""
    listed = {(key, version) for key in (CREATE_TOPICS, DELETE_TOPICS, CREATE_PARTITIONS) for version in _versions(key)}
    assert listed == {*STRICT, *PERMISSIVE, *UNTOLD, (CREATE_TOPICS, 0)}


def _versions(key: int) -> range:
    return range(APIS[key].min_version, APIS[key].max_version + 1)
