"""What happens to a connection without sockets, step by step."""

from collections.abc import Callable, Iterable

from proxy.sessions.lifecycle import State
from proxy.sessions.session import Session
from tests.proxy.streams.pair import Pair
from tests.proxy.wires import MemoryWire

Step = Callable[[Pair], object]


class QuietPair(Pair):
    """An error for which the session closes is not raised: its traceback would refer to all of it."""

    @staticmethod
    def on_closed(_: Session) -> None:
        """See above."""


def play(pair: Pair, steps: Iterable[Step]) -> None:
    for step in steps:
        step(pair)


def asks(*frames: bytes) -> Step:
    return lambda pair: pair.client_sends(*frames)


def says(*frames: bytes) -> Step:
    return lambda pair: pair.broker_sends(*frames)


def passes(seconds: float) -> Step:
    return lambda pair: pair.world.loop.pass_seconds(seconds)


def finds(condition: Callable[[Pair], object]) -> Step:
    def check(pair: Pair) -> None:
        assert condition(pair)

    return check


def is_in(state: State) -> Step:
    return finds(lambda pair: pair.session.state is state)


def drains(pair: Pair) -> None:
    pair.session.drain()
    pair.world.loop.run()


def client_ends(pair: Pair) -> None:
    pair.client.end()


def broker_ends(pair: Pair) -> None:
    pair.broker.end()


def client_has_gone(pair: Pair) -> None:
    """Its end is seen by the sweep, while it is not read."""
    pair.client.peer_has_gone = True
    pair.session.sweep(pair.world.clock())


def client_breaks(pair: Pair) -> None:
    pair.client.broken = True


def broker_breaks(pair: Pair) -> None:
    pair.broker.broken = True


def broker_takes(room: int | None) -> Step:
    return lambda pair: _take(pair, pair.broker, room)


def client_takes(room: int | None) -> Step:
    return lambda pair: _take(pair, pair.client, room)


def _take(pair: Pair, wire: MemoryWire, room: int | None) -> None:
    wire.take(room)
    pair.world.loop.run()


IS_HELD, IS_RELEASED = finds(lambda pair: pair.is_held), finds(lambda pair: not pair.is_held)
