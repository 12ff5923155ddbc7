"""Which walk rewrites the response of which API."""

from protocol.addresses import NodeAddresses
from protocol.apis import DESCRIBE_CLUSTER, DESCRIBE_CONFIGS, DESCRIBE_QUORUM, FIND_COORDINATOR, METADATA
from protocol.broker_addresses import DescribeClusterWalk, FindCoordinatorWalk, MetadataWalk
from protocol.describe_configs import DescribeConfigsWalk
from protocol.describe_quorum import DescribeQuorumWalk
from protocol.errors import UnknownApi
from protocol.rewriting_walk import RewritingWalk


def rewriting_walk(api_key: int, version: int, frame_length: int, addresses: NodeAddresses) -> RewritingWalk:
    """The walk that rewrites a response of Metadata or FindCoordinator, or of a Describe of cluster, configs, quorum.

    Args:
        version: of the request that is answered.
        frame_length: bytes of the response from its correlation id on.

    Raises:
        UnknownApi: another API.
    """
    if api_key == METADATA:
        return MetadataWalk(version, frame_length, addresses)
    if api_key == FIND_COORDINATOR:
        return FindCoordinatorWalk(version, frame_length, addresses)
    if api_key == DESCRIBE_CLUSTER:
        return DescribeClusterWalk(version, frame_length, addresses)
    if api_key == DESCRIBE_CONFIGS:
        return DescribeConfigsWalk(version, frame_length)
    if api_key == DESCRIBE_QUORUM:
        return DescribeQuorumWalk(version, frame_length)
    raise UnknownApi(api_key)
