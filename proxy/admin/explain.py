"""Explains the verdict on each client in sentences, for the page and the command `explain`. Pure functions: they take
rows of the pages and return findings.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from proxy.admin.limit_advice import about_cost, about_generated, about_limit, limit_name, listed, used_part
from proxy.admin.plain_text import bytes_of, counted, seconds_of
from proxy.admin.verdict import LEAST_HELD, Case, Known, Row, answers_none, is_silent
from proxy.observability.logs import one_line

_MOST_NAMES: Final = 8

WORDS: Final = {
    "limit": "at a limit of this proxy",
    "broker": "waiting for brokers",
    "data": "waiting for new records",
    "broker_quota": "throttled by a broker quota",
    "proxy": "waiting for this proxy",
    "slow_reader": "not reading responses",
    "client": "idle",
}

HEADLINES: Final = {
    "limit": "a limit of this proxy is holding it back",
    "broker": "the brokers are slow",
    "data": "it is waiting for new records",
    "broker_quota": "a broker quota is throttling it",
    "proxy": "this proxy is holding it back",
    "slow_reader": "it does not read its responses fast enough",
    "client": "neither this proxy nor a broker is holding it back",
    "none": "nothing is wrong",
}


class Finding(NamedTuple):
    """What is known about one client; the fields are the keys of the JSON. `verdict` is a state, or `none` if nothing
    is wrong. `headline` is the verdict in words, with more detail.

    A finding without states whose verdict is not `none` describes a connection that failed before its client was known.
    """

    client_id: str
    user: str
    verdict: str
    states: Mapping[str, float]
    limits: Sequence[Row]
    brokers: Sequence[Row]
    sentences: Sequence[str]
    headline: str = ""

    @property
    def is_refused(self) -> bool:
        return not self.states and self.verdict != "none"

    @property
    def lines(self) -> Iterator[str]:
        """The lines shown to people: the verdict first, then the reasons."""
        if self.is_refused:
            yield self.sentences[0]
        else:
            yield f"{name_of(self._asdict())}: {self.headline}"
        yield from (f"  {sentence}" for sentence in self.sentences[self.is_refused :])


def explain(client: Row, known: Known) -> Finding:
    case = _Explained(client, known)
    states = {name: round(part, 4) for name, part in sorted(case.states.items(), key=lambda each: -each[1])}
    names = client["client_id"], client["user"]
    return Finding(*names, case.verdict, states, case.limits, case.brokers, list(case.sentences()), case.headline)


class _Explained(Case):
    """Puts a case into words."""

    @property
    def headline(self) -> str:
        verdict = self.verdict
        if verdict == "broker" and any(map(answers_none, self.brokers)):
            return "a broker cannot be used, or does not answer"
        if verdict == "broker_quota" and self.share("limit") >= LEAST_HELD:
            return "a broker quota and a limit of this proxy are holding it back"
        if verdict == "client":
            return next(self._reasons_of_its_own(), HEADLINES[verdict])
        return HEADLINES[verdict]

    def _reasons_of_its_own(self) -> Iterator[str]:
        if self.rebalancing is not None:
            yield "its consumer group keeps rebalancing"
        if self.has_small_requests or self.has_too_many_requests:
            yield "it sends too many small requests"
        if self.is_behind:
            yield "the application reads slowly"
        if self.throttled_seconds:
            yield "it is mostly idle, and a broker quota throttles it at times"

    def sentences(self) -> Iterator[str]:
        client = self.client
        name = name_of(client)
        if not self.states:
            yield f"{name} sent no request in the last minute; it has {counted(client['connections'], 'connection')}."
            yield from self._unmatched()
            return
        parts = sorted(self.states.items(), key=lambda each: -each[1])
        spent = _joined([f"{part:.0%} {WORDS[state]}" for state, part in parts if part >= 0.005])
        yield f"In the last {client['window_seconds']:.0f} s, the connections of {name} spent {spent}."
        for state in self.over:
            yield f"That has ended: in the last {client['recent_seconds']:.0f} s they were hardly {WORDS[state]}."
        yield f"It has {counted(client['connections'], 'connection')}: {_rates(client)}."
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
        yield from self._besides()
        for limit in self.limits:
            yield from about_cost(limit, client)
        yield from self._nearest()
        yield from self._reported()
        yield from self._unmatched()

    def _limit(self) -> Iterator[str]:
        waits = [each for each in self.waits if each["entity"] != "proxy"]
        for wait in waits[:2]:
            found = [each for each in self.limits if (each["limit"], each["entity"]) == (wait["limit"], wait["entity"])]
            lasting = wait["lasting_seconds"]
            began = f"about {lasting / 60:.0f} min ago" if lasting >= 120 else f"within the last {lasting + 10} s"
            waited = f"It waited {wait['seconds']:.1f} s for {limit_name(wait)}, summed over its connections"
            yield f"{waited}; this began {began}."
            for each in found:
                yield from about_limit(each, [name_of(client) for client in each["clients"]], self.share("limit"))
        yield from about_generated(self.client["client_id"], self.limits, self.client.get("programs", 0))

    def _broker(self) -> Iterator[str]:
        slow = self.slow
        if slow is None:
            return
        if is_silent(slow):
            yield (
                f"Broker {slow['address']} has not answered a request for {slow['oldest_request_seconds']:.0f} s"
                f"{_failing(slow)}: it is frozen or overloaded, or the network is losing its packets."
            )
        yield from self._failing()
        answering = [each for each in [*self.brokers, *self.others] if not answers_none(each)]
        yield from map(_about_broker, sorted(answering, key=self.latency)[-3:])
        if answers_none(slow):
            return
        if not self.known.late_seconds:
            yield ("This proxy adds nothing to that: check the broker's request times, disks and replicas (acks=all).")
        else:
            yield (
                f"But this proxy gets too little CPU time: it is {seconds_of(self.known.late_seconds)} late, and"
                " these times include that delay. Check its CPU limit first, then the brokers."
            )

    def _broker_quota(self) -> Iterator[str]:
        yield self._throttled()
        yield (
            "Kafka itself has a quota for this user or client id, and it is lower than the limits of this proxy. Find"
            " it with kafka-configs.sh --describe --entity-type clients (or users), and raise or remove it there."
        )
        if self.share("limit") >= LEAST_HELD:
            yield from self._limit()

    def _throttled(self) -> str:
        recent = self.client.get("broker_throttled_60s", 0)
        total = self.client["broker_throttled_seconds"]
        return (
            f"The throttle times in broker responses add up to {recent:.3g} s in the last minute, and {total:,.1f} s"
            " since the proxy first saw this client. During that time the brokers read nothing from its connections."
        )

    def _data(self) -> Iterator[str]:
        if self.is_behind:
            yield from self._behind()
            return
        yield "Its fetches are waiting at the brokers because there are no new records: it has read everything."
        yield "If it lags nevertheless (kafka-consumer-groups.sh --describe), check the brokers and the network."

    def _proxy(self) -> Iterator[str]:
        if not self.waited("max_buffered_bytes"):
            yield (
                "Its requests wait while the proxy logs in to a broker with the credentials of --command-config: check"
                " the log, and the broker."
            )
            return
        yield (
            "The proxy has stopped reading from it because --max-buffered-bytes is used up: see"
            " kafka_quota_proxy_buffered_bytes and kafka_quota_proxy_paused_connections. Find the clients that do not"
            " read their responses (slow_reader), or raise --max-buffered-bytes."
        )
        holder = self.known.holder
        if holder is not None and holder["buffered_bytes"]:
            yield f"{name_of(holder)} holds most of the memory: {bytes_of(holder['buffered_bytes'])}."

    def _slow_reader(self) -> Iterator[str]:
        yield (
            "It does not read its responses as fast as brokers send them: the application, its CPU or its network is"
            " too slow."
        )
        yield "Let it fetch less at a time (fetch.max.bytes, max.poll.records), or run more consumers."
        yield from self._behind()

    def _client(self) -> Iterator[str]:
        yield from self._small()
        yield from self._rebalances()
        yield from self._behind()
        if self.headline == HEADLINES["client"] or self.throttled_seconds:
            verb = "sends" if self.client["produces_per_second"] else "asks for"
            yield f"Most of the time it {verb} nothing."
        if self.client["fetch_bytes_per_second"] and self.client.get("lag_records") is None:
            yield "The proxy does not know how far behind it is; kafka-consumer-groups.sh --describe shows that."
        yield from self._failing()

    def _nothing(self) -> Iterator[str]:
        yield from self._small()
        yield "Nothing is holding it back: its requests are on their way to the brokers, which answer as usual."
        yield from map(_about_broker, self.brokers[:2])
        yield from self._failing()

    def _failing(self) -> Iterator[str]:
        yield from _failures([*self.brokers, *self.others])

    def _besides(self) -> Iterator[str]:
        """What holds it back as well."""
        if self.throttled_seconds and self.verdict != "broker_quota":
            yield self._throttled()
        if self.verdict != "client":
            yield from self._rebalances()

    def _nearest(self) -> Iterator[str]:
        timed = [each for each in self.limits if each["used_ratio_60s"] is not None]
        if not timed:
            return
        nearest = max(timed, key=lambda each: each["used_ratio_60s"])
        ratio = nearest["used_ratio_60s"]
        told = f"the nearest one is {limit_name(nearest)}, and {used_part(ratio)} is used"
        if not self.known.enforces and ratio >= 1:
            yield (
                f"{limit_name(nearest)} would hold it back, since {used_part(ratio)} is used. It does not now, because"
                " this is a dry run or limits are switched off."
            )
        elif not self.known.enforces:
            yield f"No limit is enforced now, because this is a dry run or limits are switched off; {told}."
        elif self.share("limit") < LEAST_HELD:
            yield f"No limit is holding it back: {told}."

    def _small(self) -> Iterator[str]:
        size, count = bytes_of(self.client["bytes_per_request"]), self.client["requests_per_second"]
        if self.has_too_many_requests:
            waited = self.waited("max_pending_requests")
            yield (
                "It has more requests in flight than --max-pending-requests lets through: the others waited"
                f" {waited:.1f} s in the last minute, summed over its connections. A higher value would only make the"
                " queue longer, because brokers answer the requests of a connection one at a time."
            )
        if self.has_small_requests or self.has_too_many_requests:
            yield (
                f"It sends many small requests: {size} each, {count:,.4g} per second. Send fewer and larger ones: set"
                " linger.ms to 50 and batch.size to 262144 (in Spark, kafka.linger.ms and kafka.batch.size), or write"
                " to fewer partitions."
            )

    def _rebalances(self) -> Iterator[str]:
        group = self.rebalancing
        if group is None:
            return
        yield f"Its group {one_line(group['group'])} rebalanced {group['rebalances_60s']} times in the last minute."
        joined = [f"{one_line(who)} ({count} times)" for who, count in group["joined_60s"].items()]
        if joined:
            yield f"New members joined: {listed(joined)}. Find out why these restart or time out."
        else:
            yield (
                "No new member joined: members that poll too rarely (max.poll.interval.ms), or whose heartbeats stop,"
                " have to join again."
            )

    def _behind(self) -> Iterator[str]:
        lag = self.client.get("lag_records")
        if lag and self.client["fetch_bytes_per_second"]:
            yield (
                f"It was {lag:,} records behind when it last fetched. Records are waiting for it, but it reads only"
                f" {bytes_of(self.client['fetch_bytes_per_second'])}/s."
            )

    def _reported(self) -> Iterator[str]:
        """What the client reports about itself (KIP-714)."""
        outlook, reported = self.client["outlook"], self.client["reported"]
        if outlook is not None:
            yield (
                f"It reports {bytes_of(outlook['buffered_bytes'])} of unsent records in its buffer of"
                f" {bytes_of(outlook['buffer_bytes'])}. The oldest record expires in about"
                f" {outlook['expires_in_seconds']} s (delivery.timeout.ms)."
            )
        if reported.get("record-error-total"):
            yield f"It reports {reported['record-error-total']:.0f} records that it could not deliver."
        if reported.get("records-lag-max"):
            yield f"It reports that it is {reported['records-lag-max']:,.0f} records behind in its slowest partition."

    def _unmatched(self) -> Iterator[str]:
        if self.client["connections"] and not self.client["limits"] and self.known.unmatched:
            yield (
                f"No quota entry applies to it. These entries match no client: {listed(self.known.unmatched)};"
                f" names seen so far: {listed(self.known.names)}."
            )


def refused(fields: Row) -> Finding:
    """The finding about a connection that failed, from the fields of its log line."""
    verdict = "limit" if "limit_value" in fields else "proxy" if "max_connections" in fields else "client"
    why = fields.get("detail") or fields.get("error") or fields.get("entity")
    client_id, user = (str(fields.get(each) or "") for each in ("client_id", "user"))
    names = [f"{what} {one_line(each)}" for what, each in (("client id", client_id), ("user", user)) if each]
    who = f"a connection from {fields['peer']}" + (f" ({', '.join(names)})" if names else "")
    words = [f"{who} failed", str(fields.get("reason", "login")), *([one_line(str(why))] if why else [])]
    sentences = [": ".join(words), *([f"To fix it: {hint}."] if (hint := fields.get("hint")) else [])]
    return Finding(client_id, user, verdict, {}, [], [], sentences)


def without_broker(count: int, seconds: float) -> Finding:
    """The finding about connections that wait for a broker and whose clients are not known yet."""
    wait = f"{counted(count, 'connection')} {'is' if count == 1 else 'are'} waiting for a broker"
    return Finding("", "", "broker", {}, [], [], [f"{wait}, the oldest for {seconds:.0f} s: no broker answers"])


def text_of(findings: Iterable[Finding], brokers: Iterable[Row] = ()) -> Iterator[str]:
    """The lines of the command, which lists failing brokers even if there are no findings."""
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


def _joined(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]])) if parts else "no time"


def _rates(client: Row) -> str:
    if not client["requests_per_second"]:
        return "nothing produced or fetched"
    produced, fetched = (bytes_of(client[f"{what}_bytes_per_second"]) for what in ("produce", "fetch"))
    requests = f"{client['requests_per_second']:g} requests per second of {bytes_of(client['bytes_per_request'])} each"
    return f"{produced}/s produced and {fetched}/s fetched, in {requests}"


def _about_broker(broker: Row) -> str:
    kinds = (("Produce", broker["produce"]), ("other", broker["others"]))
    times = [
        f"{kind} requests in {seconds_of(each['mean_seconds'])} (99 %: {seconds_of(each['p99_seconds'])})"
        for kind, each in kinds
        if each["count"]
    ]
    if not times:
        return (
            f"How fast broker {broker['address']} answers is unknown, because no request was timed in the last minute."
        )
    return f"Broker {broker['address']} answers {' and '.join(times)}."


def _failures(brokers: Iterable[Row]) -> Iterator[str]:
    """One sentence for each broker that cannot be used."""
    for each in [each for each in brokers if each["failing"] and not is_silent(each)][:_MOST_NAMES]:
        hint = f": {each['hint']}" if each["hint"] else ""
        yield f"Broker {each['address']} cannot be used ({each['failing']}){hint}."


def _failing(broker: Row) -> str:
    return f" ({broker['failing']})" if broker["failing"] else ""


def name_of(client: Row) -> str:
    name = one_line(client["client_id"]) or "a client without a client id"
    return name if client["user"] in {"", "ANONYMOUS"} else f"{name} (user {one_line(client['user'])})"
