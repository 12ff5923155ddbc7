"""The answer to "Is it the proxy?" for all clients at once: one line for each cause, the worst first. Pure functions:
they take rows of the pages and return sentences.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeVar

from proxy.admin.explain import Finding, name_of
from proxy.admin.plain_text import amount_of, bytes_of, counted, seconds_of
from proxy.admin.verdict import Row, answers_none, is_silent
from proxy.observability.logs import one_line

#: A loop that is busy for a larger share of its time limits the clients, even if it is hardly late.
_BUSY: Final = 0.9
#: A late loop that is busy for a smaller share of its time does not get the CPU time that it needs.
_STARVED: Final = 0.7
_MOST_NAMES: Final = 3
_MOST_CHARS: Final = 60
MOST_ANSWERS: Final = 5
#: Failed connections to a broker whose cause is how this proxy is configured.
_OURS: Final = ("tls_", "plaintext_to_tls", "closed_early", "sasl_required", "login_refused")

K = TypeVar("K")

NO: Final = "No"
YES: Final = "Yes"
CONFIGURED: Final = "Yes, as configured"


class Load(NamedTuple):
    """The load of the proxy itself: how late its event loop is (0 unless that is too much), and the share of its time
    that it is busy. `enforces` is False in a dry run.
    """

    late_seconds: float = 0
    busy_ratio: float = 0
    enforces: bool = True


class Cause(NamedTuple):
    """`level` is `bad`, `held` (a limit does what it was configured for) or `ok`. `waiting` counts the clients
    concerned.
    """

    level: str
    word: str
    text: str
    waiting: int = 0

    def __str__(self) -> str:
        return f"{self.word}: {self.text}"


def answers(
    clients: Sequence[Row], limits: Iterable[Row], brokers: Sequence[Row], refused: Iterable[Finding], load: Load
) -> list[Cause]:
    """`clients` have their verdicts. There is always an answer. Causes that no client waits for come last."""
    by_verdict = defaultdict[str, list[Row]](list)
    for client in clients:
        by_verdict[client["verdict"]].append(client)
    failed = [_refused(each) for each in refused]
    found = [
        *_loop(len(clients), load),
        *_memory(by_verdict["proxy"], clients),
        *_dead(clients, brokers),
        *(each for each in failed if each.level == "bad"),
        # A client that has gone no longer waits for a slow broker; only a broker that does not answer keeps it away.
        *_slow([each for each in by_verdict["broker"] if each["connections"]], brokers),
        *_alone(by_verdict["broker_quota"], "a broker quota throttles {}"),
        *_limits(by_verdict["limit"], limits),
        *_alone(by_verdict["slow_reader"], "responses are waiting for {} to read them"),
    ]
    found.sort(key=lambda each: not each.waiting)
    of_clients = [each for each in failed if each.level != "bad"]
    if not found and (clients or not of_clients):
        found = [_nothing(clients, brokers, load)]
    return [*found, *of_clients][:MOST_ANSWERS]


def awaited(client: Row, brokers: Sequence[Row]) -> list[str]:
    """The addresses of the brokers that a client waits for: those that do not answer, or the slowest one. A client
    without a connection may wait for any broker.
    """
    if client["verdict"] != "broker" and not is_silent(client):
        return []
    mine = [each for each in brokers if each["address"] in client["brokers"] or not client["brokers"]]
    dead = [each["address"] for each in mine if answers_none(each)]
    return dead or [each["address"] for each in sorted(mine, key=_time)[-1:]]


def _loop(count: int, load: Load) -> Iterator[Cause]:
    late, busy = load.late_seconds, f"{min(load.busy_ratio, 1):.0%} of the time"
    if count and (late or load.busy_ratio >= _BUSY):
        text = f"this proxy gets too little CPU time: its event loop is {seconds_of(late)} late, and busy only {busy}"
        if load.busy_ratio >= _STARVED:
            text = (
                f"this proxy is the bottleneck: its event loop is busy {busy}. One process uses one core: run several"
            )
        yield Cause("bad", YES, f"{text}; {_wait(count)}", count)


def _memory(waiting: Sequence[Row], clients: Sequence[Row]) -> Iterator[Cause]:
    if waiting:
        holder = max(clients, key=lambda each: each["buffered_bytes"])
        most = f"{_names([holder])} holds the most, {bytes_of(holder['buffered_bytes'])}"
        login, most = ("", f"; {most}") if holder["buffered_bytes"] else (", or has to log in", "")
        text = f"this proxy has no memory left (--max-buffered-bytes){login}; {_wait(len(waiting))}{most}"
        yield Cause("bad", YES, text, len(waiting))


def _dead(clients: Sequence[Row], brokers: Sequence[Row]) -> Iterator[Cause]:
    """One line for each kind of failure."""
    waits = [awaited(each, brokers) for each in clients]
    dead = [("" if is_silent(each) else each["failing"], each) for each in brokers if answers_none(each)]
    found = []
    for reason, those in _grouped(dead):
        addresses = [each["address"] for each in those]
        waiting = sum(not set(addresses).isdisjoint(each) for each in waits)
        hint = f": {those[0]['hint']}" if those[0]["hint"] else ""
        longest = max(each["oldest_request_seconds"] for each in those)
        have = "has" if len(those) == 1 else "have"
        what = f"cannot be used ({reason}){hint}" if reason else f"{have} not answered for {longest:.0f} s"
        text = f"broker{'s' * (len(those) > 1)} {_listed(addresses)} {what}; {_wait(waiting)}"
        found.append(Cause("bad", YES if reason.startswith(_OURS) else NO, text, waiting))
    yield from sorted(found, key=lambda each: -each.waiting)


def _slow(clients: Sequence[Row], brokers: Sequence[Row]) -> Iterator[Cause]:
    times = {each["address"]: _time(each) for each in brokers if not answers_none(each)}
    waits = [(next(iter(awaited(each, brokers)), ""), each) for each in clients]
    for address, those in _grouped([each for each in waits if each[0] in times]):
        text = f"broker {address} takes {seconds_of(times[address])} to answer; {_wait(len(those))}"
        yield Cause("bad", NO, text, len(those))


def _time(broker: Row) -> float:
    seconds: float = max(broker[kind]["p50_seconds"] or 0 for kind in ("produce", "others"))
    return seconds


def _limits(held: Sequence[Row], limits: Iterable[Row]) -> Iterator[Cause]:
    by_key = {(each["limit"], each["entity"]): each for each in limits}
    waits = [(next(((wait["limit"], wait["entity"]) for wait in each["waits"]), ("", "")), each) for each in held]
    for (name, entity), those in _grouped(waits):
        limit, to, source = by_key.get((name, entity)), "", ""
        if limit is not None:
            to = f" to {amount_of(name, limit['limit_value'])}/s"
            if "fleet" in limit:
                to += f" here, a share of {amount_of(name, limit['fleet_value'])}/s for the fleet {limit['fleet']},"
            source = f" ({one_line(limit['source'])})" if limit["source"] else ""
        by = f"{name} of {one_line(entity)}{source}" if name else "a limit"
        yield Cause(
            "held", CONFIGURED, f"{_names(those)} {'is' if len(those) == 1 else 'are'} held{to} by {by}", len(those)
        )


def _alone(clients: Sequence[Row], text: str) -> Iterator[Cause]:
    """Causes that concern each client on its own."""
    if clients:
        yield Cause("bad", NO, text.format(_names(clients)), len(clients))


def _refused(finding: Finding) -> Cause:
    """The cause for connections that wait for a broker or that failed, at a limit or because of what the client
    sent.
    """
    word = CONFIGURED if finding.verdict in {"limit", "proxy"} else NO
    return Cause("held" if finding.verdict == "client" else "bad", word, finding.sentences[0], 1)


def _nothing(clients: Sequence[Row], brokers: Sequence[Row], load: Load) -> Cause:
    if not clients:
        return Cause("ok", NO, "no client is connected, and no client has sent a request in the last minute")
    slowest = max(map(_time, brokers), default=0)
    answer = f", and brokers answer within {seconds_of(slowest)}" if slowest else ""
    off = "" if load.enforces else ". Limits are not enforced now: this is a dry run, or they are switched off"
    return Cause("ok", NO, f"nothing waits; {counted(len(clients), 'client')}{answer}{off}")


# ---- pieces of sentences


def _grouped(pairs: Iterable[tuple[K, Row]]) -> list[tuple[K, list[Row]]]:
    """The rows by key, the largest group first."""
    groups = defaultdict[K, list[Row]](list)
    for key, row in pairs:
        groups[key].append(row)
    return sorted(groups.items(), key=lambda each: -len(each[1]))


def _wait(count: int) -> str:
    return f"{counted(count, 'client') if count else 'no client'} {'waits' if count < 2 else 'wait'}"


def _names(clients: Sequence[Row]) -> str:
    if len(clients) > _MOST_NAMES:
        return counted(len(clients), "client")
    return _listed([name if len(name) <= _MOST_CHARS else f"{name[:_MOST_CHARS]}…" for name in map(name_of, clients)])


def _listed(names: Sequence[str]) -> str:
    *before, last = names if len(names) <= _MOST_NAMES else [names[0], f"{len(names) - 1} more"]
    return f"{', '.join(before)} and {last}" if before else last
