"""What tests with a proxy ask of it, and change, while it runs."""

from dataclasses import replace

from quotas.parsing.parse import parse_spec
from tests.proxy.conversation import Stage, until


async def held(stage: Stage, count: int = 1) -> None:
    """Wait until so many sessions are held by a limit."""
    await until(lambda: stage.paused().get("quota", 0) == count)


def debts(stage: Stage) -> dict[tuple[str, str], float]:
    """By entity and limit, in seconds; of limits that owe something."""
    now_ns = stage.clock()
    owed = ((limit, limit.debt_ns(now_ns)) for limit in stage.registry.limits_in_use())
    return {(str(limit.entity), limit.name): debt_ns / 1_000_000_000 for limit, debt_ns in owed if debt_ns}


def alter(stage: Stage, spec: str, *, away: bool = False) -> None:
    """Set the limits of this SPEC while the proxy runs, or remove them; all others stay as they are."""
    changed = parse_spec(spec)
    entries = {entry.entity: entry for entry in stage.server.active_config.quotas.entries}
    before = entries.pop(changed.entity, None)
    limits = {} if before is None else dict(before.limits)
    for name, rate in changed.limits.items():
        limits.pop(name, None)
        if not away:
            limits[name] = rate
    unlimited = () if away else changed.unlimited
    if limits or unlimited:
        entries[changed.entity] = replace(before or changed, limits=limits, unlimited=unlimited)
    active_config = stage.server.active_config
    active_config.replace_quotas(replace(active_config.quotas, sources={"": tuple(entries.values())}))
