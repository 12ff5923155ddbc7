"""Mode `pause`: no throttle time, no delay; a data frame that finds debt is held."""

from typing import final

from proxy.enforcement.holds import Delay
from proxy.enforcement.identity import Identity
from proxy.enforcement.policies.policy import Policy, Reply
from quotas.admission.decision import Decision


@final
class Pause(Policy):
    """See the module."""

    __slots__ = ()

    def leaves_debt(
        self, identity: Identity, decision: Decision, reply: Reply, now_ns: int, *, was_held: bool
    ) -> Delay | None:
        return None

    def overdraws_requests(self, identity: Identity, decision: Decision, now_ns: int, *, is_counted: bool) -> None:
        """Nothing: such requests are not held."""


POLICY = Pause
