"""The errors that keep the proxy from starting.

StartError
├── ConfigError    the configuration is wrong; lists every error          exit code 2
└── BindError      an address cannot be bound; names its flag             exit code 1
"""

import os
from collections.abc import Sequence

from proxy.config.config import Address, format_address
from quotas.problems import Problem


class StartError(Exception):
    """The proxy cannot start. `str()` is the message for the user: what happened, where, what to do."""


class ConfigError(StartError):
    """Every error in the configuration, not only the first."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(*problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(f"error: {problem}" for problem in self.problems)


class BindError(StartError):
    """The `address` of `flag` cannot be bound."""

    def __init__(self, flag: str, address: Address, error: OSError) -> None:
        super().__init__(flag, address, error)
        self.flag = flag
        self.address = address
        self.error = error

    def __str__(self) -> str:
        code = self.error.errno
        # asyncio's text repeats the address; the codes of name resolution are negative, not system errors.
        reason = os.strerror(code) if code is not None and code > 0 else self.error.strerror or str(self.error)
        return f"error: {self.flag}: cannot listen on {format_address(self.address)}: {reason}"
