"""Responses with the proxy's addresses instead of the brokers': Metadata, DescribeCluster, FindCoordinator; and
DescribeQuorum responses without those of controllers (KIP-853), which cannot be reached through the proxy.

In their layouts, node id, host and port follow each other. Of Metadata only the part up to the end of the brokers is
read, so the cost does not depend on the number of topics.
"""

from collections.abc import Iterator

from protocol.addresses import HIDDEN_ADDRESS, NodeAddresses
from protocol.apis import DESCRIBE_CLUSTER, DESCRIBE_QUORUM, FIND_COORDINATOR, METADATA
from protocol.errors import MalformedFrame, TruncatedFrame
from protocol.layouts import Field, Layout
from protocol.rewriting_walk import RewritingWalk
from protocol.walk import Steps
from protocol.wire import INT16, INT32, encode_string, unpack_int32

MAX_PREFIX = 1_048_576
"""Bytes of a response up to the end of its brokers. A longer prefix is refused."""
MAX_BROKERS = 10_000

ADDRESS_PIECES = 50
"""Pieces of work of one step of `NodeAddresses.advertise_all`. A new broker takes 100 us, a known one 1 us."""

CONTROLLER_ENDPOINTS = 2
"""The endpoint type of a DescribeCluster response that lists controllers (KIP-919)."""
COORDINATOR_NOT_AVAILABLE = 15
"""An error that clients repeat a FindCoordinator request for."""


class _AddressWalk(RewritingWalk):
    """Reads the address of each node. Subclasses write them."""

    _host = ""

    def _copy_field(self, field: Field) -> Steps:
        if field.name == "host":
            self._host = yield from self._read_text("host")
        elif field.name == "port":
            port = yield from self._collect(4, "port")
            self._on_address(unpack_int32(self.out, len(self.out) - 4)[0], self._host, unpack_int32(port)[0])
        else:
            yield from super()._copy_field(field)

    def _on_address(self, node_id: int, host: str, port: int) -> None:
        """Host and port have been read, and not written; the node id before them has been written."""


class FindCoordinatorWalk(_AddressWalk):
    """Rewrites a FindCoordinator response. An entry without host or with a negative port is an error and stays.

    A hidden coordinator also becomes an error; otherwise clients would connect to its empty address.
    """

    api_key = FIND_COORDINATOR

    _error_at = 0
    """Where the latest error code is in `out`."""
    _is_hidden = False

    def _copy_struct(self, layout: Layout) -> Steps:
        yield from super()._copy_struct(layout)
        if self._is_hidden:
            self.out[self._error_at : self._error_at + 2] = INT16.pack(COORDINATOR_NOT_AVAILABLE)
            self._is_hidden = False

    def _copy_field(self, field: Field) -> Steps:
        if field.name == "error_code":
            self._error_at = len(self.out)
        yield from super()._copy_field(field)

    def _on_address(self, node_id: int, host: str, port: int) -> None:
        if host and port >= 0:
            host, port = self._addresses.advertise(node_id, host, port)
            self._is_hidden = (host, port) == HIDDEN_ADDRESS
        self.out += encode_string(host.encode(), self._compact) + INT32.pack(port)


class _BrokerListWalk(_AddressWalk):
    """Rewrites a list of all brokers. The address of each depends on all (`NodeAddresses.advertise_all`), so they are
    collected and then written. Brokers that are hidden from clients are left out.
    """

    def __init__(self, version: int, frame_length: int, addresses: NodeAddresses) -> None:
        super().__init__(version, frame_length, addresses)
        self._named: list[tuple[int, str, int]] = []
        """Node id, host and port of each broker that clients can reach."""
        self._collected: list[tuple[bytes, bool]] = []
        """Each broker without host and port, and whether clients can reach it."""
        self._is_reachable = True

    def _copy_field(self, field: Field) -> Steps:
        if field.name == "brokers":
            yield from self._rewrite_brokers(field)
        else:
            yield from super()._copy_field(field)

    def _rewrite_brokers(self, field: Field) -> Steps:
        at = self._offset()
        count = yield from self._read_count(field)
        if count > MAX_BROKERS:
            raise MalformedFrame(f"broker count, at most {MAX_BROKERS}", at)
        before = self.out
        for _ in range(count):
            yield from self._collect_one(field)
            if self._offset() > MAX_PREFIX:
                raise MalformedFrame(f"brokers within {MAX_PREFIX} bytes", MAX_PREFIX)
            yield from self._pause()
        self.out = before
        advertised: list[tuple[str, int]] = []
        for address in self._addresses.advertise_all(self._named) if self._named else ():
            if address is not None:
                advertised.append(address)
            self.work_left -= ADDRESS_PIECES
            if self.work_left <= 0:
                yield
        self._write_count(count - advertised.count(HIDDEN_ADDRESS))
        yield from self._write_brokers(iter(advertised))

    def _collect_one(self, field: Field) -> Steps:
        self.out = bytearray()
        was_reachable = self._is_reachable
        yield from self._copy_value(field)
        self._collected.append((bytes(self.out), self._is_reachable))
        if not self._is_reachable:
            self._named.pop()
        self._is_reachable = was_reachable

    def _on_address(self, node_id: int, host: str, port: int) -> None:
        self._named.append((node_id, host, port))

    def _write_brokers(self, advertised: Iterator[tuple[str, int]]) -> Steps:
        host, encoded = "", encode_string(b"", self._compact)
        for broker, is_reachable in self._collected:
            shown, port = address = next(advertised) if is_reachable else HIDDEN_ADDRESS
            if shown != host:
                host, encoded = shown, encode_string(shown.encode(), self._compact)
            if address != HIDDEN_ADDRESS or not is_reachable:
                self.out += broker[:4] + encoded + INT32.pack(port) + broker[4:]
            self.work_left -= 1
            if self.work_left <= 0:  # also if all bytes so far are consumed
                yield
        self._collected = []
        self._named = []


class MetadataWalk(_BrokerListWalk):
    """Rewrites the brokers of a Metadata response. It is done after the last of them."""

    api_key = METADATA
    until = "brokers"

    def _check_end(self) -> None:
        # Topics follow. It also keeps `frame_left` above 0 until the walk is done.
        if self._pos == self._limit:
            raise TruncatedFrame("topics", self._offset())


class DescribeClusterWalk(_BrokerListWalk):
    """Rewrites a DescribeCluster response.

    Addresses of controllers become an empty host and port -1: clients cannot reach them through the proxy. So do those
    of fenced brokers, listed if a client requests them (KIP-1073): none of them can be reached, and a retired broker
    stays fenced until it is unregistered.
    """

    api_key = DESCRIBE_CLUSTER

    def _copy_field(self, field: Field) -> Steps:
        yield from super()._copy_field(field)
        if (field.name == "is_fenced" and self.out[-1]) or (
            field.name == "endpoint_type" and self.out[-1] == CONTROLLER_ENDPOINTS
        ):
            self._is_reachable = False


class DescribeQuorumWalk(RewritingWalk):
    """Rewrites a DescribeQuorum response: from version 2 on each node has no listener."""

    api_key = DESCRIBE_QUORUM

    def _copy_field(self, field: Field) -> Steps:
        before = len(self.out)
        yield from super()._copy_field(field)
        if field.name == "listeners":
            del self.out[before:]
            self._write_count(0)
