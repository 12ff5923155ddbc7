"""The interface through which rewriting walks learn the address that a client receives instead of a broker's."""

from collections.abc import Iterable, Sequence
from typing import Final, Protocol

HIDDEN_ADDRESS: Final = ("", -1)
"""For brokers that clients cannot reach through the proxy."""


class NodeAddresses(Protocol):
    """Maps each broker to the address under which clients reach it through the proxy."""

    def advertise(self, node_id: int, host: str, port: int) -> tuple[str, int]:
        """The host and port that a client receives instead of a broker's own, or `HIDDEN_ADDRESS`.

        Called for every different address in a response before that response is sent. So an implementation may learn
        the address of a broker from the call and listen for that broker first.
        """
        ...

    def advertise_all(self, brokers: Sequence[tuple[int, str, int]]) -> Iterable[tuple[str, int] | None]:
        """The same for a list of all brokers of the cluster: a broker that is not in it has left.

        Args:
            brokers: node id, host and port of each.

        Returns:
            Host and port of each, or `HIDDEN_ADDRESS`, in the same order; None where the caller may stop for a while.
            A new broker may take 100 us.
        """
        ...
