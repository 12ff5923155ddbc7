"""The errors that keep the proxy from starting. click prints them, and exits with their code.

StartError
├── ConfigError    the configuration is wrong; lists every error          exit code 2
└── BindError      an address cannot be bound; names its flag             exit code 1
"""

import os
from collections.abc import Sequence
from typing import IO, Any

import click

from proxy.config.addresses import Address, format_address
from quotas.problems import Problem


class StartError(click.ClickException):
    """The proxy cannot start. `str()` is the message for the user: what happened, where, what to do."""

    def show(self, _file: IO[Any] | None = None) -> None:
        click.echo(self.message, err=True)


class ConfigError(StartError):
    """Every error in the configuration, not only the first."""

    exit_code = 2

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("\n".join(f"error: {problem}" for problem in problems))
        self.problems = tuple(problems)


class BindError(StartError):
    """The `address` of `flag` cannot be bound."""

    def __init__(self, flag: str, address: Address, error: OSError, detail: str = "") -> None:
        code = error.errno
        # asyncio's text repeats the address; the codes of name resolution are negative, not system errors.
        reason = os.strerror(code) if code is not None and code > 0 else error.strerror or str(error)
        super().__init__(f"error: {flag}: cannot listen on {format_address(address)}: {reason}{detail}")
