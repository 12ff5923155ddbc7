"""The throttle modes: what a client over its quota receives, and how it is slowed down.

The policy of a mode is the module of its name in `proxy.enforcement.policies`.
"""

from typing import Final

MODES: Final = ("auto", "notify")

LATER_MODES: Final = ("delay", "pause")
"""Refused with the reason that a later version has them."""
