"""The answer to "Is it the proxy?" for all clients at once: one line for each cause, the worst first. Pure: the rows of
the pages go in, sentences come out.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from proxy.admin.explain import Finding, name_of
from proxy.admin.plain_text import amount_of, bytes_of, seconds_of
from proxy.admin.verdict import Row, answers_none, is_silent
from proxy.observability.logs import one_line

#: A loop that is busy for more of its time is what limits the clients, even if it is hardly late.
_BUSY: Final = 0.9
#: A late loop that is busy for less of its time does not get the CPU time that it needs.
_STARVED: Final = 0.7
_MOST_NAMES: Final = 3
_MOST_CHARS: Final = 60
MOST_ANSWERS: Final = 5
#: Failures of a connection to a broker that depend on how this proxy is configured.
_OURS: Final = ("tls_", "plaintext_to_tls", "closed_early", "sasl_required", "login_refused")

NO: Final = "No"
YES: Final = "Yes"
CONFIGURED: Final = "Yes, as configured"


class Load(NamedTuple):
    """Of the proxy itself: how late its event loop is, if that is too much, and for which part of its time it is busy;
    `enforces`: this is no dry run.
    """

    late_seconds: float = 0
    busy_ratio: float = 0
    enforces: bool = True


class Cause(NamedTuple):
    """`level`: `bad`, `held` (a limit does what it was configured for) or `ok`. `waiting`: the clients concerned."""

    level: str
    word: str
    text: str
    waiting: int = 0

    def __str__(self) -> str:
        return f"{self.word}: {self.text}"


def answers(
    clients: Sequence[Row], limits: Iterable[Row], brokers: Sequence[Row], refused: Iterable[Finding], load: Load
) -> list[Cause]:
    """`clients`: with their verdicts. There is always an answer; what nobody waits for comes last."""
    by_verdict = defaultdict[str, list[Row]](list)
    for client in clients:
        by_verdict[client["verdict"]].append(client)
    dead = [each for each in brokers if answers_none(each)]
    failed = [_refused(each) for each in refused]
    found = [
        *_loop(clients, load),
        *_memory(by_verdict["proxy"], clients),
        *_dead(dead, clients),
        *(each for each in failed if each.level == "bad"),
        *_slow([each for each in by_verdict["broker"] if not _waits_for(each, dead)], brokers),
        *_alone(by_verdict["broker_quota"], "is held by a quota of the brokers", "are held by quotas of the brokers"),
        *_limits(by_verdict["limit"], limits),
        *_alone(by_verdict["slow_reader"], "does not read its responses", "do not read their responses"),
    ]
    found.sort(key=lambda each: not each.waiting)
    of_clients = [each for each in failed if each.level != "bad"]
    if not found and (clients or not of_clients):
        found = [_nothing(clients, brokers, load)]
    return [*found, *of_clients][:MOST_ANSWERS]


def _loop(clients: Sequence[Row], load: Load) -> Iterator[Cause]:
    late, busy = load.late_seconds, load.busy_ratio
    if not clients or not (late or busy >= _BUSY):
        return
    delay = f" and {seconds_of(late)} late" if late else ""
    if busy >= _STARVED:
        why = f"the bottleneck: its event loop is busy {_part(busy)} of the time{delay}"
        text = f"this proxy is {why}. One process uses one core, so run several"
    else:
        why = f"its event loop is {seconds_of(late)} late although it is busy only {_part(busy)} of the time"
        text = f"this proxy gets too little CPU time: {why}. Raise its CPU limit or request"
    yield Cause("bad", YES, f"{text}; {_counted(len(clients), 'client')} affected", len(clients))


def _memory(waiting: Sequence[Row], clients: Sequence[Row]) -> Iterator[Cause]:
    if waiting:
        holder = max(clients, key=lambda each: each["buffered_bytes"])
        text = f"{_names(waiting)} {_verb(waiting, 'waits', 'wait')} for memory of this proxy (--max-buffered-bytes)"
        if not holder["buffered_bytes"]:
            text += ", or for its login"
        else:
            text += f"; {_name(holder)} holds the most, {bytes_of(holder['buffered_bytes'])}"
        yield Cause("bad", YES, text, len(waiting))


def _dead(dead: Sequence[Row], clients: Sequence[Row]) -> Iterator[Cause]:
    """One line for each kind of failure, with the brokers that most clients wait for first."""
    kinds = defaultdict[str, list[Row]](list)
    for each in dead:
        kinds["" if is_silent(each) else each["failing"]].append(each)
    found = []
    for reason, those in kinds.items():
        waiting = sum(_waits_for(each, those) for each in clients)
        longest = max(each["oldest_request_seconds"] for each in those)
        have, them = ("has", "it") if len(those) == 1 else ("have", "them")
        hint = f": {those[0]['hint']}" if those[0]["hint"] else ""
        what = f"cannot be used ({reason}){hint}" if reason else f"{have} not answered for {longest:.0f} s"
        names = _broker_names(those)
        wait = f"{_counted(waiting, 'client') if waiting else 'no client'} {'wait' + 's' * (waiting < 2)} for {them}"
        word = YES if reason.startswith(_OURS) else NO
        found.append(Cause("bad", word, f"{names} {what}; {wait}", waiting))
    yield from sorted(found, key=lambda each: -each.waiting)


def _waits_for(client: Row, brokers: Iterable[Row]) -> bool:
    """A client without a connection waits for any broker that fails."""
    held = client["verdict"] == "broker" or is_silent(client)
    addresses = client["brokers"]
    return held and any(each["address"] in addresses or not addresses for each in brokers)


def _slow(waiting: Sequence[Row], brokers: Sequence[Row]) -> Iterator[Cause]:
    by_broker = defaultdict[str, list[Row]](list)
    times = {each["address"]: _time(each) for each in brokers}
    for client in waiting:
        by_broker[next(iter(awaited(client, brokers)), "")].append(client)
    for address, those in sorted(by_broker.items(), key=lambda each: -len(each[1])):
        time = times.get(address)
        what = f"broker {address} takes {seconds_of(time)} to answer" if time else "the brokers are slow"
        yield Cause("bad", NO, f"{what}; {_names(those)} {_verb(those, 'waits', 'wait')}", len(those))


def awaited(client: Row, brokers: Sequence[Row]) -> list[str]:
    """The addresses of the brokers that a client waits for: those that do not answer, or the slowest one."""
    dead = [each for each in brokers if answers_none(each) and _waits_for(client, [each])]
    if dead or client["verdict"] != "broker":
        return [each["address"] for each in dead]
    mine = [each for each in brokers if each["address"] in client["brokers"]] or brokers
    return [max(mine, key=_time)["address"]] if mine else []


def _time(broker: Row) -> float:
    seconds: float = max(broker[kind]["p50_seconds"] or 0 for kind in ("produce", "others"))
    return seconds


def _limits(held: Sequence[Row], limits: Iterable[Row]) -> Iterator[Cause]:
    by_key = {(each["limit"], each["entity"]): each for each in limits}
    by_limit = defaultdict[tuple[str, str], list[Row]](list)
    for client in held:
        keys = [(each["limit"], each["entity"]) for each in client["waits"][:1]] or [("", "")]
        by_limit[keys[0]].append(client)
    for (name, entity), those in sorted(by_limit.items(), key=lambda each: -len(each[1])):
        subject, limit = f"{_names(those)} {_verb(those, 'is', 'are')} held", by_key.get((name, entity))
        by = f"by {name} of {one_line(entity)}" if name else "by a limit"
        if limit is not None:
            value = f"{amount_of(name, limit['limit_value'])}/s"
            if "fleet" in limit:
                whole = f"{amount_of(name, limit['fleet_value'])}/s"
                value += f" here (the share of {whole} for the fleet {one_line(limit['fleet'])})"
            source = f" ({one_line(limit['source'])})" if limit["source"] else ""
            subject, by = f"{subject} to {value}", by + source
        yield Cause("held", CONFIGURED, f"{subject} {by}", len(those))


def _alone(clients: Sequence[Row], one: str, many: str) -> Iterator[Cause]:
    """Causes that concern each client on its own."""
    if clients:
        yield Cause("bad", NO, f"{_names(clients)} {_verb(clients, one, many)}", len(clients))


def _refused(finding: Finding) -> Cause:
    """Connections that wait for a broker, and those that failed: at a limit, or because of what the client sent."""
    if finding.verdict == "broker":
        return Cause("bad", NO, finding.sentences[0], 1)
    if finding.verdict in {"limit", "proxy"}:
        return Cause("bad", CONFIGURED, finding.sentences[0], 1)
    return Cause("held", NO, finding.sentences[0], 1)


def _nothing(clients: Sequence[Row], brokers: Sequence[Row], load: Load) -> Cause:
    if not clients:
        return Cause("ok", NO, "no client is connected, and no client has sent a request in the last minute")
    times = [time for each in brokers if (time := _time(each))]
    answer = f", and brokers answer within {seconds_of(max(times))}" if times else ""
    off = "" if load.enforces else ". Limits are not enforced now: this is a dry run, or they are switched off"
    return Cause("ok", NO, f"nothing waits; {_counted(len(clients), 'client')}{answer}{off}")


# ---- pieces of sentences


def _part(ratio: float) -> str:
    return f"{min(ratio, 1):.0%}"


def _verb(clients: Sequence[Row], one: str, many: str) -> str:
    return one if len(clients) == 1 else many


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'s' * (count != 1)}"


def _name(client: Row) -> str:
    name = name_of(client)
    return name if len(name) <= _MOST_CHARS else f"{name[: _MOST_CHARS - 1]}…"


def _names(clients: Sequence[Row]) -> str:
    return _listed([_name(each) for each in clients]) or _counted(len(clients), "client")


def _broker_names(brokers: Sequence[Row]) -> str:
    names = _listed([each["address"] for each in brokers])
    return f"broker{'s' * (len(brokers) != 1)} {names}" if names else _counted(len(brokers), "broker")


def _listed(names: Sequence[str]) -> str:
    """Nothing, if there are too many."""
    return "" if len(names) > _MOST_NAMES else " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
