"""What the proxy does with every message: one table.

Listed is every API that a Kafka 4.3 broker offers to clients on a broker listener, with the versions that the proxy
lets pass: Kafka 4.3's newest, and at the low end also those that Kafka 3.9 spoke and 4.x dropped (KIP-896), since the
proxy may stand before either. ApiVersions answers are cut to these ranges, for opaque APIs too: Produce 10, Fetch 16
and DescribeQuorum 2 gained broker addresses by nothing but a version bump, and the next version of any API might.
A request outside of the table closes its connection.

Left out, on purpose:

- what controllers and brokers tell each other: 4-7, 52-54, 56, 58, 59, 62, 63, 67, 70, 73, 82, and the state of share
  groups, 83-87. Some of these (Vote, BeginQuorumEpoch, EndQuorumEpoch, FetchSnapshot, UpdateRaftVoter) carry addresses;
- WriteTxnMarkers (27): brokers end each other's transactions with it. `kafka-transactions abort` sends it as well, with
  the cluster's own rights: that is an operator's command, for a broker's own address;
- SaslHandshake 0: it switches the stream to tokens without any header, which the proxy does not follow yet;
- DescribeConfigs 0, last sent by clients of 2017 (Kafka 1.0): its responses show broker addresses, and kio, which
  knows only what Kafka 4 knows, has no codec for it;
- InitProducerId 6 (KIP-939): unstable in 4.3, so brokers do not offer it unless told to.

AddRaftVoter and RemoveRaftVoter (80, 81) stay in: brokers pass them on to the controller, and no response of theirs
holds an address.
"""

from dataclasses import dataclass
from enum import Enum


class Treatment(Enum):
    """What the proxy does with requests and responses of an API."""

    OPAQUE = "forwarded; only the request header is read"
    PEEK = "data: metered and held to quotas, throttle time filled in, node endpoints hidden"
    REWRITE = "the response carries broker addresses: replaced by the proxy's own, or hidden"
    INSPECT = "read, not changed: tells who the client is"
    NEGOTIATE = "the response's version ranges are cut to this table"
    LIMIT = "creates or deletes partitions: forwarded; limited topic by topic where the client has such a limit"
    ANSWER = "answered by the proxy itself"


@dataclass(frozen=True, slots=True)
class Api:
    """One API. Versions are inclusive; `None` for a version means never."""

    key: int
    name: str
    """Kafka's name, without Request or Response."""
    min_version: int
    max_version: int
    flexible_from: int | None
    """First flexible version (KIP-482): compact lengths, tagged fields, and tag buffers in both headers."""
    treatment: Treatment
    throttle_from: int | None
    """First version whose response has `throttle_time_ms`."""
    throttle_first: bool
    """Whether that field is the first of the response's body."""

    def covers(self, version: int) -> bool:
        return self.min_version <= version <= self.max_version

    def is_flexible(self, version: int) -> bool:
        """Whether the body is flexible; the request's header is then version 2, with a tag buffer at its end."""
        return self.flexible_from is not None and version >= self.flexible_from

    def response_header_is_flexible(self, version: int) -> bool:
        """Whether a tag buffer stands between the response's correlation id and its body.

        ApiVersions is the exception: its response header stays at version 0, for a client that asked in a version
        too new for the broker must be able to read the answer (KIP-511).
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
DESCRIBE_QUORUM = 55
DESCRIBE_CLUSTER = 60
SHARE_FETCH = 78
SHARE_ACKNOWLEDGE = 79

OPAQUE = Treatment.OPAQUE
PEEK = Treatment.PEEK
REWRITE = Treatment.REWRITE
INSPECT = Treatment.INSPECT
NEGOTIATE = Treatment.NEGOTIATE
LIMIT = Treatment.LIMIT

# fmt: off
_TABLE = (
    #   key name                        versions flexible        throttle
    #                                   min max from  treatment  from  is first
    Api(0,  "Produce",                      0, 13,    9, PEEK,         1, False),
    Api(1,  "Fetch",                        0, 18,   12, PEEK,         1, True),
    Api(2,  "ListOffsets",                  0, 11,    6, OPAQUE,       2, True),
    Api(3,  "Metadata",                     0, 13,    9, REWRITE,      3, True),
    Api(8,  "OffsetCommit",                 0, 10,    8, OPAQUE,       3, True),
    Api(9,  "OffsetFetch",                  0, 10,    6, OPAQUE,       3, True),
    Api(10, "FindCoordinator",              0,  6,    3, REWRITE,      1, True),
    Api(11, "JoinGroup",                    0,  9,    6, OPAQUE,       2, True),
    Api(12, "Heartbeat",                    0,  4,    4, OPAQUE,       1, True),
    Api(13, "LeaveGroup",                   0,  5,    4, OPAQUE,       1, True),
    Api(14, "SyncGroup",                    0,  5,    4, OPAQUE,       1, True),
    Api(15, "DescribeGroups",               0,  6,    5, OPAQUE,       1, True),
    Api(16, "ListGroups",                   0,  5,    3, OPAQUE,       1, True),
    Api(17, "SaslHandshake",                1,  1, None, INSPECT,   None, False),
    Api(18, "ApiVersions",                  0,  4,    3, NEGOTIATE,    1, False),
    Api(19, "CreateTopics",                 0,  7,    5, LIMIT,        2, True),
    Api(20, "DeleteTopics",                 0,  6,    4, LIMIT,        1, True),
    Api(21, "DeleteRecords",                0,  2,    2, OPAQUE,       0, True),
    Api(22, "InitProducerId",               0,  5,    2, OPAQUE,       0, True),
    Api(23, "OffsetForLeaderEpoch",         0,  4,    4, OPAQUE,       2, True),
    Api(24, "AddPartitionsToTxn",           0,  5,    3, OPAQUE,       0, True),
    Api(25, "AddOffsetsToTxn",              0,  4,    3, OPAQUE,       0, True),
    Api(26, "EndTxn",                       0,  5,    3, OPAQUE,       0, True),
    Api(28, "TxnOffsetCommit",              0,  5,    3, OPAQUE,       0, True),
    Api(29, "DescribeAcls",                 0,  3,    2, OPAQUE,       0, True),
    Api(30, "CreateAcls",                   0,  3,    2, OPAQUE,       0, True),
    Api(31, "DeleteAcls",                   0,  3,    2, OPAQUE,       0, True),
    Api(32, "DescribeConfigs",              1,  4,    4, REWRITE,      0, True),
    Api(33, "AlterConfigs",                 0,  2,    2, OPAQUE,       0, True),
    Api(34, "AlterReplicaLogDirs",          0,  2,    2, OPAQUE,       0, True),
    Api(35, "DescribeLogDirs",              0,  5,    2, OPAQUE,       0, True),
    Api(36, "SaslAuthenticate",             0,  2,    2, INSPECT,   None, False),
    Api(37, "CreatePartitions",             0,  3,    2, LIMIT,        0, True),
    Api(38, "CreateDelegationToken",        0,  3,    2, OPAQUE,       0, False),
    Api(39, "RenewDelegationToken",         0,  2,    2, OPAQUE,       0, False),
    Api(40, "ExpireDelegationToken",        0,  2,    2, OPAQUE,       0, False),
    Api(41, "DescribeDelegationToken",      0,  3,    2, OPAQUE,       0, False),
    Api(42, "DeleteGroups",                 0,  2,    2, OPAQUE,       0, True),
    Api(43, "ElectLeaders",                 0,  2,    2, OPAQUE,       0, True),
    Api(44, "IncrementalAlterConfigs",      0,  1,    1, OPAQUE,       0, True),
    Api(45, "AlterPartitionReassignments",  0,  1,    0, OPAQUE,       0, True),
    Api(46, "ListPartitionReassignments",   0,  0,    0, OPAQUE,       0, True),
    Api(47, "OffsetDelete",                 0,  0, None, OPAQUE,       0, False),
    Api(48, "DescribeClientQuotas",         0,  1,    1, OPAQUE,       0, True),
    Api(49, "AlterClientQuotas",            0,  1,    1, OPAQUE,       0, True),
    Api(50, "DescribeUserScramCredentials", 0,  0,    0, OPAQUE,       0, True),
    Api(51, "AlterUserScramCredentials",    0,  0,    0, OPAQUE,       0, True),
    Api(55, "DescribeQuorum",               0,  2,    0, REWRITE,   None, False),
    Api(57, "UpdateFeatures",               0,  2,    0, OPAQUE,       0, True),
    Api(60, "DescribeCluster",              0,  2,    0, REWRITE,      0, True),
    Api(61, "DescribeProducers",            0,  0,    0, OPAQUE,       0, True),
    Api(64, "UnregisterBroker",             0,  0,    0, OPAQUE,       0, True),
    Api(65, "DescribeTransactions",         0,  0,    0, OPAQUE,       0, True),
    Api(66, "ListTransactions",             0,  2,    0, OPAQUE,       0, True),
    Api(68, "ConsumerGroupHeartbeat",       0,  1,    0, OPAQUE,       0, True),
    Api(69, "ConsumerGroupDescribe",        0,  1,    0, OPAQUE,       0, True),
    Api(71, "GetTelemetrySubscriptions",    0,  0,    0, OPAQUE,       0, True),
    Api(72, "PushTelemetry",                0,  0,    0, OPAQUE,       0, True),
    Api(74, "ListConfigResources",          0,  1,    0, OPAQUE,       0, True),
    Api(75, "DescribeTopicPartitions",      0,  0,    0, OPAQUE,       0, True),
    Api(76, "ShareGroupHeartbeat",          1,  1,    0, OPAQUE,       0, True),
    Api(77, "ShareGroupDescribe",           1,  1,    0, OPAQUE,       0, True),
    Api(78, "ShareFetch",                   1,  2,    0, REWRITE,      0, True),
    Api(79, "ShareAcknowledge",             1,  2,    0, REWRITE,      0, True),
    Api(80, "AddRaftVoter",                 0,  1,    0, OPAQUE,       0, True),
    Api(81, "RemoveRaftVoter",              0,  0,    0, OPAQUE,       0, True),
    Api(88, "StreamsGroupHeartbeat",        0,  0,    0, OPAQUE,       0, True),
    Api(89, "StreamsGroupDescribe",         0,  0,    0, OPAQUE,       0, True),
    Api(90, "DescribeShareGroupOffsets",    0,  1,    0, OPAQUE,       0, True),
    Api(91, "AlterShareGroupOffsets",       0,  0,    0, OPAQUE,       0, True),
    Api(92, "DeleteShareGroupOffsets",      0,  0,    0, OPAQUE,       0, True),
)
# fmt: on

APIS: dict[int, Api] = {api.key: api for api in _TABLE}
