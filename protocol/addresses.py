"""The one question that every rewrite asks."""

from collections.abc import Sequence
from typing import Protocol


class NodeAddresses(Protocol):
    """Knows under which address a client reaches each broker through the proxy."""

    def advertise(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        """What a client may see in place of a broker's own `host` and `port`.

        Called once for every broker address found in a response, before that response goes out, so an
        implementation may take the call as news about the broker and listen for it first.
        """
        ...

    def advertise_all(self, brokers: Sequence[tuple[int, str, int]]) -> Sequence[tuple[str, int]]:
        """The same for a list that names all brokers of the cluster: who is not in it is not there now.

        Args:
            brokers: node id, host and port of each.

        Returns:
            Host and port of each, in the same order.
        """
        ...
