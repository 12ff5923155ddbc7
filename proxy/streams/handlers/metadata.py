"""Metadata: the brokers, which come first, are replaced; the topics are forwarded, and read where limits or usage need
them.
"""

from typing import Final, final

from protocol.metadata_topics import MetadataTopicsWalk
from proxy.streams.handlers.rewrite import Rewriting
from proxy.streams.request import Kind
from proxy.streams.response_stream import ResponseStream

#: Size of one read of a response with topics that are learnt, which takes up to 60 ns a byte.
LEARNING_READ_SIZE: Final = 65_536


@final
class Metadata(Rewriting):
    """Replaces the brokers, and reads the topics."""

    def on_rewritten(self, responses: ResponseStream, kind: Kind, length: int) -> None:
        learns_topics = self.context.registry.learns_topics or self.context.config.usage.by_topic
        if learns_topics and responses.remaining:
            responses.walk = MetadataTopicsWalk(kind.version, length, length - responses.remaining)
            responses.want = LEARNING_READ_SIZE

    def on_walked(self, responses: ResponseStream) -> None:
        walk = responses.walk
        if isinstance(walk, MetadataTopicsWalk):
            self.context.topics.learn(walk.take())
            responses.want = LEARNING_READ_SIZE
