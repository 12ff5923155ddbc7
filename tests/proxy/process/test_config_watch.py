"""The quotas file while the proxy runs: taken over whole, or refused whole while the quotas of before hold."""

import asyncio
import itertools
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from proxy.command.commands import _config_again
from proxy.config import host_names
from proxy.config.config import Config, QuotaOptions
from proxy.config.quota_sources import Quotas
from proxy.config.quotas_file import active_quotas
from proxy.files.file_watch import MAX_PROBLEMS_LOGGED
from proxy.observability.metrics import Metrics
from proxy.process.config_watch import ConfigWatch
from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import PATIENCE_SECONDS, Clock, lines_of, until

FIVE = '[[quota]]\nclient-id = "etl"\nproducer_byte_rate = "5MB"\n'
SEVEN = FIVE.replace("5MB", "7MB")
MORE = '[[quota]]\nclient-id = "more"\nproducer_byte_rate = 9\n'
MISSPELT = '[[quota]]\nclient-id = "b"\nproducer_byte_rat = 1\n'
#: What the flags of `of_quotas` and these files limit.
WITH_FIVE, WITH_SEVEN = ({"client-id:flag": 1, "client-id:etl": rate} for rate in (5_000_000, 7_000_000))
NONE = Quotas({}, 1)
REFUSED = ["config_refused", "config_kept"]


class Watched:
    """A file, a watch on it, and what the watch has taken over so far: the one limit of each entity."""

    def __init__(self, path: Path, config: Config, read_again: Callable[[], Config] | None = None) -> None:
        self.path, self.config = path, config
        self.metrics = Metrics()
        self.taken: list[dict[str, int]] = []
        self.configs: list[Config] = []
        self.clock = Clock()
        self.quotas = active_quotas(config)
        self.watch = ConfigWatch(config, self.quotas, self._apply, self.metrics, self.clock, read_again=read_again)

    async def reads(self, text: str, *, after_seconds: float = 0) -> bool:
        """Whether this text is taken over."""
        self.path.write_text(text)
        return await self.looks(after_seconds)

    async def looks(self, after_seconds: float = 0) -> bool:
        self.clock.pass_seconds(after_seconds)
        return await self.watch.poll()

    def is_ok(self) -> bool:
        return self.metrics.reload_ok["config"]

    async def _apply(self, config: Config, quotas: Quotas) -> None:
        self.quotas = quotas
        self.configs.append(config)
        self.taken.append({str(entry.entity): int(*entry.limits.values()) for entry in quotas.entries})


def of_quotas(path: Path, text: str = FIVE, client_id: str | None = None) -> Watched:
    """A quotas file beside a quota of the flags."""
    path.write_text(text)
    flag = parse_spec("client-id=flag,producer_byte_rate=1")
    options = QuotaOptions(entries=(flag,), file=path, share=0.5, client_id=client_id)
    return Watched(path, Config(bootstrap_servers=(), quotas=options))


@pytest.fixture
async def watched(tmp_path: Path) -> Watched:
    """It has looked at the file once."""
    made = of_quotas(tmp_path / "quotas.toml")
    await made.looks()
    return made


def names_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [name for name, _ in lines_of(caplog.records)]


async def test_an_unchanged_file_is_applied_only_after_a_signal(watched: Watched) -> None:
    assert not await watched.looks()
    os.utime(watched.path, (1, 1))
    assert not await watched.looks(), "touched, but with the same entries"
    assert (watched.taken, watched.is_ok()) == ([], True)
    watched.watch.read_files()
    assert await watched.looks()
    assert not await watched.looks()
    assert watched.taken == [WITH_FIVE]


async def test_the_share_is_that_of_the_file_or_the_flags(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    shares = []
    with caplog.at_level(logging.INFO, "proxy"):
        for text in ("quota_share = 0.25\n" + FIVE, "quota_share = 0.125\n" + SEVEN, SEVEN):
            assert await watched.reads(text)
            shares.append(watched.quotas.share)
    assert (shares, watched.taken) == ([0.25, 0.125, 0.5], [WITH_FIVE, WITH_SEVEN, WITH_SEVEN])
    logged = [fields for name, fields in lines_of(caplog.records) if name != "quota_below_floor"]
    assert [(each["share_before"], each["share"]) for each in logged] == [(0.5, 0.25), (0.25, 0.125), (0.125, 0.5)]


@pytest.mark.parametrize("has_reports", [False, True])
async def test_a_reload_guesses_what_is_too_low_where_no_client_reports(
    watched: Watched, caplog: pytest.LogCaptureFixture, has_reports: bool
) -> None:
    if has_reports:
        client = watched.metrics.entities.of("alice", "etl")
        watched.metrics.client_reports.most = 1
        watched.metrics.client_reports.record(client, b"process", [("buffer-available-bytes", 1.0)], 0)
    assert await watched.reads(SEVEN)
    assert ("quota_below_floor" in names_of(caplog)) is not has_reports


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (Path.unlink, "quotas.toml': cannot be read: No such file"),
        (lambda path: [path.unlink(), os.mkfifo(path)], "quotas.toml': cannot be read: it is no regular file"),  # type: ignore[func-returns-value]
        (lambda path: path.write_text(""), "quotas.toml': is empty"),
        (lambda path: path.write_text(SEVEN + MISSPELT), "quotas.toml: quota[1].producer_byte_rat: unknown key"),
    ],
    ids=["removed", "a pipe", "truncated before it is written", "misspelt"],
)
async def test_a_wrong_file_is_refused_whole_until_it_is_right(
    watched: Watched, caplog: pytest.LogCaptureFixture, spoil: Callable[[Path], object], says: str
) -> None:
    spoil(watched.path)
    for _ in range(2):
        assert not await watched.looks()
        assert (watched.taken, watched.is_ok(), names_of(caplog)) == ([], False, REFUSED), "said once"
    fields = lines_of(caplog.records)[0][1]
    assert says in f"{fields['place']}: {fields['message']}"
    watched.path.unlink(missing_ok=True)
    assert not await watched.reads(FIVE), "as it was before: nothing to take over"
    assert watched.is_ok()
    assert await watched.reads(SEVEN)


async def test_a_file_that_changes_meanwhile_is_read_again(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = [SEVEN, "this is no TOML", FIVE, SEVEN]

    def reading(config: Config) -> Quotas:
        try:
            return active_quotas(config)
        finally:
            if contents:
                watched.path.write_text(contents.pop(0))

    monkeypatch.setattr("proxy.process.config_watch.active_quotas", reading)
    assert await watched.reads("# about to be written\n")
    assert watched.taken == [WITH_SEVEN]
    assert watched.is_ok(), "what was no TOML had been replaced when it was refused"


async def test_a_file_that_always_changes_holds_up_no_end(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def reading(config: Config) -> Quotas:
        quotas = active_quotas(config)
        watched.path.write_text(SEVEN + "#" * next(numbers))
        return quotas

    numbers = itertools.count(1)
    monkeypatch.setattr("proxy.files.file_watch.READ_AGAIN_NS", -1)
    monkeypatch.setattr("proxy.process.config_watch.active_quotas", reading)
    assert not await watched.reads(SEVEN)
    assert watched.taken == []
    monkeypatch.undo()
    assert await watched.looks()


# ---- host names
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


def of_address(*names: str) -> str:
    return "".join(f'[[quota]]\nip = "{name}"\nconnections = 5\n' for name in names)


async def test_an_unresolved_name_is_looked_up_every_30_seconds_and_logged_once(
    watched: Watched, names: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    watched.path.write_text(SEVEN + of_address("spark-driver"))
    for seconds in (0, 1, 29, 30, 30):
        assert not await watched.looks(seconds)
    assert (names_of(caplog), watched.is_ok()) == (REFUSED, False)
    names["spark-driver"] = "10.0.0.7"
    assert not await watched.looks(29.9)
    assert await watched.looks(0.1)
    assert (watched.taken, watched.is_ok()) == ([WITH_SEVEN | {"ip:10.0.0.7": 5}], True)
    names["spark-driver"] = "10.0.0.8"
    assert not await watched.looks(100), "a file that was taken over is not tried again"


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


@pytest.mark.claim(
    "limits",
    "a resolver that does not answer keeps no other limit waiting, and neither the start nor the end of the proxy",
)
async def test_names_that_a_resolver_does_not_answer_keep_no_other_limit_waiting(
    watched: Watched, slow: dict[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    assert await watched.reads(SEVEN + of_address(*SLOW_NAMES))
    assert watched.taken[0].items() >= WITH_SEVEN.items()
    [said] = [fields for name, fields in lines_of(caplog.records) if name == "host_names_pending"]
    assert "executor-0.slow" in said["entities"]
    assert not await watched.looks(), "it is not read again for each answer"
    slow.update({name: f"10.0.0.{number}" for number, name in enumerate(SLOW_NAMES)})
    await until(lambda: host_names.are_answered(SLOW_NAMES))
    assert await watched.looks()
    assert watched.taken[1] == WITH_SEVEN | {f"ip:10.0.0.{number}": 5 for number in range(len(SLOW_NAMES))}
    assert watched.is_ok()
    slow.clear()
    assert await watched.reads(FIVE + of_address(*SLOW_NAMES))
    assert watched.taken[2] == watched.taken[1] | WITH_FIVE, "their addresses are known from before"


async def test_a_late_answer_that_a_name_does_not_exist_refuses_the_file_as_an_early_one(
    watched: Watched, slow: dict[str, str | None], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await watched.reads(SEVEN + of_address("driver.slow"))
    slow["driver.slow"] = None
    await until(lambda: host_names.are_answered(["driver.slow"]))
    for _ in range(3):
        assert not await watched.looks()
    assert not watched.is_ok()
    assert names_of(caplog).count("config_refused") == 1
    assert len(watched.taken) == 1, "what was applied before stays"
    slow["driver.slow"] = "10.0.0.9"
    # The resolver answers at once now, but a busy machine may take a while to run its thread.
    monkeypatch.setattr("proxy.config.host_names.PATIENCE_SECONDS", PATIENCE_SECONDS)
    assert await watched.looks(30)
    assert watched.taken[1]["ip:10.0.0.9"] == 5


async def test_two_names_of_one_address_are_tried_again(watched: Watched, names: dict[str, str]) -> None:
    names.update({"one.example": "10.0.0.1", "two.example": "10.0.0.1"})
    assert not await watched.reads(of_address("one.example", "two.example"))
    names["two.example"] = "10.0.0.2"
    assert await watched.looks(30)
    assert watched.taken == [{"client-id:flag": 1, "ip:10.0.0.1": 5, "ip:10.0.0.2": 5}]


async def test_what_is_wrong_is_logged_again_when_it_is_something_else(
    watched: Watched, names: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    await watched.reads(of_address("one", "two"))
    names["one"] = "10.0.0.1"
    await watched.looks(30)
    refused = [fields["place"] for name, fields in lines_of(caplog.records) if name == "config_refused"]
    assert [place.rpartition(" ")[2] for place in refused] == ["quota[0].ip", "quota[1].ip", "quota[1].ip"]
    await watched.reads(of_address("one", "two") + "\n")
    watched.watch.read_files()
    await watched.looks()
    assert names_of(caplog).count("config_kept") == 4, "a change, and a signal"


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
    await watched.reads(text)
    names["spark-driver"] = "10.0.0.7"
    reads: list[Config] = []
    monkeypatch.setattr("proxy.process.config_watch.active_quotas", reads.append)
    await watched.looks(31)
    assert reads == []


# ---- what counts as a change
async def test_a_file_of_which_only_the_status_changed_is_read_again(watched: Watched) -> None:
    """Neither its size nor the time of its last change differ: so it is where a file is only made readable."""
    before = watched.path.stat()
    watched.path.write_text(SEVEN)
    while watched.path.stat().st_ctime_ns == before.st_ctime_ns:  # a file system's clock has ticks
        os.utime(watched.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.utime(watched.path, ns=(before.st_atime_ns, before.st_mtime_ns))
    after = watched.path.stat()
    assert (after.st_mtime_ns, after.st_size, after.st_ino) == (before.st_mtime_ns, before.st_size, before.st_ino)
    assert await watched.looks()
    assert watched.taken == [WITH_SEVEN]


async def test_a_swapped_symbolic_link_is_a_change(tmp_path: Path) -> None:
    for name, text in (("one", FIVE), ("two", SEVEN)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "quotas.toml").write_text(text)
        os.utime(tmp_path / name / "quotas.toml", (1, 1))
    link = tmp_path / "current"
    link.symlink_to("one")
    watched = of_quotas(link / "quotas.toml")
    os.utime(tmp_path / "one" / "quotas.toml", (1, 1))
    await watched.looks()
    (tmp_path / "next").symlink_to("two")
    (tmp_path / "next").replace(link)
    assert await watched.looks()
    assert watched.taken == [WITH_SEVEN]


async def test_a_file_full_of_errors_does_not_flood_the_log(watched: Watched, caplog: pytest.LogCaptureFixture) -> None:
    await watched.reads("[[quota]]\nx = 1\n" * 1000)
    assert len(caplog.records) == MAX_PROBLEMS_LOGGED + 1
    assert caplog.records[-1].__dict__["fields"]["problems"] >= 1000


# ---- the watch as it runs
async def test_what_takes_long_with_many_entries_is_done_before_they_are_taken_over(watched: Watched) -> None:
    prepared = []

    async def take(_config: Config, quotas: Quotas) -> None:
        prepared.append(set(vars(quotas)))

    watch = ConfigWatch(watched.config, NONE, take, watched.metrics, watched.clock)
    assert await watch.poll()
    os.utime(watched.path, (1, 1))
    assert not await watch.poll(), "equal quotas are not taken over, nor prepared"
    assert prepared == [{"sources", "share", "dry_run", "pending", "entries", "configured", "exemptions", "misfits"}]


async def test_a_defect(watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("proxy.files.file_watch.POLL_SECONDS", 0.001)
    taken = asyncio.Event()

    async def take_over(_config: Config, quotas: Quotas) -> None:
        taken.set()
        if len(quotas.entries) == 2:
            raise ArithmeticError("a defect")

    watch = ConfigWatch(watched.config, NONE, take_over, watched.metrics, watched.clock)
    running = asyncio.ensure_future(watch.run())
    await taken.wait()
    assert not watched.is_ok()
    taken.clear()
    watched.path.write_text(SEVEN + MORE)
    await taken.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert names_of(caplog).count("config_watch_failed") == 1


# ---- the file of --config
def of_config(directory: Path, text: str, *flags: str) -> Watched:
    """The file of --config and a quotas file that it may name."""
    path = directory / "proxy.toml"
    path.write_text(text)
    given = ["--config", str(path), "--bootstrap-servers", "broker:9092", "--max-throttle-ms", "7", *flags]
    return Watched(path, _config_again(given), lambda: _config_again(given))


async def test_what_may_change_of_a_configuration_is_applied(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    watched = of_config(tmp_path, "# nothing\n")
    await watched.looks()
    assert watched.taken == []
    (tmp_path / "quotas.toml").write_text(FIVE)
    with caplog.at_level(logging.INFO, "proxy"):
        assert await watched.reads(
            'dry_run = true\nthrottle_mode = "notify"\nlog_level = "debug"\nquotas_file = "quotas.toml"\n'
            'quota = ["client-id=a,producer_byte_rate=3"]\nmax_throttle_ms = 9\nmax_connections = 9\n'
        )
    [config] = watched.configs
    assert (watched.quotas.dry_run, config.enforcement.throttle_mode) == (True, "notify")
    assert (config.observability.log_level, config.enforcement.max_throttle_ms) == ("debug", 7)
    assert watched.taken == [{"client-id:a": 3, "client-id:etl": 5_000_000}]
    logged = dict(lines_of(caplog.records))
    assert logged["config_reloaded"]["changed"] == "entries,file,throttle_mode,dry_run,log_level"
    assert logged["restart_needed"]["options"] == "max_connections", "a flag sets the other one"
    assert config.security.max_connections == 10_000
    (tmp_path / "quotas.toml").write_text(SEVEN)
    assert await watched.looks(), "the file that it names is watched from now on"
    assert watched.taken[-1]["client-id:etl"] == 7_000_000
    assert not await watched.looks()


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
    watched = of_config(tmp_path, 'quota = ["client-id=a,producer_byte_rate=3"]\n')
    (tmp_path / "quotas.toml").write_text("[[quota]]\nclient-id = 'a'\nx = 1\n")
    await watched.looks()
    assert not await watched.reads(text)
    assert (watched.taken, watched.is_ok()) == ([], False)
    assert names_of(caplog)[-1] == "config_kept"
    assert any(str(fields.get("place", "")).endswith(place) for _, fields in lines_of(caplog.records))
    (tmp_path / "quotas.toml").write_text(SEVEN)
    if "quotas_file" in text:
        assert await watched.looks(), "the file that a refused configuration names is watched too"
    assert await watched.reads('quota = ["client-id=a,producer_byte_rate=4"]\n')
    assert watched.taken[-1] == {"client-id:a": 4}


@pytest.mark.parametrize("by_flag", [True, False])
async def test_an_unresolved_name_of_a_quota_retries(*, by_flag: bool, tmp_path: Path, names: dict[str, str]) -> None:
    names["gateway"] = "10.0.0.7"
    quota, quotas_file = "ip=gateway,connections=5", tmp_path / "quotas.toml"
    quotas_file.write_text(FIVE)
    text = 'quotas_file = "quotas.toml"\n' + ("" if by_flag else f'quota = ["{quota}"]\n')
    watched = of_config(tmp_path, text, *(["--quota", quota] if by_flag else []))
    await watched.looks()
    del names["gateway"]
    quotas_file.write_text(SEVEN)
    assert not await watched.looks()
    names["gateway"] = "10.0.0.8"
    assert not await watched.looks()
    assert await watched.looks(30)
    assert watched.taken == [{"ip:10.0.0.8": 5, "client-id:etl": 7_000_000}]
