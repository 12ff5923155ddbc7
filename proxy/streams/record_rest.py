"""The records of a partly forwarded Produce request that are charged before they arrive.

Limits on records are charged when the length of records and the header of their batch arrive. What has not arrived can
be refunded; it is then charged as it arrives.
"""

from collections.abc import Collection
from typing import final

from protocol.produce_walk import Announced, ProduceRequestWalk
from proxy.streams.produce_usage import ProduceUsage
from quotas.admission.client_limits import TopicCharges
from quotas.admission.decision import Decision
from quotas.admission.limit import Limit


@final
class RecordRest:
    """One request. `left`, in its methods: bytes of the frame that have not been forwarded.

    limits   those that its latest records may have brought into debt
    unpaid   records that were refunded, and have not all been charged since then
    """

    __slots__ = (
        "_charged_ns",
        "_charges",
        "_source",
        "_unpaid_bytes",
        "_unpaid_messages",
        "_usage",
        "limits",
        "unpaid",
    )

    def __init__(self, usage: ProduceUsage, source: Announced | ProduceRequestWalk) -> None:
        """source: its records, or the walk that finds them."""
        self._usage = usage
        self._source = source
        self._charges: TopicCharges | None = None
        self._charged_ns = 0
        self.limits: tuple[Limit, ...] = ()
        self.unpaid: Announced | None = None
        #: What of these has not been charged since then.
        self._unpaid_bytes = 0
        self._unpaid_messages = 0

    def note_charge(self, now_ns: int, *, is_near_limit: bool) -> None:
        """Records have been charged, perhaps before they arrive."""
        self._charges = charges = self._usage.charges_of(self._source.topic, now_ns)
        self._charged_ns = now_ns
        self.limits = charges.bytes_in + charges.messages_in if is_near_limit else ()

    def refund(self, left: int, now_ns: int) -> Collection[Limit]:
        """Refund what has not arrived. Returns the limits that were charged for it."""
        source, charges = self._source, self._charges
        announced = source.announced if isinstance(source, ProduceRequestWalk) else source
        record_bytes, messages = announced.missing(left)
        if charges is None or not record_bytes:
            return ()
        amounts: dict[Limit, int] = {}
        charges.add_to(amounts, record_bytes - self._unpaid_bytes, messages - self._unpaid_messages)
        for limit, amount in amounts.items():
            limit.algorithm.refund(amount, self._charged_ns, now_ns)
        self.unpaid, self._unpaid_bytes, self._unpaid_messages = announced, record_bytes, messages
        return amounts

    def charge_arrived(self, unpaid: Announced, left: int, now_ns: int) -> Decision:
        """Charge what has arrived of the refunded records, in any state of the limits."""
        record_bytes, messages = unpaid.missing(left)
        arrived_bytes, arrived_messages = self._unpaid_bytes - record_bytes, self._unpaid_messages - messages
        self._unpaid_bytes, self._unpaid_messages = record_bytes, messages
        if not record_bytes:
            self.unpaid = None
        return self._usage.charge_refunded(unpaid.topic, arrived_bytes, arrived_messages, now_ns)
