"""Headless Chromium, told what to do by the DevTools protocol. As root, so without its sandbox: for own pages only."""

import asyncio
import json
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from aiohttp import ClientSession, ClientWebSocketResponse

from tests.deploy.operator.cache import system_tool
from tests.integration.proxy_process import eventually

START_SECONDS = 60.0
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--no-proxy-server"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-port=0"),
)


class Page:
    """One tab. `requests`: the addresses that it asked for; `dialogs`: the texts of alerts and the like."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self._socket = socket
        self._count = 0
        self._has_loaded = False
        self.requests: list[str] = []
        self.dialogs: list[str] = []

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """The result of a method of the protocol. Raises AssertionError with its error."""
        self._count += 1
        await self._socket.send_json({"id": self._count, "method": method, "params": params})
        while (answer := await self._socket.receive_json(timeout=START_SECONDS)).get("id") != self._count:
            self._on_event(answer["method"], answer["params"])
        assert "error" not in answer, (method, answer)
        return dict(answer["result"])

    async def value(self, script: str) -> Any:
        """Of an expression, or of what its promise brings."""
        found = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    async def wait_for(self, script: str) -> None:
        """Until the expression is true. Raises AssertionError, with what the page shows then."""
        look = (
            f"const look = () => {{ ({script}) ? done(true) : left-- ? setTimeout(look, 100) : done(false) }}; look()"
        )
        found = await self.value(f"new Promise(done => {{ let left = 300; {look} }})")
        assert found, (script, await self.value("document.body.innerText"))

    async def open(self, url: str) -> None:
        """Until it has loaded."""
        await self.call("Page.navigate", url=url)
        async with asyncio.timeout(START_SECONDS):
            while not self._has_loaded:
                answer = await self._socket.receive_json()
                self._on_event(answer["method"], answer["params"])

    def _on_event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.dialogs.append(params["message"])
        elif method == "Page.loadEventFired":
            self._has_loaded = True


@contextmanager
def _chromium(scratch: Path) -> Iterator[int]:
    """Its port."""
    command = [system_tool("chromium"), *_FLAGS, f"--user-data-dir={scratch}", "about:blank"]
    port_file = scratch / "DevToolsActivePort"
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            lines = eventually(
                lambda: port_file.exists() and port_file.read_text().splitlines()[1:] and port_file.read_text(),
                START_SECONDS,
                "chromium listens",
            )
            yield int(str(lines).splitlines()[0])
        finally:
            process.terminate()


@asynccontextmanager
async def opened(url: str, scratch: Path) -> AsyncIterator[Page]:
    """A page that has loaded, until the block ends."""
    with _chromium(scratch) as port:
        async with ClientSession(f"http://127.0.0.1:{port}") as http:
            async with http.get("/json/list") as answer:
                (tab,) = (each for each in json.loads(await answer.text()) if each["type"] == "page")
            async with http.ws_connect(f"/devtools/page/{tab['id']}", max_msg_size=0) as socket:
                page = Page(socket)
                for domain in ("Page", "Network", "Runtime"):
                    await page.call(f"{domain}.enable")
                await page.open(url)
                yield page
