"""The quotas file while the proxy runs: taken over whole, or refused whole while the quotas of before hold."""

import asyncio
import itertools
import logging
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.commands import _config_again
from proxy.config import host_names
from proxy.config.config import Config, QuotaOptions
from proxy.config.quota_sources import Quotas
from proxy.config.quotas_file import active_quotas
from proxy.config_watch import ConfigWatch
from proxy.file_watch import MAX_PROBLEMS_LOGGED
from proxy.observability.metrics import Metrics
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import PATIENCE_SECONDS, Clock, until

FIVE = '[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "5MB"\n'
NONE = Quotas({}, 1)
SEVEN = '[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "7MB"\n'


class Watched:
    """A quotas file, a watch on it, and what the watch has taken over so far: the one limit of each entity."""

    def __init__(self, path: Path, text: str, client_id: str | None = None) -> None:
        self.path = path
        path.write_text(text)
        self.config = Config(
            bootstrap_servers=(),
            quotas=QuotaOptions(
                entries=(parse_spec("client-id=flag,producer_byte_rate=1"),), file=path, share=0.5, client_id=client_id
            ),
        )
        self.metrics = Metrics(self.config)
        self.taken: list[dict[str, int]] = []
        self.shares: list[float] = []
        self.clock = Clock()
        self.quotas = active_quotas(self.config)
        self.watch = ConfigWatch(self.config, self.quotas, self._apply, self.metrics, self.clock)

    def reload_ok(self) -> bool:
        return self.metrics.reload_ok["config"]

    async def _apply(self, _config: Config, quotas: Quotas) -> None:
        self.quotas = quotas
        self.taken.append({str(entry.entity): int(*entry.limits.values()) for entry in quotas.entries})
        self.shares.append(quotas.share)


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path / "quotas.toml", FIVE)


async def test_an_unchanged_file_changes_nothing(watched: Watched) -> None:
    assert not await watched.watch.poll()
    os.utime(watched.path, (1, 1))
    assert not await watched.watch.poll(), "touched, but with the same entries"
    assert watched.taken == []
    assert watched.reload_ok()


async def test_a_changed_file_is_applied_whole_with_the_entries_of_the_flags(watched: Watched) -> None:
    await watched.watch.poll()
    watched.path.write_text(SEVEN + '[[quota]]\nclient-id = "more"\nproducer_byte_rate = 9\n')
    assert await watched.watch.poll()
    assert watched.taken == [{"client-id:flag": 1, "client-id:etl": 7_000_000, "client-id:more": 9}]
    assert not await watched.watch.poll()


async def test_the_share_of_the_file_is_taken_over_with_its_entries_and_goes_back_to_the_flags(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.watch.poll()
    with caplog.at_level(logging.INFO, "proxy"):
        for text in ("quota_share = 0.25\n" + FIVE, "quota_share = 0.125\n" + SEVEN, SEVEN):
            watched.path.write_text(text)
            assert await watched.watch.poll()
    assert [(share, rates["client-id:etl"]) for share, rates in zip(watched.shares, watched.taken, strict=True)] == [
        (0.25, 5_000_000),
        (0.125, 7_000_000),
        (0.5, 7_000_000),
    ]
    logged = [record.__dict__["fields"] for record in caplog.records if record.getMessage() != "quota_below_floor"]
    assert [(each["share_before"], each["share"]) for each in logged] == [(0.5, 0.25), (0.25, 0.125), (0.125, 0.5)]


async def test_an_unchanged_file_is_applied_after_a_signal(watched: Watched) -> None:
    await watched.watch.poll()
    watched.watch.read_files()
    assert await watched.watch.poll()
    assert watched.taken == [{"client-id:flag": 1, "client-id:etl": 5_000_000}]
    assert not await watched.watch.poll()


@pytest.mark.parametrize("has_reports", [False, True])
async def test_a_reload_guesses_what_is_too_low_where_no_client_reports(
    watched: Watched, caplog: pytest.LogCaptureFixture, has_reports: bool
) -> None:
    await watched.watch.poll()
    if has_reports:
        client = watched.metrics.entities.of("alice", "etl")
        watched.metrics.client_reports.most = 1
        watched.metrics.client_reports.record(client, b"process", [("buffer-available-bytes", 1.0)], 0)
    watched.path.write_text(SEVEN)
    assert await watched.watch.poll()
    guesses = [record for record in caplog.records if record.getMessage() == "quota_below_floor"]
    assert bool(guesses) is not has_reports


async def test_a_reload_warns_about_entries_that_apply_to_no_client(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Watched(tmp_path / "quotas.toml", FIVE, client_id="etl")
    watched.path.write_text(SEVEN.replace('"etl"', '"spark-etl"'))
    assert await watched.watch.poll()
    warned = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "quota_never_matches"]
    assert [(fields["entities"], fields["flag"]) for fields in warned] == [
        ("client-id:flag, client-id:spark-etl", "--client-id etl")
    ]


async def test_a_change_between_start_and_the_first_look_is_not_missed(watched: Watched) -> None:
    watched.path.write_text(SEVEN)
    assert await watched.watch.poll()


async def test_a_file_that_is_truncated_before_it_is_written_keeps_its_quotas(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.watch.poll()
    watched.path.write_text("")
    assert not await watched.watch.poll()
    assert (watched.taken, watched.reload_ok()) == ([], False)
    assert [record.__dict__["event"] for record in caplog.records] == ["config_refused", "config_kept"]
    assert str(watched.path) in caplog.records[0].__dict__["fields"]["place"]
    watched.path.write_text(SEVEN)
    assert await watched.watch.poll()
    assert watched.taken[-1]["client-id:etl"] == 7_000_000


async def test_a_comment_removes_all_quotas_of_the_file(watched: Watched) -> None:
    await watched.watch.poll()
    watched.path.write_text("# no quotas\n")
    assert await watched.watch.poll()
    assert watched.taken == [{"client-id:flag": 1}]
    watched.path.write_text("")
    assert not await watched.watch.poll()
    assert not watched.reload_ok(), "an empty file is refused, as at the start"


async def test_a_file_that_changes_while_it_is_read_is_read_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = [SEVEN, "this is no TOML", FIVE, SEVEN]

    def reading(config: Config) -> Quotas:
        try:
            return active_quotas(config)
        finally:
            if contents:
                watched.path.write_text(contents.pop(0))

    await watched.watch.poll()
    watched.path.write_text("# about to be written\n")
    monkeypatch.setattr("proxy.config_watch.active_quotas", reading)
    assert await watched.watch.poll()
    assert watched.taken == [{"client-id:flag": 1, "client-id:etl": 7_000_000}]
    assert watched.reload_ok(), "what was no TOML had been replaced when it was refused"


async def test_a_file_that_never_stops_changing_holds_up_no_end(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reading(config: Config) -> Quotas:
        quotas = active_quotas(config)
        watched.path.write_text(SEVEN + "#" * next(numbers))
        return quotas

    numbers = itertools.count(1)
    await watched.watch.poll()
    watched.path.write_text(SEVEN)
    monkeypatch.setattr("proxy.file_watch.READ_AGAIN_SECONDS", 0)
    monkeypatch.setattr("proxy.config_watch.active_quotas", reading)
    assert not await watched.watch.poll()
    assert watched.taken == []
    monkeypatch.undo()
    assert await watched.watch.poll()


async def test_a_wrong_file_is_refused_whole_until_it_is_right(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.watch.poll()
    with caplog.at_level(logging.INFO, "proxy"):
        watched.path.write_text(SEVEN + '[[quota]]\nclient-id = "b"\nproducer_byte_rat = 1\n')
        assert not await watched.watch.poll()
    assert watched.taken == []
    assert not watched.reload_ok()
    assert [record.getMessage() for record in caplog.records] == ["config_refused", "config_kept"]
    fields = caplog.records[0].__dict__["fields"]
    assert fields["place"] == f"{watched.path}: quota[1].producer_byte_rat"
    assert fields["hint"].startswith("did you mean 'producer_byte_rate'?")

    watched.path.write_text(FIVE)
    assert not await watched.watch.poll(), "as it was before: nothing to take over"
    assert watched.reload_ok()
    watched.path.write_text(SEVEN)
    assert await watched.watch.poll()


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What the system's resolver knows: host names and their addresses."""
    known: dict[str, str] = {}

    def look_up(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        if name not in known:
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[name], 0))]

    monkeypatch.setattr("proxy.config.host_names.socket.getaddrinfo", look_up)
    return known


def of_address(name: str) -> str:
    return f'[[quota]]\nip = "{name}"\nconnections = 5\n'


async def test_an_unresolved_name_is_looked_up_every_30_seconds_and_logged_once(
    watched: Watched, names: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    await watched.watch.poll()
    watched.path.write_text(SEVEN + of_address("spark-driver"))
    for seconds in (0, 1, 29, 30, 30):
        watched.clock.pass_seconds(seconds)
        assert not await watched.watch.poll()
    assert [record.getMessage() for record in caplog.records] == ["config_refused", "config_kept"]
    assert not watched.reload_ok()
    names["spark-driver"] = "10.0.0.7"
    watched.clock.pass_seconds(29.9)
    assert not await watched.watch.poll()
    watched.clock.pass_seconds(0.1)
    assert await watched.watch.poll()
    assert watched.taken == [{"client-id:flag": 1, "client-id:etl": 7_000_000, "ip:10.0.0.7": 5}]
    assert watched.reload_ok()
    names["spark-driver"] = "10.0.0.8"
    watched.clock.pass_seconds(100)
    assert not await watched.watch.poll(), "a file that was taken over is not tried again"


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str | None]]:
    """A resolver that answers nothing until it is told what: None stands for a name that does not exist."""
    known: dict[str, str | None] = {}
    answers = threading.Event()

    def look_up(name: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        while name not in known:
            answers.wait(0.01)
        address = known[name]
        if address is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0))]

    monkeypatch.setattr("proxy.config.host_names.socket.getaddrinfo", look_up)
    monkeypatch.setattr("proxy.config.host_names.PATIENCE_SECONDS", 0)
    yield known
    known.update(dict.fromkeys([*SLOW_NAMES, "driver.slow"]))


SLOW_NAMES = [f"executor-{number}.slow" for number in range(40)]


async def test_names_that_a_resolver_does_not_answer_keep_no_other_limit_waiting(
    watched: Watched, slow: dict[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    await watched.watch.poll()
    watched.path.write_text(SEVEN + "".join(map(of_address, SLOW_NAMES)))
    assert await watched.watch.poll()
    assert watched.taken[0].items() >= {"client-id:flag": 1, "client-id:etl": 7_000_000}.items()
    [said] = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "host_names_pending"]
    assert "executor-0.slow" in said["entities"]
    assert not await watched.watch.poll(), "it is not read again for each answer"
    slow.update({name: f"10.0.0.{number}" for number, name in enumerate(SLOW_NAMES)})
    await until(lambda: host_names.are_answered(SLOW_NAMES))
    assert await watched.watch.poll()
    assert watched.taken[1] == {
        "client-id:flag": 1,
        "client-id:etl": 7_000_000,
        **{f"ip:10.0.0.{number}": 5 for number in range(len(SLOW_NAMES))},
    }
    assert watched.reload_ok()
    slow.clear()
    watched.path.write_text(FIVE + "".join(map(of_address, SLOW_NAMES)))
    assert await watched.watch.poll()
    assert watched.taken[2] == watched.taken[1] | {"client-id:etl": 5_000_000}, "their addresses are known from before"


async def test_a_late_answer_that_a_name_does_not_exist_refuses_the_file_as_an_early_one(
    watched: Watched,
    slow: dict[str, str | None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched.path.write_text(SEVEN + of_address("driver.slow"))
    assert await watched.watch.poll()
    slow["driver.slow"] = None
    await until(lambda: host_names.are_answered(["driver.slow"]))
    for _ in range(3):
        assert not await watched.watch.poll()
    assert not watched.reload_ok()
    assert [record.getMessage() for record in caplog.records].count("config_refused") == 1
    assert len(watched.taken) == 1, "what was applied before stays"
    slow["driver.slow"] = "10.0.0.9"
    # The resolver answers at once now, but a busy machine may take a while to run its thread.
    monkeypatch.setattr("proxy.config.host_names.PATIENCE_SECONDS", PATIENCE_SECONDS)
    watched.clock.pass_seconds(30)
    assert await watched.watch.poll()
    assert watched.taken[1]["ip:10.0.0.9"] == 5


async def test_two_names_that_have_one_address_for_a_while_are_tried_again(
    watched: Watched, names: dict[str, str]
) -> None:
    await watched.watch.poll()
    names.update({"one.example": "10.0.0.1", "two.example": "10.0.0.1"})
    watched.path.write_text(of_address("one.example") + of_address("two.example"))
    assert not await watched.watch.poll()
    assert watched.taken == []
    names["two.example"] = "10.0.0.2"
    watched.clock.pass_seconds(30)
    assert await watched.watch.poll()
    assert watched.taken[0].items() >= {"ip:10.0.0.1": 5, "ip:10.0.0.2": 5}.items()


async def test_what_is_wrong_is_logged_again_when_it_is_something_else(
    watched: Watched, names: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    watched.path.write_text(of_address("one") + of_address("two"))
    await watched.watch.poll()
    names["one"] = "10.0.0.1"
    watched.clock.pass_seconds(30)
    await watched.watch.poll()
    refused = [record for record in caplog.records if record.getMessage() == "config_refused"]
    assert [record.__dict__["fields"]["place"].rpartition(" ")[2] for record in refused] == [
        "quota[0].ip",
        "quota[1].ip",
        "quota[1].ip",
    ]
    watched.path.write_text(of_address("one") + of_address("two") + "\n")
    await watched.watch.poll()
    watched.watch.read_files()
    await watched.watch.poll()
    assert [record.getMessage() for record in caplog.records].count("config_kept") == 4, "a change, and a signal"


@pytest.mark.parametrize(
    "text",
    [
        of_address("spark-driver") + "[[quota]]\nclient-id = 'a'\n",
        of_address("10.0.0.0/8"),
        "quota_share = 2\n" + of_address("spark-driver"),
        "[[quota]",
    ],
)
async def test_a_file_that_no_name_can_put_right_is_not_tried_again(
    watched: Watched, names: dict[str, str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched.path.write_text(text)
    await watched.watch.poll()
    names["spark-driver"] = "10.0.0.7"
    reads: list[Config] = []
    monkeypatch.setattr("proxy.config_watch.active_quotas", reads.append)
    watched.clock.pass_seconds(31)
    await watched.watch.poll()
    assert reads == []


async def test_a_file_that_is_removed_and_restored(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    await watched.watch.poll()
    watched.path.unlink()
    assert not await watched.watch.poll()
    assert not await watched.watch.poll(), "said once, not every second"
    assert [record.getMessage() for record in caplog.records] == ["config_refused", "config_kept"]
    assert not watched.reload_ok()
    watched.path.write_text(SEVEN)
    assert await watched.watch.poll()
    assert watched.reload_ok()


async def test_a_file_of_which_only_the_status_changed_is_read_again(watched: Watched) -> None:
    """Neither its size nor the time of its last change differ: so it is where a file is only made readable."""
    await watched.watch.poll()
    before = watched.path.stat()
    watched.path.write_text(SEVEN)
    while watched.path.stat().st_ctime_ns == before.st_ctime_ns:  # a file system's clock has ticks
        os.utime(watched.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(watched.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = watched.path.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)
    assert await watched.watch.poll()
    assert watched.taken[-1]["client-id:etl"] == 7_000_000


async def test_a_pipe_in_its_place_is_refused_and_not_waited_for(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    await watched.watch.poll()
    watched.path.unlink()
    os.mkfifo(watched.path)
    ours = os.open(watched.path, os.O_RDWR)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            assert not await watched.watch.poll()
    finally:
        os.close(ours)  # who reads it sees its end now
    assert (watched.taken, watched.reload_ok()) == ([], False)
    assert caplog.records[0].__dict__["fields"]["message"].startswith("cannot be read: it is no regular file")
    watched.path.unlink()
    watched.path.write_text(SEVEN)
    assert await watched.watch.poll()


async def test_a_swapped_symbolic_link_is_a_change(tmp_path: Path) -> None:
    for name, text in (("one", FIVE), ("two", SEVEN)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "quotas.toml").write_text(text)
        os.utime(tmp_path / name / "quotas.toml", (1, 1))
    link = tmp_path / "current"
    link.symlink_to("one")
    watched = Watched(link / "quotas.toml", FIVE)
    os.utime(tmp_path / "one" / "quotas.toml", (1, 1))
    await watched.watch.poll()
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(link)
    assert await watched.watch.poll()
    assert watched.taken[-1]["client-id:etl"] == 7_000_000


async def test_a_file_full_of_errors_does_not_flood_the_log(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    watched.path.write_text("[[quota]]\nx = 1\n" * 1000)
    await watched.watch.poll()
    assert len(caplog.records) == MAX_PROBLEMS_LOGGED + 1
    assert caplog.records[-1].__dict__["fields"]["problems"] >= 1000


async def test_read_again_reads_an_unchanged_file(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("proxy.file_watch.POLL_SECONDS", 3600)
    read = asyncio.Event()
    watched.path.write_text("[[quota]]\nx = 1\n")

    async def take(_config: Config, _quotas: Quotas) -> None:
        pass

    watch = ConfigWatch(watched.config, NONE, take, watched.metrics, watched.clock)
    loop = asyncio.get_running_loop()

    def reading(config: Config) -> Quotas:
        loop.call_soon_threadsafe(read.set)
        return active_quotas(config)

    monkeypatch.setattr("proxy.config_watch.active_quotas", reading)
    running = asyncio.ensure_future(watch.run())
    for _ in range(3):
        await read.wait()
        read.clear()
        watch.read_files()
    await read.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_what_takes_long_with_many_entries_is_done_before_they_are_taken_over(watched: Watched) -> None:
    prepared = []

    async def take(_config: Config, quotas: Quotas) -> None:
        prepared.append(set(vars(quotas)))

    watch = ConfigWatch(watched.config, NONE, take, watched.metrics, watched.clock)
    assert await watch.poll()
    os.utime(watched.path, (1, 1))
    assert not await watch.poll(), "equal quotas are not taken over, nor prepared"
    assert prepared == [{"sources", "share", "dry_run", "pending", "entries", "configured", "exemptions"}]


async def test_a_defect_does_not_end_the_watch(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("proxy.file_watch.POLL_SECONDS", 0.001)
    taken = asyncio.Event()

    async def take_over(_config: Config, quotas: Quotas) -> None:
        if len(quotas.entries) == 2:
            taken.set()
            raise ArithmeticError("a defect")
        taken.set()

    watch = ConfigWatch(watched.config, NONE, take_over, watched.metrics, watched.clock)
    running = asyncio.ensure_future(watch.run())
    await taken.wait()
    assert not watched.reload_ok()
    taken.clear()
    watched.path.write_text(SEVEN + '[[quota]]\nclient-id = "more"\nproducer_byte_rate = 9\n')
    await taken.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert [record.getMessage() for record in caplog.records].count("config_watch_failed") == 1


class Configured:
    """The file of --config and a quotas file that it may name; what the watch has taken over so far."""

    def __init__(self, directory: Path, text: str, *flags: str) -> None:
        self.path = directory / "proxy.toml"
        self.path.write_text(text)
        self.clock = Clock()
        self.flags = flags
        config = self.read()
        self.metrics = Metrics(config)
        self.taken: list[Config] = []
        self.rates: list[dict[str, int]] = []
        self.quotas = active_quotas(config)
        self.watch = ConfigWatch(config, self.quotas, self._apply, self.metrics, self.clock, read_again=self.read)

    def read(self) -> Config:
        return _config_again(
            ["--config", str(self.path), "--bootstrap-servers", "broker:9092", "--max-throttle-ms", "7", *self.flags]
        )

    async def _apply(self, config: Config, quotas: Quotas) -> None:
        self.quotas = quotas
        self.taken.append(config)
        self.rates.append({str(entry.entity): int(*entry.limits.values()) for entry in quotas.entries})


async def test_what_may_change_of_a_configuration_is_applied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = Configured(tmp_path, "# nothing\n")
    await watched.watch.poll()
    assert watched.taken == []
    (tmp_path / "quotas.toml").write_text(FIVE)
    watched.path.write_text(
        'dry_run = true\nthrottle_mode = "notify"\nlog_level = "debug"\nquotas_file = "quotas.toml"\n'
        'quota = ["client-id=a,producer_byte_rate=3"]\nmax_throttle_ms = 9\nmax_connections = 9\n'
    )
    with caplog.at_level(logging.INFO, "proxy"):
        assert await watched.watch.poll()
    [config] = watched.taken
    assert (watched.quotas.dry_run, config.enforcement.throttle_mode) == (True, "notify")
    assert (config.observability.log_level, config.enforcement.max_throttle_ms) == ("debug", 7)
    assert watched.rates == [{"client-id:a": 3, "client-id:etl": 5_000_000}]
    logged = {record.getMessage(): record.__dict__["fields"] for record in caplog.records}
    assert logged["config_reloaded"]["changed"] == "entries,file,throttle_mode,dry_run,log_level"
    assert logged["restart_needed"]["options"] == "max_connections", "a flag sets the other one"
    assert config.security.max_connections == 10_000
    (tmp_path / "quotas.toml").write_text(SEVEN)
    assert await watched.watch.poll(), "the file that it names is watched from now on"
    assert watched.rates[-1]["client-id:etl"] == 7_000_000
    assert not await watched.watch.poll()


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('dry_run = "maybe"\n', "proxy.toml: dry_run = 'maybe'"),
        ("dry_run = true\nthrottle_mod = 'auto'\n", "proxy.toml: throttle_mod"),
        ("dry_run = true\nquotas_file = 'quotas.toml'\n", "quotas.toml: quota[0].x"),
        ("", "proxy.toml'"),
    ],
)
async def test_a_wrong_configuration_keeps_all_that_was_in_force(
    text: str, place: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    watched = Configured(tmp_path, 'quota = ["client-id=a,producer_byte_rate=3"]\n')
    (tmp_path / "quotas.toml").write_text("[[quota]]\nclient-id = 'a'\nx = 1\n")
    await watched.watch.poll()
    watched.path.write_text(text)
    assert not await watched.watch.poll()
    assert watched.taken == []
    assert not watched.metrics.reload_ok["config"]
    assert [record.getMessage() for record in caplog.records][-1] == "config_kept"
    assert any(str(record.__dict__["fields"].get("place", "")).endswith(place) for record in caplog.records)
    (tmp_path / "quotas.toml").write_text(SEVEN)
    if "quotas_file" in text:
        assert await watched.watch.poll(), "the file that a refused configuration names is watched too"
    watched.path.write_text('quota = ["client-id=a,producer_byte_rate=4"]\n')
    assert await watched.watch.poll()
    assert watched.rates[-1] == {"client-id:a": 4}


@pytest.mark.parametrize("by_flag", [True, False])
async def test_an_unresolved_name_in_a_quota_is_looked_up_again(
    *, by_flag: bool, tmp_path: Path, names: dict[str, str]
) -> None:
    names["gateway"] = "10.0.0.7"
    quota, quotas_file = "ip=gateway,connections=5", tmp_path / "quotas.toml"
    quotas_file.write_text(FIVE)
    text = 'quotas_file = "quotas.toml"\n' + ("" if by_flag else f'quota = ["{quota}"]\n')
    watched = Configured(tmp_path, text, *(["--quota", quota] if by_flag else []))
    await watched.watch.poll()
    del names["gateway"]
    quotas_file.write_text(SEVEN)
    assert not await watched.watch.poll()
    names["gateway"] = "10.0.0.8"
    assert not await watched.watch.poll()
    watched.clock.pass_seconds(30)
    assert await watched.watch.poll()
    assert watched.rates == [{"ip:10.0.0.8": 5, "client-id:etl": 7_000_000}]
