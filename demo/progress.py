"""What a person sees during a run: a bar on a terminal, otherwise a line every few seconds."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from deploy.local.frames import DataFrame as TapFrame

_LINE_EVERY_NS = 3_000_000_000
_NOW_NS = 1_000_000_000


class RunProgress:
    """Progress of one run: MB so far, MB/s in the last second, and how much of the limit that is."""

    def __init__(self, console: Console, title: str, expected_bytes: float, limit: float | None) -> None:
        self._console = console
        self._title = title
        self._expected_bytes = expected_bytes
        self._limit = limit
        self._last_line_ns: int | None = None
        self._bar = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=16),
            TextColumn("{task.fields[amount]}"),
            TimeElapsedColumn(),
            console=console,
            transient=False,
        )
        self._task = self._bar.add_task(title, total=expected_bytes, amount="")

    def show(self, frames: Sequence[TapFrame], now_ns: int) -> None:
        """frames: all data requests of the run so far, in order; now_ns: on the same monotonic clock."""
        total = sum(frame.size for frame in frames)
        recent = sum(frame.size for frame in frames if frame.time_ns > now_ns - _NOW_NS)
        amount = self.describe(total, recent)
        if self._console.is_terminal:
            self._bar.update(self._task, completed=min(total, self._expected_bytes), amount=amount)
        elif self._last_line_ns is None or now_ns - self._last_line_ns >= _LINE_EVERY_NS:
            self._last_line_ns = now_ns
            self._console.print(f"  {self._title:<20} {amount}", highlight=False)

    def describe(self, total: int, recent: int) -> str:
        """Bytes so far and bytes in the last second, for a person."""
        share = f", {recent / self._limit:4.0%} of limit" if self._limit else ""
        return f"{total / 1e6:5.1f} MB, {recent / 1e6:5.2f} MB/s{share}"

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            if kind is None:
                self._bar.update(self._task, completed=self._expected_bytes)
            self._bar.stop()
