"""What was given by flags, environment and the file of --config: a value for each option, and every problem."""

from dataclasses import fields
from itertools import chain
from typing import Any, TypeVar

import click

from proxy.config.errors import ConfigError
from proxy.config.option_types import name_of, place_of, problems_of
from quotas.problems import Problem

T = TypeVar("T")


class Given:
    """The parsed values, which nothing changes: what is made of several is returned by a function that checks them.

    params     the options as click has them, with None for each wrong value
    wrong      the names of those with one
    problems   found so far
    """

    def __init__(self, ctx: click.Context) -> None:
        self._ctx = ctx
        self.params = ctx.params
        problems = problems_of(ctx)
        self.wrong = {name for name, found in problems.items() if found}
        self.problems = list(chain.from_iterable(problems.values()))

    def get(self, name: str) -> Any:
        """The value of an option, or its default; None without one, and for a wrong one."""
        return None if name in self.wrong else self.params[name]

    def made(self, group: type[T], **computed: object) -> T:
        """An instance of a dataclass of options: a field is what was computed, or else the value of its option or
        its own default. A field that is such a dataclass is made in the same way.
        """
        values = dict(computed)
        for each in fields(group):  # type: ignore[arg-type]
            if each.name not in values:
                if "option" not in each.metadata and isinstance(each.type, type):
                    values[each.name] = self.made(each.type)
                elif "option" in each.metadata and self.get(name_of(each)) is not None:
                    values[each.name] = self.get(name_of(each))
        return group(**values)

    def place(self, name: str, value: object) -> str:
        """Where a value comes from, as its user wrote it."""
        return place_of(self._ctx, name, value)

    def refuse(self, name: str, value: object, message: str, hint: str | None = None) -> None:
        """Add a problem with this value of an option."""
        self.problems.append(Problem(self.place(name, value), message, hint))


def check_values(ctx: click.Context) -> None:
    """Raises ConfigError if an option of a command has a wrong value."""
    problems = Given(ctx).problems
    if problems:
        raise ConfigError(problems)
