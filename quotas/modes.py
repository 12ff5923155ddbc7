"""The throttle modes. The policy of each is the module of its name in `proxy.enforcement.policies`."""

from typing import Final

MODES: Final = ("auto", "notify")

LATER_MODES: Final = ("delay", "pause")
"""Refused as not available in this version."""
