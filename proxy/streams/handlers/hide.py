"""ShareAcknowledge: node endpoints in the response are hidden while it streams by."""

from typing import final

from protocol.share import ShareAcknowledgeResponseWalk
from proxy.streams.handlers.forward import Forward
from proxy.streams.request import Kind
from proxy.streams.response_stream import ResponseStream
from proxy.streams.steps import PASS


@final
class Hide(Forward):
    """Hides node endpoints; the request is forwarded as it is."""

    unseen = False

    def respond(self, responses: ResponseStream, kind: Kind, pos: int, end: int, length: int, now_ns: int) -> int:
        step = self.raise_throttle_time(responses, kind, pos, end, length, now_ns)
        if step != PASS:
            return step
        return responses.begin_walk(ShareAcknowledgeResponseWalk(kind.version, length), pos, end, length, now_ns)
