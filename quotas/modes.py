"""The throttle modes. The policy of each is the module of its name in `proxy.enforcement.policies`."""

from typing import Final

MODES: Final = ("auto", "notify", "delay", "pause")
