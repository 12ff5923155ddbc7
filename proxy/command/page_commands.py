"""The commands that ask a running proxy, or all members of its fleet, for a page: `healthcheck`, `explain`, `top` and
`fleet`.
"""

import difflib
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import click
import cloup

from proxy.config.given import check_values
from proxy.config.option_types import Checked, setting
from proxy.config.values import parse_address, parse_duration, parse_fleet
from proxy.observability.logs import one_line


@cloup.command("healthcheck", short_help="Ask a running proxy whether it works.")
@setting(
    "--metrics-listen",
    Checked("HOST:PORT", parse_address, default="127.0.0.1:19404"),
    "The --metrics-listen address of the proxy. For 0.0.0.0 and [::], loopback is used.",
)
@cloup.option("--ready", is_flag=True, help="Ask /readyz instead of /healthz: exit with 0 only while brokers answer.")
@setting("--timeout", Checked("DURATION", parse_duration, default="3s"), "How long to wait for an answer: 500ms, 3s.")
@click.pass_context
def healthcheck(ctx: click.Context, /, metrics_listen: Any, timeout: Any, *, ready: bool) -> None:
    """Ask a running proxy whether it works. As a container's health check it needs neither a shell nor curl.

    Prints the answer. Exit codes: 0 if it works, 1 if it does not or does not answer, 2 for a wrong option.
    """
    from proxy.admin.healthcheck import check

    check_values(ctx)
    ok, text = check(metrics_listen, timeout, ready=ready)
    click.echo(text, err=not ok)
    sys.exit(0 if ok else 1)


def _page(ctx: click.Context, proxy: Any, path: str) -> str:
    """The body of a page of a running proxy. Raises ClickException unless it answers with JSON."""
    from proxy.admin.healthcheck import NoPage, json_page

    check_values(ctx)
    try:
        return json_page(proxy, path)
    except NoPage as error:
        raise click.ClickException(str(error)) from error


_proxy_option = setting(
    "--proxy",
    Checked("HOST:PORT", parse_address, default="127.0.0.1:19404"),
    "The admin port of a running proxy: its --metrics-listen.",
)


_fleet_option = setting(
    "--fleet", Checked("NAME", parse_fleet), "Ask all members of this fleet, which --proxy is a member of."
)


def _ask_fleet(ctx: click.Context, proxy: Any, name: str, path: str) -> list[Any]:
    """The page of each member. Raises ClickException unless the proxy is a member of the fleet."""
    from proxy.admin.fleet_members import ask_all
    from proxy.admin.healthcheck import reachable

    return ask_all(reachable(proxy), json.loads(_fleet_page(ctx, proxy, name)), path)


def _fleet_page(ctx: click.Context, proxy: Any, name: str | None) -> str:
    from proxy.admin.healthcheck import url_of

    body = _page(ctx, proxy, "/fleet")
    if name not in {None, found := json.loads(body)["fleet"]}:
        raise click.ClickException(f"{url_of(proxy, '/fleet')}: this proxy is in fleet {found}, not in {name}")
    return body


@cloup.command("explain", short_help="Show where the time of each client goes: is it the proxy?")
@_proxy_option
@_fleet_option
@cloup.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
@cloup.argument("client", required=False, metavar="[CLIENT]", help="Show only clients with this client id or user.")
@click.pass_context
def explain(ctx: click.Context, /, proxy: Any, fleet: str | None, client: str | None, *, as_json: bool) -> None:
    """Show whether the proxy holds clients up, and where the time of each client went in the last minute: at a limit of
    this proxy, waiting for brokers, throttled by a broker quota, or idle or busy in the client. For a limit it shows
    which one, which clients share it, and what would help.

    \b
      kafka-quota-proxy explain etl
      kafka-quota-proxy explain etl --fleet jobs

    Exit codes: 0, 1 if the proxy does not answer or has not seen this client, 2 for a wrong option.
    """
    from proxy.admin.answer_page.answer import Cause
    from proxy.admin.explain import Finding, text_of
    from proxy.admin.fleet_view import explanation, merged, unanswered

    if fleet is not None:
        answers = _ask_fleet(ctx, proxy, fleet, "/clients")
        rows = _of_client(merged("clients", answers), client, lambda: unanswered(answers))
        click.echo("\n".join(explanation(rows, answers, as_json=as_json)))
        return

    def brokers() -> Any:
        return json.loads(_page(ctx, proxy, "/brokers"))

    rows = json.loads(_page(ctx, proxy, "/explain"))
    refused = (each for each in (Finding(**each) for each in rows) if each.is_refused)
    rows = _of_client(rows, client, lambda: text_of(list(refused), brokers()))
    if as_json:
        click.echo(json.dumps(rows))
        return
    shown = [Finding(**each) for each in rows]
    causes = [] if client is not None else json.loads(_page(ctx, proxy, "/answer"))["answers"]
    lines = [*(str(Cause(**each)) for each in causes), *[""] * bool(causes)]
    lines += text_of(shown, brokers() if all(each.is_refused for each in shown) else [])
    click.echo("\n".join(lines))


def _of_client(rows: Sequence[Any], client: str | None, rest: Callable[[], Iterable[str]]) -> list[Any]:
    """The rows of this client; None: all. Without any, raises ClickException, with the lines of `rest`."""
    shown = [each for each in rows if client in {None, each["client_id"], each["user"]}]
    if client is not None and not shown:
        names = [each["client_id"] for each in rows if each["client_id"]]
        close = ", ".join(map(one_line, difflib.get_close_matches(client, names, n=3, cutoff=0)))
        unseen = f"no client {client!r} in the last minute; seen: {close or 'none'}"
        raise click.ClickException("\n".join([unseen, *rest()]))
    return shown


@cloup.command("top", short_help="Watch clients, limits or brokers of a running proxy.")
@_proxy_option
@_fleet_option
@setting("--interval", Checked("DURATION", parse_duration, default="2s"), "Time between two updates.")
@cloup.option("--once", is_flag=True, help="Print the table once, for scripts.")
@cloup.option("--json", "as_json", is_flag=True, help="Print the rows once, as JSON.")
@cloup.argument("what", type=cloup.Choice(["clients", "limits", "brokers"]), default="clients", help="The table.")
@click.pass_context
def top(
    ctx: click.Context, /, proxy: Any, fleet: str | None, interval: float, what: str, *, once: bool, as_json: bool
) -> None:
    """Watch the clients of a running proxy, its limits or its brokers in a table that is redrawn until Ctrl-C.

    LIMIT and BROKER are shares of the clients' time in the last minute; USED is the used share of their nearest limit.
    """
    import shutil
    import time

    from proxy.admin.fleet_view import columns_of, merged, unanswered
    from proxy.admin.healthcheck import url_of
    from proxy.admin.tables import TABLES, table

    columns, missing = TABLES[what], list[str]()
    while True:
        if fleet is None:
            rows = json.loads(_page(ctx, proxy, f"/{what}"))
        else:
            answers = _ask_fleet(ctx, proxy, fleet, f"/{what}")
            columns, rows, missing = columns_of(what), merged(what, answers), list(unanswered(answers))
        if as_json:
            click.echo(json.dumps(rows if fleet is None else {what: rows, "unanswered": missing}))
            return
        lines = shutil.get_terminal_size().lines - 4 - len(missing)
        text = table(columns, rows, most=len(rows) if once else max(1, lines))
        if not once:
            click.clear()
            click.echo(f"{what} at {url_of(proxy, '/')}, {time.strftime('%H:%M:%S')}; Ctrl-C to stop\n")
        click.echo(text if rows else f"no {what} in the last minute", nl=not rows)
        click.echo("".join(f"{line}\n" for line in missing), nl=False)
        if once:
            return
        time.sleep(interval)


@cloup.command("fleet", short_help="Show the members that share limits with a running proxy.")
@_proxy_option
@_fleet_option
@cloup.option("--json", "as_json", is_flag=True, help="Print the page /fleet as JSON.")
@cloup.argument("name", required=False, metavar="[NAME]", help="Fail unless the proxy is a member of this fleet.")
@click.pass_context
def fleet(ctx: click.Context, /, proxy: Any, name: str | None, *, as_json: bool, **given: Any) -> None:
    """Show the members of a fleet, the limits that they share, and how much each uses, as seen by one member; or with
    --fleet, the state of each member as it reports it.

    Exit codes: 0, 1 if the proxy does not answer or is not in this fleet, 2 for a wrong option.
    """
    from proxy.admin.fleet_page import text_of
    from proxy.admin.fleet_view import members_of

    if given["fleet"] is not None:
        click.echo("\n".join(members_of(_ask_fleet(ctx, proxy, given["fleet"], "/fleet"), as_json=as_json)))
        return
    body = _fleet_page(ctx, proxy, name)
    click.echo(body.strip() if as_json else "\n".join(text_of(json.loads(body))))


PAGE_COMMANDS: Final = (healthcheck, explain, top, fleet)
