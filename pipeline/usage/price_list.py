"""What traffic costs: a TOML file with prices, invoices to share out, and budgets: docs/pipeline/README.md#prices."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pipeline.failures import InputError
from pipeline.usage.strict_toml import END_OF_TIME, Table, parsed, text_of

AXES: Final = ("network_in", "network_out", "requests", "storage", "partitions")
"""What is charged."""
WAITING: Final = "waiting"
"""An axis of prices: what waiting for others costs. Shown, and not charged."""
_BYTES: Final = {"B": 1, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
UNITS: Final = {
    "network_in": _BYTES,
    "network_out": _BYTES,
    "requests": {"request": 1, "million requests": 10**6},
    "storage": {"GB-hour": 10**9, "GiB-hour": 2**30, "TB-hour": 10**12},
    "partitions": {"partition-hour": 1},
    WAITING: {"second": 1_000, "minute": 60_000, "hour": 3_600_000},
}
"""Of each axis, and their sizes in bytes, requests, byte-hours, partition-hours and milliseconds."""
_CURRENCY: Final = "three capital letters of ISO 4217 are needed, such as EUR"
IDLE_RULES: Final = ("apart", "by use")
"""Who pays for capacity that was not used: the team `idle`, or all teams by use."""


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
        return UNITS[self.axis][self.per]


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


def load(path: Path) -> PriceList:
    """The price list in a file. Raises InputError, OSError."""
    return parse(text_of(path))


def parse(text: str) -> PriceList:
    """A price list's text. Raises InputError."""
    file = parsed(text)
    zone = file.text("zone", "UTC")
    try:
        ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise InputError(f"zone: there is no time zone {zone!r}") from error
    currency = file.text("currency", "", needs=_CURRENCY)
    if not (len(currency) == 3 and currency.isascii() and currency.isupper()):
        raise InputError(f"currency: {_CURRENCY}")
    provider, account = file.text("provider", "Kafka platform"), file.text("account", "kafka")
    prices = tuple(map(_price, file.tables("price")))
    invoices = tuple(map(_invoice, file.tables("invoice")))
    budgets = file.tables("budget")
    file.end()
    _check_overlaps(prices)
    if twice := [name for name, count in Counter(each.id for each in invoices).items() if count > 1]:
        raise InputError(f"invoice: two invoices have the id {twice[0]!r}")
    return PriceList(currency, zone, provider, account, prices, invoices, text, _budgets(budgets))


def _price(table: Table) -> Price:
    axis = table.one_of("axis", (*AXES, WAITING))
    amount, per, (first, until) = table.decimal("amount", 6), _unit(table, axis), _period(table)
    table.end()
    return Price(axis, amount, per, first, until)


def _invoice(table: Table) -> Invoice:
    number = table.text("id", "", needs="the invoice's number is needed, in quotes")
    axis, (first, until) = table.one_of("axis", AXES), _period(table)
    if until > (first.replace(day=28) + timedelta(days=4)).replace(day=1):
        # Periods are closed by month: an invoice over two would be shared out again among the days still open.
        raise InputError(
            f"{table.place}: from {first} until {until} is more than one month; write an invoice for each month"
        )
    total, fixed = table.decimal("total", 2), table.decimal("fixed", 2, "0")
    if fixed > total:
        raise InputError(f"{table.place}.fixed: {fixed} is more than the total of {total}")
    capacity, idle = 0, table.one_of("idle", IDLE_RULES, IDLE_RULES[0])
    if table.values.keys() & {"capacity", "per"}:
        capacity = int(table.decimal("capacity", 6) * UNITS[axis][_unit(table, axis)])
    table.end()
    return Invoice(number, axis, total, fixed, first, until, capacity, idle)


def _budgets(tables: Sequence[Table]) -> dict[str, Decimal]:
    budgets: dict[str, Decimal] = {}
    for table in tables:
        team = table.text("team", "", needs="a team's name is needed")
        if team in budgets:
            raise InputError(f"{table.at('team')}: {team!r} has another budget above; write one")
        budgets[team] = table.decimal("amount", 2)
        table.end()
    return budgets


def _unit(table: Table, axis: str) -> str:
    return table.one_of("per", tuple(UNITS[axis]), kind=f"no unit of {axis}")


def _period(table: Table) -> tuple[date, date]:
    first, until = table.days(needs_first=True)
    return first or END_OF_TIME, until or END_OF_TIME


def _check_overlaps(prices: tuple[Price, ...]) -> None:
    ordered = sorted(prices, key=lambda price: (price.axis, price.first))
    for earlier, later in pairwise(ordered):
        if earlier.axis == later.axis and later.first < earlier.until:
            raise InputError(f"price: {later.axis} has two prices on {later.first}")
