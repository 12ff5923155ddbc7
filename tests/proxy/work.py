"""The work of a proxy, turn by turn, with a clock on which each step takes a fixed time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from proxy.sessions.pump import Pump
from proxy.sessions.turns import Turn, Turns
from proxy.streams.request_stream import RequestStream
from proxy.streams.response_stream import ResponseStream


class WorkClock:
    """Nanoseconds, of which `step_ns` pass with each call: the pump calls once before a turn and once in each step but
    the first.
    """

    def __init__(self, step_ns: int) -> None:
        self.step_ns = step_ns
        self.now_ns = 0

    def __call__(self) -> int:
        self.now_ns += self.step_ns
        return self.now_ns


@dataclass
class Done:
    """One turn. `size`, `is_heavy`: what it began with; `queued`: connections in the queue of heavy ones."""

    round: int
    pump: Pump
    size: int
    is_heavy: bool
    queued: int
    steps: int = 0
    used_ns: int = 0


class Work:
    """All turns from now on, in their order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.turns: list[Done] = []
        self.round = 0
        self._watch_turns(monkeypatch)
        for stream in (RequestStream, ResponseStream):
            self._watch_steps(monkeypatch, stream)

    def _watch_turns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        run, run_whole, used, next_round = Pump._run, Pump._run_whole, Turns.used, Turns._next_round

        def begin(pump: Pump, end: int) -> None:
            queued = len(pump._shared.turns._heavy)
            self.turns.append(Done(self.round, pump, end, pump.is_heavy, queued))

        def running(pump: Pump, end: int, first_step: int | None = None) -> None:
            if first_step is None:
                begin(pump, end)
            run(pump, end, first_step)

        def running_whole(pump: Pump, size: int) -> None:
            begin(pump, size)
            run_whole(pump, size)

        def using(turns: Turns, turn: Turn, time_ns: int) -> None:
            self.turns[-1].used_ns = time_ns
            used(turns, turn, time_ns)

        def beginning(turns: Turns) -> None:
            self.round += 1
            next_round(turns)

        monkeypatch.setattr(Pump, "_run", running)
        monkeypatch.setattr(Pump, "_run_whole", running_whole)
        monkeypatch.setattr(Turns, "used", using)
        monkeypatch.setattr(Turns, "_next_round", beginning)

    def _watch_steps(self, monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
        take = stream.take

        def taking(self_: Any, pos: int, end: int, now_ns: int) -> int:
            self.turns[-1].steps += 1
            step: int = take(self_, pos, end, now_ns)
            return step

        monkeypatch.setattr(stream, "take", taking)

    def used_in_rounds(self, *, heavy_only: bool = False) -> list[int]:
        """Nanoseconds that the turns of each round took together."""
        used: dict[int, int] = {}
        for turn in self.turns:
            if turn.is_heavy or not heavy_only:
                used[turn.round] = used.get(turn.round, 0) + turn.used_ns
        return list(used.values())
