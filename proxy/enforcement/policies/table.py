"""The policy of a throttle mode: that of the module of its name. The names stand in `quotas.modes`."""

from importlib import import_module

from proxy.enforcement.policies.policy import Policy
from proxy.enforcement.report import Report
from quotas.modes import MODES

DRY_RUN = "dry-run"
"""Not a mode that is configured: what `--dry-run` does in place of any."""


def policy_of(mode: str, report: Report) -> Policy:
    """The policy of a mode, for all connections; `Policy.of` has those of limits with their own mode.

    Raises ImportError without such a module.
    """
    modes: dict[str, Policy] = {}
    for name in (*MODES, DRY_RUN):
        module = import_module(f"proxy.enforcement.policies.{name.replace('-', '_')}")
        policy: type[Policy] = module.POLICY
        modes[name] = policy(report, modes)
    return modes[mode]
