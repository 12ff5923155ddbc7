"""The errors that keep the proxy from starting.

StartError
├── ConfigError    the configuration is wrong; lists every error          exit code 2
└── BindError      an address cannot be bound; names its flag             exit code 1
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass

from proxy.config.config import Address, format_address


@dataclass(frozen=True, slots=True)
class Problem:
    """One error: its place (a flag, variable or key, with its value), a message, and how to correct it.

    `may_pass`: it may disappear without a change, for instance a host name that does not resolve now.
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
    """The proxy cannot start. `str()` is the message for the user: what happened, where, what to do."""


class ConfigError(StartError):
    """Every error in the configuration, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(*problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


class BindError(StartError):
    """The `address` of `flag` cannot be bound."""

    def __init__(self, flag: str, address: Address | str, error: OSError) -> None:
        super().__init__(flag, address, error)
        self.flag = flag
        self.address = address
        self.error = error

    def __str__(self) -> str:
        code = self.error.errno
        # asyncio's text repeats the address; the codes of name resolution are negative, not system errors.
        where = self.address if isinstance(self.address, str) else format_address(self.address)
        reason = os.strerror(code) if code is not None and code > 0 else self.error.strerror or str(self.error)
        return f"error: {self.flag}: cannot listen on {where}: {reason}"
