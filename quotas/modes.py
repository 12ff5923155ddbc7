"""The throttle modes. `proxy.enforcement.measures` applies them."""

from typing import Final

MODES: Final = ("auto", "notify", "delay", "pause")
