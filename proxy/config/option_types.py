"""How click parses the options of this proxy: what is wrong with a value is kept in the context.

So `proxy.config.checks` can list every error at once, where click stops at the first.
"""

import os
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import Field, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import cloup
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from proxy.config import values
from proxy.config.service_links import service_of
from quotas.problems import InvalidValue, InvalidValues, Problem, did_you_mean

if TYPE_CHECKING:
    _ParamType = click.ParamType[object]
else:
    _ParamType = click.ParamType  # generic only since click 8.5

ENVIRONMENT_PREFIX: Final = "KAFKA_QUOTA_PROXY_"
_REPEATABLE: Final = " Repeatable; in the environment separated by ';' or line ends."
_SPEC_EXPECTED: Final = "expected a SPEC as text, such as 'client-id=etl,producer_byte_rate=5MB'"
QUOTA_TABLES_ELSEWHERE: Final = (
    "[[quota]] and [[resource-group]] tables belong into a file of their own: name it by quotas_file"
)
_PROBLEMS: Final = "proxy.config.option_types.problems"
IGNORE_ENVIRONMENT: Final = "proxy.config.options.ignore_environment"
"""Key in the context's meta: `check-config` checks a file, without the environment of its shell."""

ARGUMENTS: Final = "proxy.config.options.arguments"
"""Key in the context's meta: the command line, to parse it again when the file of --config changes."""


def problems_of(ctx: click.Context) -> dict[str, list[Problem]]:
    """What is wrong with the values of this context, by option; that of --config has the problems of its file."""
    problems: dict[str, list[Problem]] = ctx.meta.setdefault(_PROBLEMS, defaultdict(list))
    return problems


class Checked(_ParamType):
    """Parses by a function of `proxy.config.values`; a value that it refuses becomes None, and one of `problems_of`.

    `shown` is the default in the help, if there is no `default`.
    """

    envvar_list_splitter = None

    def __init__(
        self, metavar: str | None, parse: Callable[[Any], object], *, default: Any = None, shown: str = "none"
    ) -> None:
        self.metavar = metavar
        self.name = metavar or "boolean"
        self.parse = parse
        self.default = default
        self.shown = default or shown

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> object:
        try:
            return self.parse(value)
        except InvalidValues as error:
            if isinstance(error, InvalidValue) and isinstance(value, str):
                error = self._several(value, param) or error.explained(value.strip())
            if param is not None and param.name is not None and ctx is not None:
                problems_of(ctx)[param.name] += error.at(place_of(ctx, param.name, value))
            return None

    def _several(self, value: str, param: click.Parameter | None) -> InvalidValue | None:
        """If these are several values of an option that is given once for each."""
        parts = [part for part in re.split(r"[,;\s]+", value) if part]
        try:
            if len(parts) > 1 and param is not None and param.multiple:
                parsed = [self.parse(part) for part in parts]
                flags = " ".join(f"{param.opts[0]} {part}" for part in parts)
                return InvalidValue(f"these are {len(parsed)} values", f"give each with its own flag: {flags}")
        except InvalidValues:
            pass
        return None

    def split_envvar_value(self, rv: str) -> Sequence[str]:
        return values.split_specs(rv)

    def shell_complete(self, _ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self.name.startswith("FILE"):
            return [CompletionItem(incomplete, type="file")]
        words = self.name.split("|") if self.name.islower() else ()
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


class Switch(Checked, click.types.BoolParamType):  # type: ignore[misc]  # it also returns None
    """A flag without value; from the environment or a file it is true or false."""

    def __init__(self) -> None:
        super().__init__(None, values.parse_switch, default=False, shown="off")


class Setting(cloup.Option):
    """An option of `run`: its environment variables count except for `check-config`, and its help has a layout."""

    @property
    def variables(self) -> Sequence[str]:
        """One for each of its names: the first one that is set and not empty is used."""
        return tuple(self.envvar or ())

    @property
    def variable_set(self) -> str | None:
        """The variable that is used, which is not one that Kubernetes set for a Service with a similar name."""
        values = ((each, os.environ.get(each)) for each in self.variables)
        return next((each for each, value in values if value and not service_of(each, value)), None)

    def resolve_envvar_value(self, ctx: click.Context) -> str | None:
        variable = None if ctx.meta.get(IGNORE_ENVIRONMENT) else self.variable_set
        return None if variable is None else os.environ[variable]

    def get_help_record(self, ctx: click.Context) -> Any:
        """The help text, and on a separate line the default and the variable."""
        origin = f"[default: {self.show_default}; env: {self.variables[0]}]"

        def definition(width: int) -> str:
            lines = textwrap.wrap(self.help or "", width)
            last = [origin] if len(origin) <= width else origin.replace("; env", ";\nenv").splitlines()
            return "\n".join(["\b", *lines, *last])  # click's mark for lines that are wrapped already

        return self.get_help_spec(ctx), definition


def setting(flags: str, value: Checked, text: str, **attributes: Any) -> Callable[[Any], Any]:
    """An option of a command: its flags, separated by spaces, its value, and its help."""
    names = [_name_of(flag) for flag in flags.split()]
    if isinstance(value, Switch):
        flags = f"{flags}/--no-{flags[2:]}"
    return cloup.option(
        *flags.split(),
        names[0],
        cls=Setting,
        type=value,
        default=value.default,
        show_default=value.shown,
        help=text + _REPEATABLE * attributes.get("multiple", False),
        envvar=[ENVIRONMENT_PREFIX + each.upper() for each in names],
        metavar=value.metavar,
        **attributes,
    )


def option(value: Checked, text: str, *, flags: str = "", unset: object = None, **attributes: Any) -> Any:
    """A field of a dataclass, and the option of `run` that sets it, as `setting` has it.

    flags   where they are not the field's name, as in --log-level of `log_level`
    unset   the field without the option, where that is not the option's default
    """
    if unset is None:
        unset = () if attributes.get("multiple") else value.default and value.parse(value.default)
    return field(default_factory=lambda: unset, metadata={"option": (flags, value, text, attributes)})


def name_of(field: Field[Any]) -> str:
    """The name of a field's option, as in its variable and in files: that of its first flag."""
    return _name_of(field.metadata["option"][0]) or field.name


def _name_of(flags: str) -> str:
    """Of the first flag."""
    return flags.lstrip("-").partition(" ")[0].replace("-", "_")


def switch(text: str, *, flags: str = "") -> Any:
    return option(Switch(), text, flags=flags)


def options_of(group: type[Any]) -> tuple[Callable[[Any], Any], ...]:
    """The options of the fields of a dataclass, in order."""
    found: list[Callable[[Any], Any]] = []
    for each in fields(group):
        if "option" in each.metadata:
            flags, value, text, attributes = each.metadata["option"]
            found.append(setting(flags or f"--{each.name.replace('_', '-')}", value, text, **attributes))
        found += each.metadata.get("options", ())
    return tuple(found)


def settings_of(ctx: click.Context) -> dict[str, Setting]:
    return {str(param.name): param for param in ctx.command.params if isinstance(param, Setting)}


def place_of(ctx: click.Context, name: str, given: object) -> str:
    """The origin of a value, as its user wrote it: `--listen 'foo'`, a variable, or a key of the file."""
    source = ctx.get_parameter_source(name)
    if source is ParameterSource.ENVIRONMENT:
        return f"{settings_of(ctx)[name].variable_set} {given!r}"
    if source is ParameterSource.DEFAULT_MAP:
        return f"{ctx.params['config']}: {name} = {given!r}"
    flag = f"--{name.replace('_', '-')} {given!r}"
    return f"{flag} (the default)" if source is ParameterSource.DEFAULT else flag


def one_of(*allowed: str, default: str | None = None, shown: str = "none") -> Checked:

    def parse(value: object) -> str:
        word = str(value).strip().lower()
        if word not in allowed:
            raise InvalidValue("unknown value", did_you_mean(word, allowed))
        return word

    return Checked("|".join(allowed), parse, default=default, shown=shown)


def quota_spec(value: object) -> object:
    # Imported only by a run with quotas.
    from proxy.config.host_names import HostNames
    from quotas.parsing.parse import parse_spec

    if isinstance(value, dict):
        raise InvalidValue(_SPEC_EXPECTED, QUOTA_TABLES_ELSEWHERE)
    if not isinstance(value, str):
        raise InvalidValue(_SPEC_EXPECTED)
    return parse_spec(value, HostNames().addresses_of)


def file_path(value: object) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise InvalidValue("expected the path of a file")
    return Path(value)


def mapping_rules(value: object) -> str:
    if value != "DEFAULT":
        from protocol.principal_rules import parse_rules  # 1.4 MB

        try:
            parse_rules(str(value))
        except ValueError as error:
            raise InvalidValue(str(error)) from error
    return str(value)
