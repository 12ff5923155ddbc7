"""The one question that every rewrite asks."""

from typing import Protocol


class NodeAddresses(Protocol):
    """Knows under which address a client reaches each broker through the proxy."""

    def advertise(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        """What a client may see in place of a broker's own `host` and `port`.

        Called once for every broker address found in a response, before that response goes out, so an
        implementation may take the call as news about the broker and listen for it first.
        """
        ...
