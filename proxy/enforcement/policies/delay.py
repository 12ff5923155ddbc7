"""Mode `delay`: the response to a frame that leaves debt is sent when the debt is paid, as brokers did before KIP-219.

The delay is at most `--max-throttle-ms`: an appended request whose response comes after the client's timeout would be
sent again. The rest of the debt holds the next data frame. Clients that do not wait for a throttle time find the delay
in that field; for others it is left out, or they would wait twice.
"""

from typing import final

from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity, throttle_time_ms
from proxy.enforcement.policies.policy import Policy, Reply
from proxy.enforcement.report import DELAY
from quotas.admission.decision import Decision


@final
class DelayPolicy(Policy):
    """See the module."""

    __slots__ = ()

    def leaves_debt(
        self, identity: Identity, decision: Decision, reply: Reply, now_ns: int, *, was_held: bool
    ) -> Delay | None:
        limit = decision.limit
        if limit is None or reply is Reply.NONE:
            return None
        wait_ns = decision.wait_ns + limit.queued_ns()
        if not was_held:
            self._report.noticed(identity, decision, wait_ns, now_ns, DELAY)
        delay_ms = throttle_time_ms(wait_ns, self._report.most_ns)
        return Delay(limit, now_ns, delay_ms, is_shown=reply is Reply.LATE)


POLICY = DelayPolicy
