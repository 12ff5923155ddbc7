"""Runs rewriting walks as a session does, and says what they should write."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, repeat
from typing import Any

from kio.schema.errors import ErrorCode

from protocol.apis import DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, DESCRIBE_QUORUM, FIND_COORDINATOR, METADATA
from protocol.rewriting import rewriting_walk
from protocol.rewriting_walk import RewritingWalk
from tests.protocol.kafka_messages import PROXY_HOST, Addresses, proxy_port

REWRITTEN = [METADATA, FIND_COORDINATOR, DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, DESCRIBE_QUORUM]
UNBOUNDED = 1 << 62


def rewrite(
    api_key: int,
    version: int,
    frame: bytes,
    addresses: Addresses | None = None,
    sizes: Sequence[int] = (),
    work: int = UNBOUNDED,
) -> bytes:
    """What the client receives of a frame that arrives in chunks of these sizes, and then in one for the rest."""
    walk = rewriting_walk(api_key, version, len(frame), addresses or Addresses())
    consumed = run(walk, frame, sizes, work)
    assert walk.frame_left == len(frame) - consumed
    return bytes(walk.out) + frame[consumed:]


def run(walk: RewritingWalk, frame: bytes, sizes: Sequence[int] = (), work: int = UNBOUNDED) -> int:
    """Returns how many bytes were consumed when the walk was done."""
    chunks = chain(sizes, repeat(len(frame)))
    kept, at, consumed, shows_more = b"", 0, 0, True
    while not walk.is_done:
        if shows_more:
            assert at < len(frame) or not frame, "every byte was shown, and the walk is neither done nor has it failed"
            size = next(chunks)
            kept += frame[at : at + size]
            at = min(len(frame), at + size)
        before = b"\xa5" * (at % 7)
        buf = bytearray(before + kept + b"\x00" * (at % 3))
        pos, end = len(before), len(before) + len(kept)
        walk.work_left = work
        final = walk.advance(buf, pos, end)
        assert pos <= final <= end
        assert buf[pos:end] == kept, "a walk that copies changes nothing"
        consumed += final - pos
        kept = kept[final - pos :]
        shows_more = walk.work_left > 0
        assert not shows_more or walk.is_done or len(kept) <= 8, "few bytes are kept"
    return consumed


# What kio's reading of a response should be after it was rewritten. kio has one class for each version: hence `Any`.


def expected(api_key: int, body: Any, hides: Callable[[int], bool] = lambda node_id: False) -> Any:
    """`hides`: nodes that clients cannot reach."""
    if api_key == METADATA:
        seen = [broker for broker in body.brokers if not hides(broker.node_id)]
        return replace(body, brokers=tuple(_reached(broker, broker.node_id) for broker in seen))
    if api_key == FIND_COORDINATOR:
        if hasattr(body, "coordinators"):
            return replace(body, coordinators=tuple(_coordinator(each, hides) for each in body.coordinators))
        return _coordinator(body, hides)
    if api_key == DESCRIBE_CLUSTER:
        controllers = getattr(body, "endpoint_type", None) == 2
        brokers = tuple(
            replace(one, host="", port=-1)
            if controllers or getattr(one, "is_fenced", False)
            else _reached(one, one.broker_id)
            for one in body.brokers
            if controllers or getattr(one, "is_fenced", False) or not hides(one.broker_id)
        )
        return replace(body, brokers=brokers)
    if api_key == DESCRIBE_QUORUM:
        if not hasattr(body, "nodes"):
            return body
        return replace(body, nodes=tuple(replace(node, listeners=()) for node in body.nodes))
    assert api_key == DESCRIBE_CONFIGS
    return replace(body, results=tuple(map(_result, body.results)))


def _reached(one: Any, node_id: int) -> Any:
    return replace(one, host=PROXY_HOST, port=proxy_port(node_id))


def _coordinator(one: Any, hides: Callable[[int], bool]) -> Any:
    if not one.host or one.port < 0:
        return one
    if hides(one.node_id):
        return replace(one, host="", port=-1, error_code=ErrorCode.coordinator_not_available)
    return _reached(one, one.node_id)


def _result(result: Any) -> Any:
    if result.resource_type != 4:
        return result
    return replace(result, configs=tuple(map(_config, result.configs)))


def _config(config: Any) -> Any:
    if not config.name.endswith(("listeners", "quorum.voters", "bootstrap.servers")):
        return config
    synonyms = tuple(replace(one, value=None) if one.value else one for one in config.synonyms)
    return replace(config, value=None if config.value else config.value, synonyms=synonyms)
