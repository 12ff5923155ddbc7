"""What can be wrong before the proxy serves anyone.

StartError
├── ConfigError    what was asked for makes no sense; names every place   exit code 2
└── BindError      an address cannot be listened on; names its flag       exit code 1
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from proxy.config.config import format_address

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proxy.config.config import Address


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong: where (a flag, variable or key, with its value), what, and what would be right.

    `may_pass`: it may be right at another time though nothing is changed, as a host name that does not resolve now.
    """

    place: str
    message: str
    hint: str | None = None
    may_pass: bool = False

    def __str__(self) -> str:
        lines = [f"error: {self.place}: {self.message}"]
        if self.hint:
            lines += [f"  {line}" for line in self.hint.splitlines()]
        return "\n".join(lines)


class StartError(Exception):
    """The proxy cannot start. Its text is for the user: what happened, where, what to do."""


class ConfigError(StartError):
    """Everything that is wrong with the configuration, not just the first of it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(*problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class BindError(StartError):
    """`address`, which `flag` asked for, cannot be listened on."""

    def __init__(self, flag: str, address: Address, error: OSError) -> None:
        super().__init__(flag, address, error)
        self.flag = flag
        self.address = address
        self.error = error

    def __str__(self) -> str:
        code = self.error.errno
        # asyncio puts the address into its text too; a look-up's codes are below zero, and not the system's.
        reason = os.strerror(code) if code is not None and code > 0 else self.error.strerror or str(self.error)
        return f"error: {self.flag}: cannot listen on {format_address(self.address)}: {reason}"
