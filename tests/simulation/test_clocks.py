"""The product reads no clock and no source of chance but those that it is given: so a seed is a whole run."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
CHANCE: Final = {
    "time": None,
    "secrets": None,
    "random": {"Random"},  # a type, or made of a seed; `Random()` is found as a call
    "uuid": {"UUID"},
    "datetime": {"UTC", "datetime", "timedelta", "timezone", "date"},
}
"""Modules that read clocks or chance, and the names of each that do not."""
READS: Final = {"now", "utcnow", "today", "urandom", "getrandom"}

ALLOWED: Final = {
    "proxy/background/host.py": "what a real host gives",
    "proxy/command/check.py": "a command that ends",
    "proxy/command/page_commands.py": "a command that ends",
    "proxy/observability/output.py": "a thread that writes logs, while the process ends",
    "proxy/observability/supervisor.py": "systemd asks for the time of its own clock",
    "proxy/observability/metrics.py": "the default of an argument; the time of a reload, for people",
    "proxy/sessions/throttling.py": "the time of day in a message, for people",
    "proxy/files/certificates.py": "how long certificates are valid; TLS is not simulated",
    "proxy/files/tls.py": "the default of an argument; TLS is not simulated",
    "proxy/internal_clients/partition.py": "not simulated: a consumer of aiokafka",
    "proxy/internal_clients/quotas_log.py": "not simulated: the seam of the topic with quotas is `StoredLog`, above it",
    "proxy/internal_clients/record_log.py": "not simulated: the seam of fleets is `proxy.fleet.log`",
    "proxy/command/quotas_commands.py": "a command that ends",
    "proxy/command/quotas_topic.py": "a command that ends",
    "proxy/usage/topic_sink.py": "not simulated: it needs a producer of aiokafka",
    "proxy/fleet/clock.py": "the clock of a real host: it goes on while the machine sleeps",
    "proxy/process/server.py": "how often a message of an ignored exception is logged",
    "proxy/admin/history.py": "CPU time of this thread, shown on the page",
    "proxy/config/host_names.py": "how often names are asked; the world has addresses",
    "protocol/telemetry.py": "the id of a client's instance, which nothing depends on",
}


def reads(tree: ast.Module) -> Iterator[str]:
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {each.asname or each.name: each.name for each in node.names if each.name in CHANCE}
        elif isinstance(node, ast.ImportFrom) and node.module in CHANCE:
            harmless = CHANCE[node.module] or set()
            yield from (f"{node.module}.{each.name}" for each in node.names if each.name not in harmless)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            module = modules.get(node.value.id) if isinstance(node.value, ast.Name) else None
            if node.attr in READS or (module and node.attr not in (CHANCE[module] or ())):
                yield ast.unparse(node)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"Random", "random.Random"} and not node.args:
            yield "Random()"


def test_the_product_reads_no_real_clock_and_no_chance_of_its_own() -> None:
    found = {
        str(path.relative_to(ROOT)): sorted({*reads(ast.parse(path.read_text()))})
        for package in ("proxy", "quotas", "protocol")
        for path in (ROOT / package).rglob("*.py")
    }
    found = {path: names for path, names in found.items() if names}
    assert {path: names for path, names in found.items() if path not in ALLOWED} == {}
    assert ALLOWED.keys() - found.keys() == set(), "these read none any more"
