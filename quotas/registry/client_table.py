"""The clients in use: one `ClientLimits` for each (user, client id), bounded in number, without counting sessions.

Two tables: the clients that were looked up since the last rotation, and those of the period before. A rotation drops
the older table and increases the registry's generation, so each session looks its client up again before its next
request. A client in use moves to the newer table and stays the same object. One that no session used for a whole period
is dropped; its idle sessions share a new object when they send again.

A rotation is due after an hour, and when the newer table has `MAX_RECENT` clients. So a peer that invents client ids
causes earlier rotations, and never more than 2 * `MAX_RECENT` objects.
"""

from typing import Final

from quotas.admission.client_limits import ClientLimits
from quotas.registry.idle import IDLE_NS

MAX_RECENT: Final = 50_000


class ClientTable:
    """Finds the limits of a client; makes them on first use."""

    __slots__ = ("_older", "_recent", "_rotated_ns")

    def __init__(self) -> None:
        self._recent: dict[tuple[str, str], ClientLimits] = {}
        self._older: dict[tuple[str, str], ClientLimits] = {}
        self._rotated_ns: int | None = None

    def __len__(self) -> int:
        return len(self._recent) + len(self._older)

    def get(self, user: str, client_id: str) -> tuple[ClientLimits, bool]:
        """The object of this client, and whether there was a rotation."""
        key = (user, client_id)
        client = self._recent.get(key)
        if client is not None:
            return client, False
        client = self._older.pop(key, None)
        if client is None:
            client = ClientLimits(key)
        has_rotated = len(self._recent) >= MAX_RECENT
        if has_rotated:
            self._rotate()
        self._recent[key] = client
        return client, has_rotated

    def expire(self, now_ns: int) -> bool:
        """Rotate if the last rotation by `expire` was an hour ago; returns whether it did."""
        if self._rotated_ns is None:
            self._rotated_ns = now_ns
        if now_ns - self._rotated_ns < IDLE_NS:
            return False
        self._rotated_ns = now_ns
        if not len(self):
            return False
        self._rotate()
        return True

    def _rotate(self) -> None:
        self._older, self._recent = self._recent, {}
