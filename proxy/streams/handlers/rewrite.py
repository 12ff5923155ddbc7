"""Replaces or removes brokers' addresses in responses to Metadata, FindCoordinator, DescribeCluster, DescribeQuorum and
DescribeConfigs. In responses to ShareAcknowledge, it hides node endpoints while they stream by.

A response is parsed and rebuilt in bounded pieces while it arrives, and sent when it is complete, because its length
comes first. Its announced length is allocated before the first byte is collected.
"""

from typing import Final, final

from protocol.apis import DESCRIBE_CONFIGS, METADATA
from protocol.describe_configs import DescribeConfigsRequestWalk
from protocol.errors import MalformedFrame
from protocol.metadata_topics import MetadataTopicsWalk
from protocol.request_header import unpack_prefix
from protocol.rewriting import rewriting_walk
from protocol.share import ShareAcknowledgeResponseWalk
from proxy.enforcement.identity import Client
from proxy.streams.handlers.forward import Forward
from proxy.streams.memory import SHORT, ResponseTooLarge
from proxy.streams.pending import Responses
from proxy.streams.request import Kind, Request, Requests
from proxy.streams.steps import NEED, PASS, PIECES_PER_STEP, WAIT, YIELD

#: The size of one read of a Metadata response whose topics are learnt, which takes up to 60 ns a byte.
LEARNING_READ_SIZE: Final = 65_536


@final
class Hide(Forward):
    """Hides node endpoints in responses. Requests are forwarded unchanged."""

    unseen = False

    def forward_response(self, responses: Responses, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        return responses.forward_walked(ShareAcknowledgeResponseWalk(kind.version, length), pos, end, length, now_ns)


class Rewriting(Forward):
    """The base of handlers that rebuild a response, or its beginning."""

    __slots__ = ()

    unseen = False
    batchable = False

    def forward_response(self, responses: Responses, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        size = min(length, SHORT) if kind.api_key == METADATA else length  # only the list of brokers is collected
        memory = self.context.memory
        if size > memory.largest_response:
            raise ResponseTooLarge(kind.header.api.name, length, memory.largest_response)
        if not responses.holding.allocated and not memory.allocate(responses.holding, size):
            return WAIT
        walk = rewriting_walk(kind.api_key, kind.version, length, self.context.nodes)
        return responses.rebuild(walk, pos, end, length)


@final
class DescribedConfigs(Request):
    """A DescribeConfigs request, whose response may contain addresses if it names a broker."""

    __slots__ = ("_handler", "_walk")

    def __init__(self, handler: "Rewrite", kind: Kind, client: Client, length: int) -> None:
        super().__init__(kind, client, length)
        self._handler: Final = handler
        self._walk: Final = DescribeConfigsRequestWalk(kind.version, length, kind.header.body_offset - 4)

    def decide(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        requests.put_in_flight(self.kind, self, pos)
        requests.current = self
        body = pos + self.kind.header.body_offset
        requests.remaining = pos + 4 + self.size - body
        return body

    def go_on(self, requests: Requests, pos: int, end: int, now_ns: int) -> int:
        walk = self._walk
        walk.work_left = PIECES_PER_STEP
        is_whole = end - pos == requests.remaining
        walked_to = walk.advance(requests.buf, pos, end)
        requests.remaining -= walked_to - pos
        if not requests.remaining:
            requests.current = None
        elif walk.work_left > 0 and is_whole:
            raise MalformedFrame("a request's last field", requests.remaining)
        if walked_to > pos:
            return walked_to
        return NEED if walk.work_left > 0 else YIELD

    def respond(self, responses: Responses, pos: int, end: int, length: int, now_ns: int) -> int:
        if self._walk.names_broker:
            return self._handler.respond(responses, self.kind, pos, end, length, now_ns)
        step = self._handler.raise_throttle_time(responses, self.kind, pos, end, length, now_ns)
        return responses.forward(pos, end, length) if step == PASS else step


@final
class Rewrite(Rewriting):
    """Replaces or removes the addresses of brokers."""

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        if kind.api_key != DESCRIBE_CONFIGS:
            return super().on_request(requests, kind, pos, end, now_ns)
        self.count(requests, now_ns)
        length = unpack_prefix(requests.buf, pos)[0]
        client = requests.connection.identity.client
        return DescribedConfigs(self, kind, client, length).decide(requests, pos, end, now_ns)


@final
class Metadata(Rewriting):
    """Replaces the brokers, which come first. The topics are forwarded, and read if limits or usage need them."""

    def on_rewritten(self, responses: Responses, kind: Kind, length: int) -> None:
        learns_topics = self.context.registry.learns_topics or self.context.config.usage.by_topic
        if learns_topics and responses.remaining:
            responses.walk = MetadataTopicsWalk(kind.version, length, length - responses.remaining)
            responses.want = LEARNING_READ_SIZE

    def on_walked(self, responses: Responses) -> None:
        walk = responses.walk
        if isinstance(walk, MetadataTopicsWalk):
            self.context.topics.learn(walk.take())
            responses.want = LEARNING_READ_SIZE
