"""DescribeCluster responses, with the proxy's addresses in place of the brokers' (versions 0 to 2, all flexible).

correlation id int32, tag buffer,
throttle time int32, error code int16, error message nullable string, endpoint type int8 (1+),
cluster id string, controller id int32,
brokers array: node id int32, host string, port int32, rack nullable string, is fenced bool (2+), tag buffer
cluster authorized operations int32, tag buffer
"""

from protocol.addresses import NodeAddresses
from protocol.apis import DESCRIBE_CLUSTER
from protocol.broker_list import BrokerListWalk
from protocol.walk import Steps

FIRST_WITH_ENDPOINT_TYPE = 1
FIRST_WITH_FENCE = 2
CONTROLLER_ENDPOINTS = 2
"""The endpoint type of a response that lists controllers (KIP-919)."""


class DescribeClusterWalk(BrokerListWalk):
    """Rewrites a DescribeCluster response.

    Addresses of controllers become an empty host and port -1: clients cannot reach them through the proxy. So do those
    of fenced brokers, listed if a client requests them (KIP-1073): none of them can be reached, and a retired broker
    stays fenced until it is unregistered.
    """

    def __init__(self, version: int, frame_length: int, addresses: NodeAddresses) -> None:
        super().__init__(
            DESCRIBE_CLUSTER, version, frame_length, addresses, has_rack=True, has_fence=version >= FIRST_WITH_FENCE
        )

    def _walk(self) -> Steps:
        yield from self._copy_correlation_id()
        yield from self._copy(6, "throttle time, error code")
        yield from self._copy_string("error message")
        endpoint_type = 0
        if self._version >= FIRST_WITH_ENDPOINT_TYPE:
            yield from self._copy(1, "endpoint type")
            endpoint_type = self.out[-1]
        yield from self._copy_string("cluster id")
        yield from self._copy(4, "controller id")
        yield from self._rewrite_brokers(hide_all=endpoint_type == CONTROLLER_ENDPOINTS)
        yield from self._copy(4, "cluster authorized operations")
        yield from self._drop_tags()
