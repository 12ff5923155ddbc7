"""FindCoordinator, DescribeCluster, DescribeQuorum, DescribeConfigs: brokers' addresses replaced or removed.

The response is parsed and rebuilt in bounded pieces while it arrives; it is sent when it is complete, since its length
comes first. Its announced length is reserved before the first byte is collected.
"""

from typing import final

from protocol.apis import DESCRIBE_CONFIGS, METADATA
from protocol.describe_configs import DescribeConfigsRequestWalk
from protocol.request_header import unpack_prefix
from protocol.rewriting import rewriting_walk
from proxy.streams.handler import Awaited, Handler, RequestKind, Requests, Responses
from proxy.streams.handlers.forward import Forward
from proxy.streams.memory import SHORT, ResponseTooLarge
from proxy.streams.steps import PASS, WAIT


@final
class DescribedConfigs(Awaited):
    """A DescribeConfigs request in flight; `walk.names_broker`: its response may contain addresses."""

    __slots__ = ("kind", "walk")

    def __init__(self, handler: Handler, kind: RequestKind, walk: DescribeConfigsRequestWalk) -> None:
        super().__init__(handler)
        self.kind = kind
        self.walk = walk


class Rewriting(Forward):
    """The base of handlers that rebuild a response, or its beginning."""

    unseen = False
    batchable = False

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        kind = awaited.kind if isinstance(awaited, DescribedConfigs) else awaited
        assert isinstance(kind, RequestKind)  # noqa: S101 - for the type checker
        step = self.raise_throttle_time(responses, kind, pos, end, length, now_ns)
        if step != PASS:
            return step
        if isinstance(awaited, DescribedConfigs) and not awaited.walk.names_broker:
            return responses.begin(pos, end, length)
        size = min(length, SHORT) if kind.api_key == METADATA else length  # the list of brokers alone is collected
        memory = self.context.memory
        if size > memory.largest_response:
            raise ResponseTooLarge(kind.header.api.name, length, memory.largest_response)
        if not responses.holding.reserved and not memory.reserve(responses.holding, size):
            return WAIT
        walk = rewriting_walk(kind.api_key, kind.version, length, self.context.nodes)
        return responses.begin_rewrite(walk, kind, pos, end, length)


@final
class Rewrite(Rewriting):
    """Replaces or removes the addresses of brokers."""

    def admit(self, requests: Requests, kind: RequestKind, pos: int, end: int, now_ns: int) -> int:
        self.count(requests, now_ns)
        if kind.api_key == DESCRIBE_CONFIGS:
            body_offset = kind.header.body_offset
            walk = DescribeConfigsRequestWalk(kind.version, unpack_prefix(requests.buf, pos)[0], body_offset - 4)
            requests.walk = walk
            requests.walked_to = pos + body_offset
            requests.awaited = DescribedConfigs(self, kind, walk)
        return PASS
