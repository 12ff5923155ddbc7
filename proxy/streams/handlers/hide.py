"""ShareAcknowledge: node endpoints in the response are hidden while it streams by."""

from typing import final

from protocol.share import ShareAcknowledgeResponseWalk
from proxy.streams.handler import Awaited, RequestKind, Responses
from proxy.streams.handlers.forward import Forward
from proxy.streams.steps import PASS


@final
class Hide(Forward):
    """Hides node endpoints; the request is forwarded as it is."""

    unseen = False

    def respond(self, responses: Responses, awaited: Awaited, pos: int, end: int, length: int, now_ns: int) -> int:
        assert isinstance(awaited, RequestKind)  # noqa: S101 - for the type checker
        step = self.raise_throttle_time(responses, awaited, pos, end, length, now_ns)
        if step != PASS:
            return step
        return responses.begin_walk(ShareAcknowledgeResponseWalk(awaited.version, length), pos, end, length, now_ns)
