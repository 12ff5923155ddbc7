"""The records of a partly forwarded Produce request that are charged before they arrive.

Limits on records are charged when the length of records and the header of their batch arrive. What has not arrived can
be refunded; it is then charged as it arrives.
"""

from collections.abc import Collection
from typing import final

from protocol.produce_walk import Announced, ProduceRequestWalk
from proxy.streams.produce_usage import ProduceUsage
from quotas.admission.client_limits import TopicCharges
from quotas.admission.decision import ADMITTED, Decision
from quotas.admission.limit import Limit


@final
class RecordRest:
    """One request. `left`, in its methods: bytes of the frame that have not been forwarded.

    limits   what its latest records were charged to
    """

    __slots__ = (
        "_announced",
        "_charged_ns",
        "_charges",
        "_unpaid",
        "_unpaid_bytes",
        "_unpaid_messages",
        "_usage",
        "_walk",
        "limits",
    )

    def __init__(self, usage: ProduceUsage, announced: Announced | None, walk: ProduceRequestWalk | None) -> None:
        """announced: its records; None: `walk` finds them."""
        self._usage = usage
        self._announced = announced
        self._walk = walk
        self._charges: TopicCharges | None = None
        self._charged_ns = 0
        self.limits: tuple[Limit, ...] = ()
        #: The records that were refunded, and what of them has not been charged since then.
        self._unpaid: Announced | None = None
        self._unpaid_bytes = self._unpaid_messages = 0

    @property
    def is_unpaid(self) -> bool:
        """Whether records were refunded, and have not all been charged since then."""
        return self._unpaid is not None

    def note_charge(self, left: int, now_ns: int) -> bool:
        """Records have been charged. Returns whether some of them have not arrived."""
        announced = self._latest()
        if announced is None or not any(announced.missing(left)):
            return False
        self._charges = charges = self._usage.charges_of(announced.topic, now_ns)
        self._charged_ns = now_ns
        self.limits = charges.bytes_in + charges.messages_in
        return True

    def refund(self, left: int, now_ns: int) -> Collection[Limit]:
        """Refund what has not arrived. Returns the limits that were charged for it."""
        announced, charges = self._latest(), self._charges
        if announced is None or charges is None:
            return ()
        record_bytes, messages = announced.missing(left)
        amounts: dict[Limit, int] = {}
        charges.add_to(amounts, record_bytes - self._unpaid_bytes, messages - self._unpaid_messages)
        for limit, amount in amounts.items():
            if amount > 0:
                limit.algorithm.refund(amount, self._charged_ns, now_ns)
        self._unpaid, self._unpaid_bytes, self._unpaid_messages = announced, record_bytes, messages
        return amounts

    def charge_arrived(self, left: int, now_ns: int) -> Decision:
        """Charge what has arrived of refunded records, in any state of the limits."""
        unpaid = self._unpaid
        if unpaid is None:
            return ADMITTED
        record_bytes, messages = unpaid.missing(left)
        arrived_bytes, arrived_messages = self._unpaid_bytes - record_bytes, self._unpaid_messages - messages
        self._unpaid_bytes, self._unpaid_messages = record_bytes, messages
        if not record_bytes:
            self._unpaid = None
        return self._usage.charge_refunded(unpaid.topic, arrived_bytes, arrived_messages, now_ns)

    def _latest(self) -> Announced | None:
        return self._announced if self._walk is None else self._walk.announced
