"""The page at `/` of the admin port, in a browser, of a proxy with real clients. Debian's package: chromium."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from deploy.local.cluster import KafkaCluster
from tests.conftest import UniqueName
from tests.deploy.operator.browser import opened
from tests.integration.flood import Flood
from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import create_topics
from tests.integration.wire import Wire

METADATA, NO_TOPICS = 3, bytes(4)
MARKUP = "<img src=x onerror=alert(1)><script>alert(2)</script>"
CONTROLS = "a\u202eb\x1b[31mc\u2028d"
LONG = 240 * "W"
SHOWN = "[...document.querySelectorAll('#{} .name')].map(each => each.textContent)"
ANSWER = "document.querySelector('#answers li').innerText"
FIRST = "document.querySelector('#clients tbody')"
#: How far right anything reaches that can be seen.
RIGHTMOST = "Math.max(...[...document.querySelectorAll('body *')].map(each => each.getBoundingClientRect().right))"
#: What the browser refuses, if a script on the page asks another host for a picture, or for data.
REFUSED = """new Promise(done => {
  const found = [];
  addEventListener("securitypolicyviolation", event => {
    found.push(event.effectiveDirective);
    if (found.length == 2) done(found.sort());
  });
  const picture = new Image();
  picture.src = "http://127.0.0.9:9/x.png";
  fetch("http://127.0.0.9:9/y").catch(() => null);
})"""


@pytest.mark.deploy
@pytest.mark.timeout(300)
async def test_the_page_answers_and_shows_who_waits_and_names_are_only_text(
    kafka_cluster: KafkaCluster, unique_name: UniqueName, tmp_path: Path
) -> None:
    topic, client_id = unique_name("orders"), unique_name("etl")
    create_topics(kafka_cluster, topic)
    quota = "client-id=<default>,producer_byte_rate=100kB"
    with ProxyProcess(kafka_cluster.bootstrap_servers, "--quota", quota) as proxy, ExitStack() as stack:
        for name in (MARKUP, CONTROLS, LONG):
            stack.enter_context(Wire(proxy.bootstrap_servers, name)).ask(METADATA, 1, NO_TOPICS)
        stack.enter_context(Flood(proxy.bootstrap_servers, client_id, topic))
        base = f"http://{proxy.admin_address}/"
        async with opened(base, tmp_path / "profile") as page:
            await page.wait_for(f"{SHOWN.format('clients')}.length >= 4")
            limit = f"{client_id} is held to 100 kB/s by producer_byte_rate of client-id:{client_id} (--quota)"
            await page.wait_for(f"{ANSWER}.includes('Yes, as configured') && {ANSWER}.includes('{limit}')")
            names = await page.value(SHOWN.format("clients"))
            assert {client_id, MARKUP, LONG, "a\ufffdb\ufffd[31mc\ufffdd"} == set(names)
            assert names[0] == client_id, "who waits most comes first"
            assert f"client-id:{client_id} producer_byte_rate" in await page.value(SHOWN.format("limits"))
            assert await page.value(SHOWN.format("brokers")) == [kafka_cluster.bootstrap_servers]
            assert "at a limit" in await page.value(f"{FIRST}.querySelector('.state').innerText")

            # By the keyboard; what is open stays open, and the focus stays, while figures change.
            await page.value(f"{FIRST}.querySelector('button').focus()")
            for kind in ("keyDown", "keyUp"):
                key = {"key": "Enter", "code": "Enter", "text": "\r", "windowsVirtualKeyCode": 13}
                await page.call("Input.dispatchKeyEvent", type=kind, **key)
            await page.value(f"window.before = {FIRST}")
            await page.wait_for("performance.getEntriesByType('resource').length >= 6")  # it has refreshed
            assert await page.value(f"window.before === {FIRST}")
            assert await page.value(f"{FIRST}.contains(document.activeElement)")
            details = await page.value(f"{FIRST}.querySelector('.more').innerText")
            assert f"{client_id} spent" in details
            assert f"producer_byte_rate of client-id:{client_id}" in details
            assert await page.value(f"{FIRST}.querySelectorAll('svg .mark, svg path').length") == 2

            assert await page.value("document.querySelectorAll('main img, main script').length") == 0
            assert not set(await page.value("document.body.innerText")) & set("\u202e\x1b\u2028")
            assert page.dialogs == []
            assert {each.removeprefix(base) for each in page.requests} - {"favicon.ico"} == {"", "answer"}
            assert await page.value(REFUSED) == ["connect-src", "img-src"]

            light = await page.value("getComputedStyle(document.body).backgroundColor")
            scheme = [{"name": "prefers-color-scheme", "value": "dark"}]
            await page.call("Emulation.setEmulatedMedia", features=scheme)
            assert await page.value("getComputedStyle(document.body).backgroundColor") != light

            await page.call(
                "Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True
            )
            await page.wait_for("innerWidth == 390")
            assert await page.value("document.documentElement.scrollWidth") == 390
            assert await page.value(RIGHTMOST) <= 390

            os.kill(proxy.pid, signal.SIGSTOP)
            await page.wait_for("!document.querySelector('#stale').hidden")
            assert "does not answer this page for" in await page.value("document.querySelector('#stale').innerText")
            os.kill(proxy.pid, signal.SIGCONT)
            await page.wait_for(
                "document.querySelector('#stale').hidden && document.title.startsWith('Yes, as configured: ')"
            )
