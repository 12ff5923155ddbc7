"""DescribeQuorum responses, without the listeners of controllers (KIP-853): the proxy has no address for them, since
they cannot be reached through it.
"""

from protocol.apis import DESCRIBE_QUORUM
from protocol.layouts import Field
from protocol.rewriting_walk import RewritingWalk
from protocol.walk import Steps


class DescribeQuorumWalk(RewritingWalk):
    """Rewrites a DescribeQuorum response: from version 2 on each node has no listener."""

    api_key = DESCRIBE_QUORUM

    def _copy_field(self, field: Field) -> Steps:
        before = len(self.out)
        yield from super()._copy_field(field)
        if field.name == "listeners":
            del self.out[before:]
            self._write_count(0)
