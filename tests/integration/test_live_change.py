"""A producer's limit holds it, whichever library produces, and without responses. Quotas and enforcement change while
producers run: what they get follows within seconds, and nobody is disconnected.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from operator import gt
from pathlib import Path

import pytest

from bench.flooding_clients import LIBRARIES, command
from deploy.local.cluster import KafkaCluster
from deploy.local.tap import Tap
from tests.conftest import UniqueName
from tests.integration.bytes_passed import SECONDS, check_frames, span
from tests.integration.flood import Flood
from tests.integration.proxy_process import ProxyProcess, eventually, killed_at_the_end, sum_of
from tests.integration.topics import create_topics

pytestmark = pytest.mark.claim(
    "enforcement", "a changed limit acts within seconds of SIGHUP or of the file's change, without a disconnect"
)

#: At `SLOW` a client needs a minute for `MUCH`. The five requests of 100 kB that a library sends ahead pass in 5 s, and
#: it waits 10 s for a response.
SLOW, FAST = 100_000, 10_000_000
MIDDLE = 500_000
MUCH = 6_000_000
DEADLINE_SECONDS = 40.0
UNANSWERED = "acks-0"


@contextmanager
def flooding(library: str, bootstrap: str, client_id: str, topic: str) -> Iterator[None]:
    """A producer that wants more than it may have, as long as the block lasts."""
    if library == UNANSWERED:
        with Flood(bootstrap, client_id, topic, acks=0):
            yield
        return
    with killed_at_the_end(command(library, bootstrap, client_id, topic)):
        yield


def frames_of(tap: Tap, client_id: str, since_ns: int = 0) -> list[tuple[int, int]]:
    """(monotonic ns, bytes) of each of its requests after that time."""
    return [each for each in tap.sizes("produce", client_id) if each[0] > since_ns]


def check_middle(tap: Tap, client_ids: Collection[str], since_ns: int = 0) -> None:
    """`MIDDLE` holds each of them in the seconds after that time, as soon as all have sent for so long."""

    def shortest() -> int:
        return min(span(frames_of(tap, each, since_ns)) for each in client_ids)

    eventually(lambda: shortest() >= SECONDS * 10**9, 60.0, f"all have sent for {SECONDS} s")
    for client_id in client_ids:
        check_frames(frames_of(tap, client_id, since_ns), MIDDLE)


def write(path: Path, *entries: str, above: str = "") -> None:
    """As a whole, the way editors do it."""
    fresh = path.with_suffix(".new")
    fresh.write_text(f"{above}\n" + "".join(f"[[quota]]\n{entry}\n" for entry in entries))
    fresh.replace(path)


def limit(client_id: str, rate: int) -> str:
    return f'client-id = "{client_id}"\nproducer_byte_rate = {rate}'


@pytest.mark.claim("limits", "producer_byte_rate")
@pytest.mark.timeout(250)
def test_faster_slower_off_and_free_without_a_disconnect(
    tapped_cluster: KafkaCluster, tap: Tap, unique_name: UniqueName, tmp_path: Path
) -> None:
    """Three libraries, and a producer with acks=0, have the default limit each. The file changes ten times, once with
    a mistake; it and SIGUSR2 switch enforcement off and on.
    """
    quotas = tmp_path / "quotas.toml"
    client_ids = {unique_name(library): library for library in (*LIBRARIES, UNANSWERED)}
    create_topics(tapped_cluster, *client_ids)
    write(quotas, limit("<default>", MIDDLE))
    with ProxyProcess(tapped_cluster.bootstrap_servers, "--quotas-file", str(quotas)) as proxy, ExitStack() as stack:
        for client_id, library in client_ids.items():
            stack.enter_context(flooding(library, proxy.bootstrap_servers, client_id, client_id))

        frames = partial(frames_of, tap)

        def count(event: str, **fields: str) -> int:
            return sum(fields.items() <= each.items() for each in proxy.events if each["event"] == event)

        def when(act: Callable[[], None], event: str, **fields: str) -> None:
            """Act, and wait until the proxy has said this once more."""
            before = count(event, **fields)
            act()
            eventually(lambda: count(event, **fields) > before, DEADLINE_SECONDS, f"{event} {fields}")

        def change(*entries: str, above: str = "") -> None:
            when(lambda: write(quotas, *entries, above=above), "quotas_reloaded")

        def quota_limits() -> set[float]:
            page = proxy.metrics()
            return {sum_of(page, "quota_limit", entity=f"client-id:{client_id}") for client_id in client_ids}

        def all_wait(what: str) -> None:
            """Each of them, at some time from now on."""
            seen: set[str] = set()

            def have_waited() -> bool:
                seen.update(each["client_id"] for each in proxy.throttles())
                return seen == client_ids.keys()

            eventually(have_waited, DEADLINE_SECONDS, what)

        def all_send(size: int) -> None:
            def sent() -> list[int]:
                return [sum(each for _, each in frames(name)) for name in client_ids]

            wanted = [before + size for before in sent()]
            eventually(lambda: all(map(gt, sent(), wanted)), DEADLINE_SECONDS, f"each has sent {size} bytes more")

        check_middle(tap, client_ids)
        change(limit("<default>", SLOW))
        all_wait("all are held")
        change(limit("<default>", FAST))
        all_send(MUCH)  # those who wait are asked again at once: at the old rate they owed seconds
        change(limit("<default>", MIDDLE))
        all_wait("all are held again")
        all_send(1)
        without = [client_id for client_id, library in client_ids.items() if library != UNANSWERED]  # it is in buffers
        check_middle(tap, without, max(frames(client_id)[-1][0] for client_id in without))
        change(limit("<default>", MIDDLE), above="quota_share = 0.5")
        assert quota_limits() == {MIDDLE / 2}
        proxy.expected_errors.add("config_refused")
        write(quotas, limit("<default>", FAST), 'topic = "orders"\nbytes_in_rat = 1')
        refused = proxy.wait_for_event("config_refused", DEADLINE_SECONDS)
        assert str(quotas) in refused["place"]
        assert "bytes_in_rat" in refused["message"]
        assert "bytes_in_rate" in refused["hint"]
        assert proxy.metric("config_last_reload_successful") == 0
        assert quota_limits() == {MIDDLE / 2}
        when(proxy.reload, "config_refused")  # SIGHUP reads an unchanged file
        change(limit("<default>", SLOW))
        assert proxy.metric("config_last_reload_successful") == 1
        assert quota_limits() == {SLOW}, "without a share in the file, the flag's"
        slow = limit("<default>", SLOW)
        for by, switch_off, switch_on in (
            ("SIGUSR2", proxy.toggle_enforcement, proxy.toggle_enforcement),
            ("file", lambda: write(quotas, slow, above="dry_run = true"), lambda: write(quotas, slow)),
        ):
            all_wait("all are held at last")
            when(switch_off, "enforcement_off", by=by)
            assert proxy.metric("enforcement_enabled") == 0
            all_send(MUCH)
            when(switch_on, "enforcement_on", by=by)
            assert proxy.metric("enforcement_enabled") == 1
        all_wait("all are held once more")
        change(limit("nobody-here", SLOW))
        all_send(MUCH)
        assert proxy.throttles() == []
    assert tap.unreadable == 0
    for client_id in client_ids:
        assert len({frame.connection for frame in tap.frames("produce", client_id)}) == 1
