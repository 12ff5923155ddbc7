"""Requests of consumer groups, which are forwarded. Joins and rebalances are counted as they pass."""

from typing import final

from protocol.group_requests import JOIN_GROUP, LONGEST_HEAD, group_event
from proxy.streams.handlers.forward import Forward
from proxy.streams.request import Kind, Requests


@final
class GroupRequests(Forward):
    """Reads the beginning of each request, as far as it has arrived."""

    batchable = False

    def on_request(self, requests: Requests, kind: Kind, pos: int, end: int, now_ns: int) -> int:
        header, body_at = kind.header, pos + kind.header.body_offset
        body = bytes(requests.buf[body_at : min(end, body_at + LONGEST_HEAD)])
        event = group_event(kind.api_key, kind.version, body, is_flexible=header.api.is_flexible(kind.version))
        if event is not None:
            client = requests.connection.identity.client
            name = client.entity.user, client.entity.client_id
            self.context.groups.seen(event, name, client.peer, now_ns, is_join=kind.api_key == JOIN_GROUP)
        return super().on_request(requests, kind, pos, end, now_ns)
