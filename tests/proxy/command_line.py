"""A command line as `run` reads it: to the configuration it asks for, or to the messages it would end with."""

import pytest

from proxy.command.commands import run
from proxy.config.checks import config_of
from proxy.config.config import Config
from proxy.config.errors import ConfigError
from proxy.config.option_types import Setting

UPSTREAM = ("--bootstrap-servers", "broker:9092")


def config(*arguments: str) -> Config:
    """What `run` with these arguments would serve."""
    with run.make_context("run", list(arguments)) as context:
        return config_of(context)


def errors(*arguments: str) -> list[str]:
    """The messages that `run` with these arguments would end with, one for each problem."""
    with pytest.raises(ConfigError) as raised:
        config(*arguments)
    return [f"error: {problem}" for problem in raised.value.problems]


def forget_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of whoever runs the tests is nobody's configuration here."""
    for option in run.params:
        if isinstance(option, Setting):
            for variable in option.variables:
                monkeypatch.delenv(variable, raising=False)
