"""The verdict on each client in sentences: the page and the command `explain`. Pure: rows of the pages go in, findings
come out.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, NamedTuple

from proxy.admin.plain_text import amount_of, bytes_of, seconds_of
from proxy.admin.verdict import LEAST_HELD, Case, Known, Row, answers_none, is_silent
from proxy.observability.logs import one_line

_MOST_NAMES: Final = 8
#: With more of its time at a limit nothing can be said of what a client would send without it.
_MOST_HELD: Final = 0.9

WORDS: Final = {
    "limit": "at a limit of this proxy",
    "broker": "waiting for brokers",
    "data": "waiting for new records",
    "broker_quota": "keeping a quota of the brokers",
    "proxy": "waiting for memory of this proxy",
    "slow_reader": "not reading responses",
    "client": "by itself",
}

HEADLINES: Final = {
    "limit": "a limit of this proxy holds it",
    "broker": "the brokers are slow",
    "data": "it waits for new records",
    "broker_quota": "a quota of the brokers holds it",
    "proxy": "this proxy holds it, for memory or a log-in",
    "slow_reader": "it does not read its responses",
    "client": "neither this proxy nor a broker holds it",
    "none": "nothing is wrong",
}


class Finding(NamedTuple):
    """What is known of one client: the keys of the JSON. `verdict`: a state, or `none`: nothing is wrong.

    Without states, and with another verdict than `none`, it is of a connection that failed before it was a client's.
    """

    client_id: str
    user: str
    verdict: str
    states: Mapping[str, float]
    limits: Sequence[Row]
    brokers: Sequence[Row]
    sentences: Sequence[str]

    @property
    def is_refused(self) -> bool:
        return not self.states and self.verdict != "none"

    @property
    def lines(self) -> Iterator[str]:
        """For people: what it is, then why."""
        if self.is_refused:
            yield self.sentences[0]
        else:
            dead = [each for each in self.brokers if answers_none(each)] if self.verdict == "broker" else []
            headline = HEADLINES[self.verdict] if not dead else "a broker cannot be used, or does not answer"
            yield f"{name_of(self._asdict())}: {headline}"
        yield from (f"  {sentence}" for sentence in self.sentences[self.is_refused :])


def explain(client: Row, known: Known) -> Finding:
    case = _Explained(client, known)
    states = {name: round(part, 4) for name, part in sorted(case.states.items(), key=lambda each: -each[1])}
    names = client["client_id"], client["user"]
    return Finding(*names, case.verdict, states, case.limits, case.brokers, list(case.sentences()))


class _Explained(Case):
    """In words."""

    def sentences(self) -> Iterator[str]:
        client = self.client
        name = name_of(client)
        if not self.states:
            yield f"{name} sent no request in the last minute; it has {_counted(client['connections'], 'connection')}."
            yield from self._unmatched()
            return
        parts = sorted(self.states.items(), key=lambda each: -each[1])
        spent = ", ".join(f"{part:.0%} {WORDS[state]}" for state, part in parts if part >= 0.005)
        yield f"Of the last {client['window_seconds']:.0f} s, the connections of {name} spent {spent}."
        for state in self.over:
            yield f"That is over: in the last {client['recent_seconds']:.0f} s it was hardly {WORDS[state]}."
        yield f"It has {_counted(client['connections'], 'connection')}: {_rates(client)}."
        yield from {
            "limit": self._limit,
            "broker": self._broker,
            "broker_quota": self._broker_quota,
            "data": self._data,
            "proxy": self._proxy,
            "slow_reader": self._slow_reader,
            "client": self._client,
            "none": self._nothing,
        }[self.verdict]()
        yield from self._nearest()
        yield from self._reported()
        yield from self._unmatched()

    def _limit(self) -> Iterator[str]:
        for wait in self.waits[:2]:
            found = [each for each in self.limits if (each["limit"], each["entity"]) == (wait["limit"], wait["entity"])]
            lasting = wait["lasting_seconds"]
            began = f"about {lasting / 60:.0f} min ago" if lasting >= 120 else f"{lasting + 10} s ago or less"
            waited = f"It waited {wait['seconds']:.1f} s for {_limit_name(wait)}, over all its connections"
            yield f"{waited}; this began {began}."
            if found:
                yield from _about_limit(found[0], self.share("limit"))

    def _broker(self) -> Iterator[str]:
        slow = self.slow
        if slow is None:
            return
        if is_silent(slow):
            yield (
                f"Broker {slow['address']} has not answered a request for {slow['oldest_request_seconds']:.0f} s"
                f"{_failing(slow)}: it is frozen or overloaded, or the network loses its packets."
            )
        yield from self._failing()
        answering = [each for each in [*self.brokers, *self.others] if not answers_none(each)]
        yield from map(_about_broker, sorted(answering, key=self.latency)[-3:])
        if answers_none(slow):
            return
        if not self.known.late_seconds:
            yield "This proxy adds nothing to that: look at the broker's request times, disks and replicas (acks=all)."
        else:
            yield (
                f"But this proxy gets too little CPU time: it is late by {seconds_of(self.known.late_seconds)}, which"
                " these times contain. Look at its CPU limit first, then at the brokers."
            )

    def _broker_quota(self) -> Iterator[str]:
        yield (
            f"The brokers told it to wait, {self.client['broker_throttled_seconds']:g} s in all so far: Kafka itself"
            " has a quota for this user or client id, below the limits of this proxy."
        )
        yield "See it with kafka-configs.sh --describe --entity-type clients (and users); raise or remove it there."

    def _data(self) -> Iterator[str]:
        yield "Its fetches are open, and new records arrive no faster: it has read all there is."
        yield "If it lags all the same (kafka-consumer-groups.sh --describe), look at the brokers and the network."

    def _proxy(self) -> Iterator[str]:
        yield (
            "It is not read, since --max-buffered-bytes is used up or the proxy logs in: see"
            " kafka_quota_proxy_buffered_bytes and kafka_quota_proxy_paused_connections. Look for clients that read"
            " nothing (slow_reader), or raise --max-buffered-bytes."
        )
        holder = self.known.holder
        if holder is not None and holder["buffered_bytes"]:
            yield f"Most of the memory is held by {name_of(holder)}: {bytes_of(holder['buffered_bytes'])}."

    def _slow_reader(self) -> Iterator[str]:
        yield "It does not read its responses as fast as brokers send them: the application, its CPU or its network."
        yield "Fetch less at a time (fetch.max.bytes, max.poll.records) or give it more consumers."

    def _client(self) -> Iterator[str]:
        yield from self._small()
        if not self.has_small_requests:
            verb = "sends" if self.client["produces_per_second"] else "asks for"
            yield f"It {verb} nothing most of the time."
        yield from self._failing()

    def _nothing(self) -> Iterator[str]:
        yield from self._small()
        yield "Nothing holds it: its requests are on their way to brokers that answer as fast as they do for others."
        yield from map(_about_broker, self.brokers[:2])
        yield from self._failing()

    def _failing(self) -> Iterator[str]:
        yield from _failures([*self.brokers, *self.others])

    def _nearest(self) -> Iterator[str]:
        timed = [each for each in self.limits if each["used_ratio_60s"] is not None]
        if not timed:
            return
        nearest = max(timed, key=lambda each: each["used_ratio_60s"])
        told = f"the nearest one is {_limit_name(nearest)}, of which {nearest['used_ratio_60s']:.0%} is used"
        if not self.known.enforces and nearest["used_ratio_60s"] >= 1:
            used = f"{nearest['used_ratio_60s']:.0%} of it is used"
            yield f"{_limit_name(nearest)} would hold it: {used}. Now it does not (a dry run, or switched off)."
        elif not self.known.enforces:
            yield f"No limit is enforced now (a dry run, or switched off): {told}."
        elif self.share("limit") < LEAST_HELD:
            yield f"No limit holds it: {told}."

    def _small(self) -> Iterator[str]:
        if self.has_small_requests:
            yield (
                f"Its requests are small, {bytes_of(self.client['bytes_per_request'])} each: one request waits for the"
                " other. Set linger.ms to 50 and batch.size to 262144 (in Spark kafka.linger.ms, kafka.batch.size), or"
                " write to fewer partitions."
            )

    def _reported(self) -> Iterator[str]:
        """What the client says of itself (KIP-714)."""
        outlook, reported = self.client["outlook"], self.client["reported"]
        if outlook is not None:
            yield (
                f"It reports that {bytes_of(outlook['buffered_bytes'])} of {bytes_of(outlook['buffer_bytes'])} of its"
                f" buffer wait: its oldest record expires in about {outlook['expires_in_seconds']} s"
                " (delivery.timeout.ms)."
            )
        if reported.get("record-error-total"):
            yield f"It reports {reported['record-error-total']:.0f} records that it could not deliver."
        if reported.get("records-lag-max"):
            yield f"It reports that it is {reported['records-lag-max']:,.0f} records behind in its slowest partition."

    def _unmatched(self) -> Iterator[str]:
        if self.client["connections"] and not self.client["limits"] and self.known.unmatched:
            yield (
                f"No entry of the quotas applies to it. Entries that nobody has matched: {_list(self.known.unmatched)};"
                f" names seen so far: {_list(self.known.names)}."
            )


def refused(fields: Row) -> Finding:
    """Of a connection that failed. `fields`: of its log line."""
    verdict = "limit" if "limit_value" in fields else "proxy" if "max_connections" in fields else "client"
    why = fields.get("detail") or fields.get("error") or fields.get("entity")
    client_id, user = (str(fields.get(each) or "") for each in ("client_id", "user"))
    names = [f"{what} {one_line(each)}" for what, each in (("client id", client_id), ("user", user)) if each]
    who = f"a connection from {fields['peer']}" + (f" ({', '.join(names)})" if names else "")
    words = [f"{who} failed", str(fields.get("reason", "login")), *([one_line(str(why))] if why else [])]
    sentences = [": ".join(words), *([f"What helps: {hint}."] if (hint := fields.get("hint")) else [])]
    return Finding(client_id, user, verdict, {}, [], [], sentences)


def without_broker(count: int, seconds: float) -> Finding:
    """Of connections that wait for a broker before their clients have said who they are."""
    words = f"{_counted(count, 'connection')} waiting for a broker, the oldest for {seconds:.0f} s: none answers"
    return Finding("", "", "broker", {}, [], [], [words])


def text_of(findings: Iterable[Finding], brokers: Iterable[Row] = ()) -> Iterator[str]:
    """The lines of the command. Without findings there may be brokers that fail."""
    found = list(findings)
    for number, each in enumerate(found):
        if number:
            yield ""
        yield from each.lines
    if all(each.is_refused for each in found):
        if found:
            yield ""
        yield "no client has sent a request in the last minute; the log names those that cannot connect or log in"
        yield from _failures(brokers)


# ---- pieces of sentences


def _rates(client: Row) -> str:
    if not client["requests_per_second"]:
        return "nothing produced or fetched"
    rates = f"{bytes_of(client['produce_bytes_per_second'])}/s produced, {bytes_of(client['fetch_bytes_per_second'])}/s"
    size = bytes_of(client["bytes_per_request"])
    return f"{rates} fetched, in {client['requests_per_second']:g} requests a second of {size} each"


def _about_limit(limit: Row, held: float) -> Iterator[str]:
    """`held`: the part of its time that the client waits for limits."""
    value, rate, used = limit["limit_value"], limit["rate_60s"], limit["used_ratio_60s"]
    amount = partial(amount_of, limit["limit"])
    told = f"{_limit_name(limit)} allows {amount(value)}/s"
    if "fleet" in limit:
        members = f"{limit['fleet_members']} members"
        told = f"{_limit_name(limit)} allows {amount(limit['fleet_value'])}/s for the fleet"
        told += f" {one_line(limit['fleet'])} of {members}; this proxy may use {amount(value)}/s of it now"
    if rate is not None and used is not None:
        told += f", and {amount(rate)}/s ({used:.0%}) are used"
    yield f"{told}; {_counted(limit['queued_connections'], 'connection')} waiting for it now."
    count = limit["client_count"]
    if count > 1:
        yield f"{count} clients share it: {_list([name_of(each) for each in limit['clients']])}."
    if "threshold" in limit["limit"]:
        yield "A threshold stops all writes to the topic until the mean is below it; bytes_in_rate limits evenly."
    instead = "let clients keep their connections" if "connection" in limit["limit"] else "let fewer clients share it"
    yield f"To have more, raise {_limit_and_source(limit)}, or {instead}."
    if rate is not None and count == 1 and "byte" in limit["limit"]:
        yield from _ways_out(limit, held)


def _ways_out(limit: Row, held: float) -> Iterator[str]:
    """For the only client of a limit on bytes."""
    value, rate = limit["limit_value"], limit["rate_60s"]
    if held < _MOST_HELD and rate / (1 - held) > value:
        free = bytes_of(rate / (1 - held)).replace(" ", "")
        yield f"Outside of its waits it moves about {free}/s: with {limit['limit']}={free} it would hardly wait."
    whole = bytes_of(limit.get("fleet_value", value)).replace(" ", "")
    yield (
        f"To live with it: `kafka-quota-proxy advise --rate {whole}` has the settings with which no record expires"
        " (in Spark also maxOffsetsPerTrigger)."
    )


def _about_broker(broker: Row) -> str:
    kinds = (("Produce", broker["produce"]), ("other", broker["others"]))
    times = [
        f"{kind} requests in {seconds_of(each['mean_seconds'])} (99 %: {seconds_of(each['p99_seconds'])})"
        for kind, each in kinds
        if each["count"]
    ]
    return f"Broker {broker['address']} answers {' and '.join(times) or 'nothing that was timed'}."


def _failures(brokers: Iterable[Row]) -> Iterator[str]:
    """Of the brokers that cannot be used."""
    for each in [each for each in brokers if each["failing"] and not is_silent(each)][:_MOST_NAMES]:
        hint = f": {each['hint']}" if each["hint"] else ""
        yield f"Broker {each['address']} cannot be used ({each['failing']}){hint}."


def _failing(broker: Row) -> str:
    return f" ({broker['failing']})" if broker["failing"] else ""


def name_of(client: Row) -> str:
    name = one_line(client["client_id"]) or "a client without a client id"
    return name if client["user"] in {"", "ANONYMOUS"} else f"{name} (user {one_line(client['user'])})"


def _limit_name(limit: Row) -> str:
    return f"{limit['limit']} of {one_line(limit['entity'])}"


def _limit_and_source(limit: Row) -> str:
    """Of an entry that has gone meanwhile there is no source."""
    return f"{_limit_name(limit)} ({one_line(limit['source'])})" if limit["source"] else _limit_name(limit)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _list(names: Iterable[str]) -> str:
    found = list(names)
    rest = len(found) - _MOST_NAMES
    return ", ".join(found[:_MOST_NAMES]) + (f" and {rest} more" if rest > 0 else "")
