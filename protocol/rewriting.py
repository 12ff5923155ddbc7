"""Which walk rewrites the response of which API."""

from typing import Final

from protocol.addresses import NodeAddresses
from protocol.broker_addresses import DescribeClusterWalk, FindCoordinatorWalk, MetadataWalk
from protocol.describe_configs import DescribeConfigsWalk
from protocol.describe_quorum import DescribeQuorumWalk
from protocol.rewriting_walk import RewritingWalk

_ALL: Final = (MetadataWalk, FindCoordinatorWalk, DescribeClusterWalk, DescribeConfigsWalk, DescribeQuorumWalk)
_WALKS: Final[dict[int, type[RewritingWalk]]] = {walk.api_key: walk for walk in _ALL}


def rewriting_walk(api_key: int, version: int, frame_length: int, addresses: NodeAddresses) -> RewritingWalk:
    """The walk that rewrites a response of Metadata or FindCoordinator, or of a Describe of cluster, configs, quorum.

    Args:
        version: of the request that is answered.
        frame_length: bytes of the response from its correlation id on.
    """
    return _WALKS[api_key](version, frame_length, addresses)
