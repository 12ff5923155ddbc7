"""The measuring tap: a relay in front of brokers, or between clients and the proxy, that notes complete data frames.

with Tap() as tap, KafkaCluster(1, advertised=tap.advertise) as cluster:
    ...                                             # brokers now send everybody through the tap
    run = measure(tap.sizes("produce"), limit=5_000_000)   # of deploy.local.evenness
"""

import json
import subprocess
import sys
from types import TracebackType
from typing import Self

from deploy.local.artifacts import PROJECT
from deploy.local.errors import TapFailed
from deploy.local.frames import DataApi, DataFrame
from deploy.local.settings import Address


class Tap:
    """A relay process with any number of addresses. Ends on exit, and by itself when this process dies.

    Everything raises TapFailed when the relay is gone or cannot listen where it was told to.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._frames: list[DataFrame] = []
        self.unreadable = 0
        """Connections with bytes other than Kafka's, at the last read: they were forwarded and not measured."""

    def relay(self, upstream: Address, listen: Address = ("127.0.0.1", 0)) -> Address:
        """Forwards a new address to `upstream`. Port 0 lets the kernel choose; returns the address in use."""
        answer = self._ask({"listen": listen, "upstream": upstream})
        match answer:
            case {"address": [str(host), int(port)]}:
                return host, port
            case _:
                raise TapFailed(f"the tap {answer.get('error')}")

    def advertise(self, node: int, port: int) -> Address:
        """For KafkaCluster's `advertised`: a relay in front of that broker, on the same loopback address as it."""
        host = f"127.0.0.{node + 1}"
        return self.relay((host, port), (host, 0))

    def frames(self, api: DataApi | None = None, client_id: str | None = None) -> list[DataFrame]:
        """All complete data frames so far, of one kind or client id when given. Cheap to ask again: sends news only."""
        answer = self._ask({"frames_from": len(self._frames)})
        match answer:
            case {"frames": list(news), "unreadable": int(unreadable)}:
                self._frames += [DataFrame(*each) for each in news]
                self.unreadable = unreadable
        return [
            frame
            for frame in self._frames
            if (api is None or frame.api == api) and (client_id is None or frame.client_id == client_id)
        ]

    def sizes(self, api: DataApi, client_id: str | None = None) -> list[tuple[int, int]]:
        """(monotonic ns, bytes) of each data frame: what deploy.local.evenness takes."""
        return [(frame.time_ns, frame.size) for frame in self.frames(api, client_id)]

    def start(self) -> Self:
        """Starts the relay's process."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "deploy.local.relay"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=PROJECT,
            start_new_session=True,  # Ctrl-C is for the one who measures
        )
        return self

    def close(self) -> None:
        """Ends the relay and with it all its connections. What it noted and was not asked for is lost."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.communicate()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _ask(self, command: dict[str, object]) -> dict[str, object]:
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise TapFailed("the tap is not started")
        try:
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except OSError as error:
            raise TapFailed(f"the tap's process is gone, exit code {process.poll()}") from error
        if not line:
            raise TapFailed(f"the tap's process ended with exit code {process.wait()}")
        answer: dict[str, object] = json.loads(line)
        return answer
