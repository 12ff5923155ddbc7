"""Reads the topic of fleets to find the members that follow a topic of quotas: for the command `quotas`."""

from typing import Final

from aiokafka.errors import UnknownTopicOrPartitionError
from aiokafka.record.util import calc_crc32c

from protocol.stored_records import stored_records
from proxy.background.host import Host
from proxy.internal_clients.client import InternalClient
from proxy.internal_clients.partition import FIRST_OFFSET, Partition
from quotas.fleet.record import MAX_RECORD_BYTES
from quotas.fleet.versions import Followers
from quotas.time_units import NS_PER_MS

_HISTORY_MS: Final = 120_000
"""More than the 16 s that a silent member counts, since the clock of this machine may be wrong."""
_WAIT_MS: Final = 100
_FETCH_BYTES: Final = 2 * MAX_RECORD_BYTES


class FleetReader:
    """`followers` is what has been read. Methods raise errors of aiokafka, and MalformedFrame."""

    def __init__(self, client: InternalClient, fleet_topic: str, quotas_topic: str) -> None:
        self.followers = Followers(quotas_topic)
        self._client = client
        self._partition = Partition(fleet_topic)
        self._position = 0

    async def open(self) -> bool:
        """Connect, and read what is there. Returns whether there is a topic of fleets: it is not created."""
        try:
            await self._partition.open(await self._client.arguments(), waits=False)
        except UnknownTopicOrPartitionError:
            return False
        since = await self._partition.offset_at(max(0, Host().wall_clock() // NS_PER_MS - _HISTORY_MS))
        self._position = since if since >= 0 else await self._partition.offset_at(FIRST_OFFSET)
        while await self.read():
            pass
        return True

    async def read(self) -> bool:
        """Read the next records. Returns whether there were any."""
        data, before = await self._partition.fetch(self._position, _WAIT_MS, _FETCH_BYTES), self._position
        for each in stored_records(data, MAX_RECORD_BYTES, calc_crc32c):
            self._position = max(self._position, each.next_offset)
            self.followers.apply(each.value or b"", each.time_ms)
        return self._position > before

    async def close(self) -> None:
        await self._partition.close()
