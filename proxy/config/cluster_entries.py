"""The cluster's own client quotas (kafka-configs) as entries, one for each entity.

The brokers enforce them, too. A broker mutes a client whose average exceeds its quota, and its traffic is no longer
smooth. So byte rates are enforced here a little below the quota, with a small burst.

A broker divides by at least `quota.window.num - 1` windows, T seconds. In any time above T a token bucket lets
through burst + rate * time + one request. So the quota is never exceeded if the part of the rate that is kept back
earns in T what the burst and one request take. `SPARE_SECONDS` of the quota are kept back, and the burst is a fifth of
that: the rest is for a request, and for requests that reach the broker late.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from fractions import Fraction
from typing import Final, NamedTuple

from protocol.client_quotas import ClientQuota
from proxy.config.config import QuotaOptions
from proxy.config.host_names import HostNames
from quotas import limit_kinds as kinds
from quotas.algorithms.algorithm import TOKEN_BUCKET
from quotas.entity import DEFAULT, AnyEntity, Entity, EntityKind, Name, Named
from quotas.entry import QuotaEntry
from quotas.limit_options import LimitOptions
from quotas.parsing.names import CLIENT_ID, IP, USER, entity_name
from quotas.problems import InvalidValue
from quotas.rates import LONG_MAX, kafka_rate, of_double

_OF_CLIENTS: Final = (kinds.PRODUCER_BYTE_RATE, kinds.CONSUMER_BYTE_RATE, kinds.CONTROLLER_MUTATION_RATE)
_OF_ADDRESSES: Final = (kinds.CONNECTION_CREATION_RATE,)
_SCALED: Final = (kinds.PRODUCER_BYTE_RATE, kinds.CONSUMER_BYTE_RATE)

SPARE_SECONDS: Final = Fraction(1, 2)
BURST_SECONDS: Final = Fraction(1, 10)
LEAST_SHARE: Final = Fraction(4, 5)
"""For windows so short that more would have to be kept back: then brokers throttle now and then."""

#: The active controller enforces it alone (KIP-599): one figure for the whole cluster.
_OF_CLUSTER: Final = kinds.CONTROLLER_MUTATION_RATE


class ClusterEntries(NamedTuple):
    """`left_out`: what is not enforced here, and of how many entities: `request_percentage`, most of all. `pending`:
    host names whose addresses are not known yet.
    """

    entries: tuple[QuotaEntry, ...]
    left_out: Mapping[str, int]
    pending: frozenset[str] = frozenset()


def share_below_brokers(options: QuotaOptions) -> Fraction:
    """The part of a byte rate that is enforced here, by the windows of the brokers."""
    least_seconds = (options.window_num - 1) * Fraction(options.window_size_seconds)
    return max(LEAST_SHARE, 1 - SPARE_SECONDS / least_seconds) if least_seconds else LEAST_SHARE


def cluster_entries(quotas: Iterable[ClientQuota], brokers: int, options: QuotaOptions) -> ClusterEntries:
    """What can be enforced of them. `brokers`: the factor for limits that each broker enforces on its own.

    A name of an `ip` that is a host name is resolved as the broker does: that blocks, for a second.
    """
    share = share_below_brokers(options)
    burst_seconds = BURST_SECONDS if options.algorithm == TOKEN_BUCKET else None
    entries, left_out = list[QuotaEntry](), Counter[str]()
    names = HostNames()
    for quota in quotas:
        try:
            entity = _entity_of(quota.entity, names)
        except InvalidValue as refusal:
            left_out[refusal.message] += 1
            continue
        limits = {}
        for name, value in quota.values.items():
            if name not in (_OF_ADDRESSES if isinstance(entity, Named) else _OF_CLIENTS):
                left_out[name] += 1
                continue
            try:
                # A larger double is as good as unlimited: left out, the client would have the quota of <default>.
                rate = kafka_rate(name, of_double(min(value, float(LONG_MAX))), kinds.LIMIT_KINDS[name].kafka_type)
            except ValueError as refusal:  # also of infinities and NaN
                left_out[f"{name} ({str(refusal).splitlines()[0]})"] += 1
            else:
                limits[name] = rate if name == _OF_CLUSTER else min(rate * brokers, LONG_MAX)
        if limits:
            scaled = {name: max(1, int(limits[name] * share)) for name in _SCALED if name in limits}
            burst = None if isinstance(entity, Named) else burst_seconds
            entries.append(QuotaEntry(entity, limits | scaled, LimitOptions(burst_seconds=burst)))
    return ClusterEntries(tuple(entries), left_out, frozenset(names.pending))


def _entity_of(of_cluster: Mapping[str, str | None], hosts: HostNames) -> AnyEntity:
    """Raises InvalidValue."""
    found: dict[str, Name] = {
        key: DEFAULT if name is None else entity_name(key, name, real_name=True, resolve=hosts.addresses_of)
        for key, name in of_cluster.items()
        if key in {USER, CLIENT_ID, IP}
    }
    if found.keys() != of_cluster.keys() or not found or (IP in found and len(found) > 1):
        raise InvalidValue(f"entities of {' and '.join(sorted(of_cluster)) or 'no type'}")
    return Named(EntityKind.IP, found[IP]) if IP in found else Entity(found.get(USER), found.get(CLIENT_ID))
