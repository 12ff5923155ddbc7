"""EndTxn: forwarded; while the disk guard stops producers, the transaction that ends is noted."""

from typing import final

from protocol.request_header import transactional_id
from proxy.streams.handlers.forward import Forward
from proxy.streams.request import Kind, Requests


@final
class EndTransaction(Forward):
    """Reads the transactional id, if it has arrived with the head of the request."""

    batchable = False

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        guard = self.context.registry.guard
        if guard is not None:
            guard.transaction_ended(transactional_id(kind.header, requests.buf, pos, end), now_ns)
        return super().on_request(requests, kind, pos, end, now_ns)
