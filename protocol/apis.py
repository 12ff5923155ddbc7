"""What the proxy does with every message: one table.

The table lists every API that a Kafka 4.4 broker offers to clients on a broker listener, with the versions that the
proxy forwards. The upper bound is Kafka 4.4's newest version. The lower bound includes versions that Kafka 3.9 supports
and 4.x dropped (KIP-896), since the proxy works with both. Ranges in ApiVersions responses keep the broker's minimum,
and end at the upper bound, for forwarded APIs too: Produce 10, Fetch 16 and DescribeQuorum 2 gained broker addresses by
a version bump alone, and the next version of any API might. A request outside of the table closes its connection.

Left out on purpose:

- APIs between controllers and brokers: 4-7, 52-54, 56, 58, 59, 62, 63, 67, 70, 73, 82, and the state of share groups,
  83-87. Some of these (Vote, BeginQuorumEpoch, EndQuorumEpoch, FetchSnapshot, UpdateRaftVoter) carry addresses;
- WriteTxnMarkers (27): brokers end transactions of other brokers with it. `kafka-transactions abort` sends it too, with
  the cluster's own rights: operators run it against a broker's own address;
- SaslHandshake 0: it switches the stream to tokens without headers, which the proxy does not parse yet;
- DescribeConfigs 0 (Kafka 3.9): sent by clients of 2017. Its responses contain broker addresses, and kio has no codec;
- InitProducerId 6 (KIP-939): unstable in 4.4, so brokers do not offer it by default.

AddRaftVoter and RemoveRaftVoter (80, 81) are listed: brokers forward them to the controller, and their responses
contain no address.
"""

from dataclasses import dataclass
from enum import Enum


class Treatment(Enum):
    """What the proxy does with requests and responses of an API. One handler for each."""

    FORWARD = "forwarded unchanged; only the request header is read"
    PRODUCE = "request metered and charged; response: throttle time raised, node endpoints hidden"
    FETCH = "request: max_bytes lowered; response charged, throttle time raised, node endpoints hidden"
    GROUP = "forwarded unchanged; the group, its generation and who joins are read"
    END_TRANSACTION = "forwarded unchanged; which transaction ends is read"
    METADATA = "response: broker addresses replaced by the proxy's; topic names and ids are read"
    REWRITE = "response: rebuilt while it arrives; broker addresses replaced by the proxy's, or removed"
    HIDE = "response: node endpoints hidden in place"
    MUTATIONS = "creates or deletes partitions: charged; a request over its limit is refused by the proxy"
    NEGOTIATE = "response: version ranges cut to the maxima of this table"
    INSPECT = "authentication: forwarded; the name that the broker accepts is read. Refused where the proxy logs in"
    CLIENT_QUOTAS = "Kafka's quotas: forwarded, or with --quotas-topic answered by the proxy"
    TELEMETRY = "metrics of clients: forwarded, or with --client-telemetry answered by the proxy"


@dataclass(frozen=True, slots=True)
class Api:
    """One API. Versions are inclusive; `None` for a version means never."""

    key: int
    name: str
    """Kafka's name, without Request or Response."""
    min_version: int
    max_version: int
    flexible_from: int | None = None
    """First flexible version (KIP-482): compact lengths, tagged fields, and tag buffers in both headers."""
    treatment: Treatment = Treatment.FORWARD
    throttle_from: int | None = None
    """First version with `throttle_time_ms` in the response."""
    throttle_at: int | None = None
    """Offset of that field in the response's body, in bytes; `None` if fields of variable length precede it."""

    def covers(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Whether the body is flexible. The request's header then is version 2, with a tag buffer at its end."""
        return self.flexible_from is not None and version >= self.flexible_from

    def response_header_is_flexible(self, version: int) -> bool:
        """Whether the response has a tag buffer between its correlation id and its body.

        ApiVersions is the exception: its response header stays at version 0, so that a client that sent a version too
        new for the broker can parse the response (KIP-511).
        """
        return self.is_flexible(version) and self.key != API_VERSIONS


PRODUCE = 0
FETCH = 1
METADATA = 3
FIND_COORDINATOR = 10
SASL_HANDSHAKE = 17
API_VERSIONS = 18
CREATE_TOPICS = 19
DELETE_TOPICS = 20
DESCRIBE_CONFIGS = 32
SASL_AUTHENTICATE = 36
CREATE_PARTITIONS = 37
DESCRIBE_CLIENT_QUOTAS = 48
ALTER_CLIENT_QUOTAS = 49
DESCRIBE_QUORUM = 55
DESCRIBE_CLUSTER = 60
TELEMETRY = GET_TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY = 71, 72
SHARE_FETCH = 78
SHARE_ACKNOWLEDGE = 79

_T = Treatment

# fmt: off
_TABLE = (
    #   key name                      versions flexible               throttle
    #                                  min max  from    treatment     from    at
    Api(0,  "Produce",                      0, 13,    9, _T.PRODUCE,      1, None),
    Api(1,  "Fetch",                        0, 18,   12, _T.FETCH,        1,    0),
    Api(2,  "ListOffsets",                  0, 11,    6, _T.FORWARD,      2,    0),
    Api(3,  "Metadata",                     0, 13,    9, _T.METADATA,     3,    0),
    Api(8,  "OffsetCommit",                 0, 10,    8, _T.FORWARD,      3,    0),
    Api(9,  "OffsetFetch",                  0, 10,    6, _T.FORWARD,      3,    0),
    Api(10, "FindCoordinator",              0,  6,    3, _T.REWRITE,      1,    0),
    Api(11, "JoinGroup",                    0,  9,    6, _T.GROUP,        2,    0),
    Api(12, "Heartbeat",                    0,  4,    4, _T.FORWARD,      1,    0),
    Api(13, "LeaveGroup",                   0,  5,    4, _T.FORWARD,      1,    0),
    Api(14, "SyncGroup",                    0,  5,    4, _T.GROUP,        1,    0),
    Api(15, "DescribeGroups",               0,  6,    5, _T.FORWARD,      1,    0),
    Api(16, "ListGroups",                   0,  5,    3, _T.FORWARD,      1,    0),
    Api(17, "SaslHandshake",                1,  1, None, _T.INSPECT,   None, None),
    Api(18, "ApiVersions",                  0,  5,    3, _T.NEGOTIATE,    1, None),
    Api(19, "CreateTopics",                 0,  7,    5, _T.MUTATIONS,    2,    0),
    Api(20, "DeleteTopics",                 0,  6,    4, _T.MUTATIONS,    1,    0),
    Api(21, "DeleteRecords",                0,  2,    2, _T.FORWARD,      0,    0),
    Api(22, "InitProducerId",               0,  5,    2, _T.FORWARD,      0,    0),
    Api(23, "OffsetForLeaderEpoch",         0,  4,    4, _T.FORWARD,      2,    0),
    Api(24, "AddPartitionsToTxn",           0,  5,    3, _T.FORWARD,      0,    0),
    Api(25, "AddOffsetsToTxn",              0,  4,    3, _T.FORWARD,      0,    0),
    Api(26, "EndTxn",                       0,  5,    3, _T.END_TRANSACTION, 0, 0),
    Api(28, "TxnOffsetCommit",              0,  6,    3, _T.FORWARD,      0,    0),
    Api(29, "DescribeAcls",                 0,  3,    2, _T.FORWARD,      0,    0),
    Api(30, "CreateAcls",                   0,  3,    2, _T.FORWARD,      0,    0),
    Api(31, "DeleteAcls",                   0,  3,    2, _T.FORWARD,      0,    0),
    Api(32, "DescribeConfigs",              1,  4,    4, _T.REWRITE,      0,    0),
    Api(33, "AlterConfigs",                 0,  2,    2, _T.FORWARD,      0,    0),
    Api(34, "AlterReplicaLogDirs",          0,  2,    2, _T.FORWARD,      0,    0),
    Api(35, "DescribeLogDirs",              0,  5,    2, _T.FORWARD,      0,    0),
    Api(36, "SaslAuthenticate",             0,  2,    2, _T.INSPECT,   None, None),
    Api(37, "CreatePartitions",             0,  3,    2, _T.MUTATIONS,    0,    0),
    Api(38, "CreateDelegationToken",        0,  3,    2, _T.FORWARD,      0, None),
    Api(39, "RenewDelegationToken",         0,  2,    2, _T.FORWARD,      0,   10),
    Api(40, "ExpireDelegationToken",        0,  2,    2, _T.FORWARD,      0,   10),
    Api(41, "DescribeDelegationToken",      0,  3,    2, _T.FORWARD,      0, None),
    Api(42, "DeleteGroups",                 0,  3,    2, _T.FORWARD,      0,    0),
    Api(43, "ElectLeaders",                 0,  2,    2, _T.FORWARD,      0,    0),
    Api(44, "IncrementalAlterConfigs",      0,  1,    1, _T.FORWARD,      0,    0),
    Api(45, "AlterPartitionReassignments",  0,  1,    0, _T.FORWARD,      0,    0),
    Api(46, "ListPartitionReassignments",   0,  0,    0, _T.FORWARD,      0,    0),
    Api(47, "OffsetDelete",                 0,  0, None, _T.FORWARD,      0,    2),
    Api(48, "DescribeClientQuotas",         0,  1,    1, _T.CLIENT_QUOTAS, 0,   0),
    Api(49, "AlterClientQuotas",            0,  1,    1, _T.CLIENT_QUOTAS, 0,   0),
    Api(50, "DescribeUserScramCredentials", 0,  0,    0, _T.FORWARD,      0,    0),
    Api(51, "AlterUserScramCredentials",    0,  0,    0, _T.FORWARD,      0,    0),
    Api(55, "DescribeQuorum",               0,  2,    0, _T.REWRITE,   None, None),
    Api(57, "UpdateFeatures",               0,  2,    0, _T.FORWARD,      0,    0),
    Api(60, "DescribeCluster",              0,  2,    0, _T.REWRITE,      0,    0),
    Api(61, "DescribeProducers",            0,  0,    0, _T.FORWARD,      0,    0),
    Api(64, "UnregisterBroker",             0,  0,    0, _T.FORWARD,      0,    0),
    Api(65, "DescribeTransactions",         0,  0,    0, _T.FORWARD,      0,    0),
    Api(66, "ListTransactions",             0,  2,    0, _T.FORWARD,      0,    0),
    Api(68, "ConsumerGroupHeartbeat",       0,  1,    0, _T.GROUP,        0,    0),
    Api(69, "ConsumerGroupDescribe",        0,  1,    0, _T.FORWARD,      0,    0),
    Api(71, "GetTelemetrySubscriptions",    0,  0,    0, _T.TELEMETRY,    0,    0),
    Api(72, "PushTelemetry",                0,  0,    0, _T.TELEMETRY,    0,    0),
    Api(74, "ListConfigResources",          0,  1,    0, _T.FORWARD,      0,    0),
    Api(75, "DescribeTopicPartitions",      0,  0,    0, _T.FORWARD,      0,    0),
    Api(76, "ShareGroupHeartbeat",          1,  1,    0, _T.GROUP,        0,    0),
    Api(77, "ShareGroupDescribe",           1,  1,    0, _T.FORWARD,      0,    0),
    Api(78, "ShareFetch",                   1,  2,    0, _T.FETCH,        0,    0),
    Api(79, "ShareAcknowledge",             1,  2,    0, _T.HIDE,         0,    0),
    Api(80, "AddRaftVoter",                 0,  1,    0, _T.FORWARD,      0,    0),
    Api(81, "RemoveRaftVoter",              0,  0,    0, _T.FORWARD,      0,    0),
    Api(88, "StreamsGroupHeartbeat",        0,  1,    0, _T.GROUP,        0,    0),
    Api(89, "StreamsGroupDescribe",         0,  1,    0, _T.FORWARD,      0,    0),
    Api(90, "DescribeShareGroupOffsets",    0,  1,    0, _T.FORWARD,      0,    0),
    Api(91, "AlterShareGroupOffsets",       0,  0,    0, _T.FORWARD,      0,    0),
    Api(92, "DeleteShareGroupOffsets",      0,  0,    0, _T.FORWARD,      0,    0),
    Api(93, "StreamsGroupTopologyDescriptionUpdate", 0, 0, 0, _T.FORWARD, 0,    0),
    Api(94, "UnregisterController",         0,  0,    0, _T.FORWARD,      0,    0),
)
# fmt: on

APIS: dict[int, Api] = {api.key: api for api in _TABLE}
