"""Writes docs/reference from `proxy.observability.catalogue`: `make reference`."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from proxy.observability.catalogue import METRICS, events
from tests.docs.pages import ROOT

FOLDER: Final = ROOT / "docs/reference"


def metrics_page() -> str:
    rows = []
    for name, info in METRICS.items():
        labels = f"{{{','.join(info.labels)}}}" if info.labels else ""
        full = f"kafka_quota_proxy_{name}{'_total' * (info.type == 'counter')}{labels}"
        rows.append((f"`{full}`", info.type, f"{info.text} {info.do}".strip()))
    text = "Reference. Everything that `/metrics` contains, besides the usual `process_` and `python_` families."
    return _page("Metrics", text, ("metric", "type", "what it is, and what to do about it"), rows)


def log_events_page() -> str:
    rows = [(f"`{name}`", each.level, f"{each.text} {each.do}".strip()) for name, each in events().items()]
    text = "Reference. Every event of the log, with its level. Most lines also contain an `effect` and a `hint`."
    return _page("Log events", text, ("event", "level", "what has happened, and what to do about it"), rows)


PAGES: Final[dict[str, Callable[[], str]]] = {"metrics.md": metrics_page, "log-events.md": log_events_page}


def _page(title: str, text: str, head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    table = [head, ("---",) * len(head), *rows]
    return "\n".join([f"# {title}", "", text, "", *(f"| {' | '.join(row)} |" for row in table), ""])


def write(folder: Path) -> None:
    for name, page in PAGES.items():
        (folder / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(FOLDER)
