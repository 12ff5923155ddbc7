"""What traffic costs: a TOML file with prices, invoices to share out, and budgets: docs/pipeline/README.md#prices."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal, InvalidOperation
from itertools import pairwise
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pipeline.failures import InputError

AXES: Final = ("network_in", "network_out", "requests", "storage", "partitions")
"""What is charged."""
WAITING: Final = "waiting"
"""An axis of prices: what waiting for others costs. Shown, and not charged."""
UNITS: Final = {
    "network_in": ("B", "MB", "GB", "TB", "MiB", "GiB", "TiB"),
    "network_out": ("B", "MB", "GB", "TB", "MiB", "GiB", "TiB"),
    "requests": ("request", "million requests"),
    "storage": ("GB-hour", "GiB-hour", "TB-hour"),
    "partitions": ("partition-hour",),
    WAITING: ("second", "minute", "hour"),
}
SIZES: Final = {
    "B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
    "request": 1, "million requests": 10**6,
    "GB-hour": 10**9, "GiB-hour": 2**30, "TB-hour": 10**12, "partition-hour": 1,
    "second": 1_000, "minute": 60_000, "hour": 3_600_000,
}  # fmt: skip
_TOP: Final = {"currency", "zone", "provider", "account", "price", "invoice", "budget"}
IDLE_RULES: Final = ("apart", "by use")
"""Who pays for capacity that was not used: the team `idle`, or all teams by use."""


class PriceListError(InputError):
    """A price list is wrong; the text contains the place and what is allowed."""


@dataclass(frozen=True, slots=True)
class Price:
    """amount for each `size` units of the axis, on days from `first` to before `until`."""

    axis: str
    amount: Decimal
    per: str
    first: date
    until: date

    @property
    def size(self) -> int:
        return SIZES[self.per]


@dataclass(frozen=True, slots=True)
class Invoice:
    """total is shared out over the days from `first` to before `until`; `fixed` of it evenly among teams.

    capacity: what the rest pays for, in bytes, requests, byte-hours or partition-hours; 0 where that is not known.
    """

    id: str
    axis: str
    total: Decimal
    fixed: Decimal
    first: date
    until: date
    capacity: int = 0
    idle: str = "apart"


@dataclass(frozen=True, slots=True)
class PriceList:
    """A whole file. zone: name of a time zone. budgets: of teams, for a month."""

    currency: str
    zone: str
    provider: str
    account: str
    prices: tuple[Price, ...]
    invoices: tuple[Invoice, ...]
    text: str
    budgets: Mapping[str, Decimal] = field(default_factory=dict)


def parse(text: str) -> PriceList:
    """A price list's text. Raises PriceListError."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PriceListError(f"not TOML: {error}") from error
    unknown = sorted(set(data) - _TOP)
    if unknown:
        raise PriceListError(f"{unknown[0]}: unknown key; allowed: {', '.join(sorted(_TOP))}")
    zone = data.get("zone", "UTC")
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, TypeError) as error:
        raise PriceListError(f"zone: there is no time zone {zone!r}") from error
    currency = data.get("currency")
    if not isinstance(currency, str) or not (len(currency) == 3 and currency.isascii() and currency.isupper()):
        raise PriceListError("currency: three capital letters of ISO 4217 are needed, such as EUR")
    prices = tuple(_price(f"price[{index}]", each) for index, each in enumerate(data.get("price", [])))
    invoices = tuple(_invoice(f"invoice[{index}]", each) for index, each in enumerate(data.get("invoice", [])))
    _check_overlaps(prices)
    provider, account = data.get("provider", "Kafka platform"), data.get("account", "kafka")
    budgets = dict(_budget(f"budget[{index}]", each) for index, each in enumerate(data.get("budget", [])))
    return PriceList(currency, zone, provider, account, prices, invoices, text, budgets)


def _price(place: str, table: Mapping[str, Any]) -> Price:
    axis = _axis(place, table, (*AXES, WAITING))
    per = table.get("per")
    if per not in UNITS[axis]:
        raise PriceListError(f"{place}.per: {per!r} is no unit of {axis}; allowed: {', '.join(UNITS[axis])}")
    first, until = _period(place, table)
    return Price(axis, _decimal(f"{place}.amount", table.get("amount"), 6), per, first, until)


def _invoice(place: str, table: Mapping[str, Any]) -> Invoice:
    first, until = _period(place, table)
    if until > (first.replace(day=28) + timedelta(days=4)).replace(day=1):
        # Periods are closed by month: an invoice over two would be shared out again among the days still open.
        raise PriceListError(
            f"{place}: from {first} until {until} is more than one month; write an invoice for each month"
        )
    total = _decimal(f"{place}.total", table.get("total"), 2)
    fixed = _decimal(f"{place}.fixed", table.get("fixed", "0"), 2)
    if fixed > total:
        raise PriceListError(f"{place}.fixed: {fixed} is more than the total of {total}")
    if not isinstance(table.get("id"), str):
        raise PriceListError(f"{place}.id: the invoice's number is needed, in quotes")
    axis, per, idle = _axis(place, table), table.get("per"), table.get("idle", IDLE_RULES[0])
    if idle not in IDLE_RULES:
        raise PriceListError(f"{place}.idle: {idle!r} is none; allowed: {', '.join(IDLE_RULES)}")
    if "capacity" not in table:
        return Invoice(table["id"], axis, total, fixed, first, until)
    if per not in UNITS[axis]:
        raise PriceListError(f"{place}.per: {per!r} is no unit of {axis}; allowed: {', '.join(UNITS[axis])}")
    capacity = int(_decimal(f"{place}.capacity", table["capacity"], 6) * SIZES[per])
    return Invoice(table["id"], axis, total, fixed, first, until, capacity, idle)


def _budget(place: str, table: Mapping[str, Any]) -> tuple[str, Decimal]:
    if not isinstance(table.get("team"), str):
        raise PriceListError(f"{place}.team: a team's name is needed")
    return table["team"], _decimal(f"{place}.amount", table.get("amount"), 2)


def _axis(place: str, table: Mapping[str, Any], allowed: tuple[str, ...] = AXES) -> str:
    axis = table.get("axis")
    if axis not in allowed:
        raise PriceListError(f"{place}.axis: {axis!r} is none; allowed: {', '.join(allowed)}")
    return str(axis)


def _decimal(place: str, value: object, places: int) -> Decimal:
    if not isinstance(value, str):
        raise PriceListError(f"{place}: write the amount in quotes, so that it stays a decimal")
    try:
        amount = Decimal(value)
    except InvalidOperation as error:
        raise PriceListError(f"{place}: {value!r} is no decimal number") from error
    if not amount.is_finite() or amount < 0 or amount >= 10**8:
        raise PriceListError(f"{place}: {value!r} is negative or too large")
    if amount != round(amount, places):
        raise PriceListError(f"{place}: {value!r} has more than {places} decimal places")
    return amount


def _period(place: str, table: Mapping[str, Any]) -> tuple[date, date]:
    first, until = table.get("from"), table.get("until", date(9999, 1, 1))
    if type(first) is not date or type(until) is not date or first >= until:
        raise PriceListError(f"{place}: from and until are days such as 2026-01-31, without quotes, from before until")
    return first, until


def _check_overlaps(prices: tuple[Price, ...]) -> None:
    ordered = sorted(prices, key=lambda price: (price.axis, price.first))
    for earlier, later in pairwise(ordered):
        if earlier.axis == later.axis and later.first < earlier.until:
            raise PriceListError(f"price: {later.axis} has two prices on {later.first}")
