"""Environment variables that set no option, although their names are almost those of options, or look like them."""

import difflib
from collections.abc import Collection, Mapping
from typing import Final

import click

from proxy.config.option_types import ENVIRONMENT_PREFIX, Setting, problems_of
from proxy.config.service_links import service_of
from quotas.problems import Problem, closest

_LIKE_A_WHOLE: Final = 0.85
"""How similar to an option's name a variable with another prefix must be. It may be for another program."""


def unknown_variables(
    ctx: click.Context, commands: Mapping[str, click.Command], environment: Mapping[str, str]
) -> list[tuple[str, dict[str, object]]]:
    """A warning for each variable that is like one of an option. One with the common prefix is a problem, like a
    misspelt flag, if it is like an option's. Those that Kubernetes sets for a Service are neither.
    """
    params = [param for command in commands.values() for param in command.params]
    known = [variable for param in params if isinstance(param, Setting) for variable in param.variables]
    found: list[tuple[str, dict[str, object]]] = []
    for variable, value in environment.items():
        if variable in known or service_of(variable, value):
            continue
        meant = _meant_by(variable, known)
        if meant and variable.startswith(ENVIRONMENT_PREFIX):
            problems_of(ctx)["environment"].append(Problem(variable, "unknown variable", f"did you mean {meant}?"))
        elif meant or variable.startswith(ENVIRONMENT_PREFIX):
            found.append(("unknown_environment_variable", {"variable": variable, "did_you_mean": meant}))
    return found


def _meant_by(variable: str, known: Collection[str]) -> str | None:
    """The variable that is most like this one, by its own part or, with another prefix, as a whole."""
    if variable.startswith(ENVIRONMENT_PREFIX):
        close = closest(variable.removeprefix(ENVIRONMENT_PREFIX), [x.removeprefix(ENVIRONMENT_PREFIX) for x in known])
        return close and ENVIRONMENT_PREFIX + close
    upper = variable.upper()
    is_near = "KAFKA" in upper or "QUOTA" in upper
    return next(iter(difflib.get_close_matches(upper, known, n=1, cutoff=_LIKE_A_WHOLE) if is_near else ()), None)


def service_variables(ctx: click.Context, environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """The variables of options that Kubernetes has set for a Service, each with the Service's name."""
    ours = [each for param in ctx.command.params if isinstance(param, Setting) for each in param.variables]
    found = [(each, service_of(each, environment.get(each, ""))) for each in ours]
    return [(variable, service) for variable, service in found if service]
