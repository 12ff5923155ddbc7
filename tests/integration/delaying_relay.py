"""A relay in front of a broker that passes on late what the broker sends: a slow broker, or a slow network to it."""

import asyncio
import threading
from asyncio import StreamReader, StreamWriter
from typing import Self

from deploy.local.settings import Address

_PIECE_BYTES = 65_536


class DelayingRelay:
    """Listens in a thread, as long as the block lasts; for one broker.

    delay_seconds: of each piece of at most 64 KiB that the broker sends from now on; pieces wait one after the other.
    delayed: how many were or are.
    """

    def __init__(self) -> None:
        self.delay_seconds = 0.0
        self.delayed = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()

    def advertise(self, node: int, port: int) -> Address:
        """For KafkaCluster's `advertised`: an address in front of that broker, on the same loopback address."""
        host = f"127.0.0.{node + 1}"

        def begin(reader: StreamReader, writer: StreamWriter) -> None:
            task = self._loop.create_task(self._relay(reader, writer, (host, port)))
            self._open.add(task)
            task.add_done_callback(self._open.discard)

        async def listen() -> asyncio.Server:
            return await asyncio.start_server(begin, host, 0)

        self._server = asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)
        found_host, found_port = self._server.sockets[0].getsockname()
        return found_host, found_port

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _relay(self, reader: StreamReader, writer: StreamWriter, broker: Address) -> None:
        ends = [writer]
        try:
            broker_reader, broker_writer = await asyncio.open_connection(*broker)
            ends.append(broker_writer)
            await asyncio.gather(
                self._pass(reader, broker_writer, delays=False), self._pass(broker_reader, writer, delays=True)
            )
        except OSError:  # the client sees a closed connection, as it would without the relay
            pass
        finally:
            for each in ends:
                each.transport.abort()
            await asyncio.sleep(0)  # transports close their sockets in the loop's next round

    async def _pass(self, reader: StreamReader, writer: StreamWriter, *, delays: bool) -> None:
        while piece := await reader.read(_PIECE_BYTES):
            if delays and self.delay_seconds:
                self.delayed += 1
                await asyncio.sleep(self.delay_seconds)
            writer.write(piece)
            await writer.drain()
        writer.write_eof()

    async def _close(self) -> None:
        if self._server is not None:
            self._server.close()
        open_now = list(self._open)
        for each in open_now:
            each.cancel()
        await asyncio.gather(*open_now, return_exceptions=True)
