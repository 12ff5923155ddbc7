"""The claims of algorithms that count a charge from when it is made, whatever passes meanwhile."""

from __future__ import annotations

from abc import abstractmethod


class CountedClaims:
    """A claim is a charge like any other, and always possible: it takes nothing that another frame could miss."""

    __slots__ = ()

    @abstractmethod
    def record(self, amount: int, now_ns: int) -> int:
        """See `quotas.algorithms.algorithm.Algorithm`, as for the others."""

    @abstractmethod
    def refund(self, amount: int, charged_ns: int, now_ns: int) -> None: ...

    def claim(self, amount: int, now_ns: int) -> bool:
        """Charge `amount` for a frame that passes later, whatever the state. Always True."""
        self.record(amount, now_ns)
        return True

    def settle(self, amount: int, now_ns: int) -> None:
        """A claimed frame passes: it has counted since its claim."""

    def unclaim(self, amount: int, claimed_ns: int, now_ns: int) -> None:
        """A claimed frame never passes: refund what it was charged at `claimed_ns`."""
        self.refund(amount, claimed_ns, now_ns)
