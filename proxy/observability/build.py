"""Which build of the same source runs: `pure Python`, or `compiled with mypyc`."""

from typing import Final

from protocol import wire

#: All hot modules are compiled, or none is: `protocol.wire` is one of them.
BUILD: Final = "pure Python" if str(wire.__file__).endswith(".py") else "compiled with mypyc"
