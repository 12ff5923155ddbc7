"""The HTML file around the figures."""

import re
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import compress
from typing import Final

_STYLE: Final = files("pipeline.usage.page").joinpath("style.css").read_text(encoding="utf-8")
_COLOURS: Final = "".join(
    f".c{n}{{fill:var(--k{n})}}.s{n}{{stroke:var(--k{n})}}.b{n}{{background:var(--k{n})}}" for n in range(8)
)

_NUMBER: Final = re.compile(r"(≥ )?[-+]?\d[\d.,]*(e[+-]\d+)?( ([kMGTP]?B(/s)?|[kMGTP]|%|s|min|h|d))?")
_EMPTY: Final = '<div class="scroll none">'
_LONG: Final = 40
"""Characters of a text that is broken into lines."""


def page(title: str, subtitle: str, tiles: Sequence[tuple[str, str]], sections: Sequence[str]) -> str:
    """The whole file. tiles: (value, what it is)."""
    boxes = "".join(f"<div><b>{escape(value)}</b><span>{escape(name)}</span></div>" for value, name in tiles)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_COLOURS}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p>{escape(subtitle)}</p><div class="tiles">{boxes}</div>{"".join(sections)}'
        "</main></body></html>\n"
    )


def section(title: str, question: str, *parts: str) -> str:
    """Folded where all of its tables are empty: then its title says so."""
    shown = [each for each in parts if each]
    question = f"<p>{escape(question)}</p>"
    if all(each.startswith(_EMPTY) for each in shown):
        why = " ".join(each.removeprefix(_EMPTY).removesuffix("</div>") for each in shown)
        return f"<details><summary>{escape(title)}<span>{why}</span></summary>{question}</details>"
    return f"<section><h2>{escape(title)}</h2>{question}{''.join(shown)}</section>"


def table(headers: str, rows: Sequence[Sequence[object]], empty: str) -> str:
    """headers: between " | ". Numbers are set to the right. Columns without any value are left out. `empty` is shown
    where there are no rows.
    """
    if not rows:
        return f"{_EMPTY}{escape(empty)}</div>"
    filled = [any(each not in ("", None) for each in column) for column in zip(*rows, strict=True)]
    rows = [list(compress(row, filled)) for row in rows]
    names = [*compress(headers.split(" | "), filled)]
    numbers = [any(_is_number(each) for each in column) for column in zip(*rows, strict=True)]
    head = "".join(
        f"<th{' class=n' if number else ''}>{escape(each)}</th>" for each, number in zip(names, numbers, strict=True)
    )
    body = "".join(f"<tr>{''.join(map(_cell, row, names))}</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _cell(value: object, name: str) -> str:
    """With the name of its column, which narrow screens show beside it."""
    text = "" if value is None else str(value)
    kind = "n" if _is_number(value) else "bad" if text == "over" else "long" if len(text) > _LONG else ""
    return f'<td{kind and f" class={kind}"} data-name="{escape(name)}">{escape(text)}</td>'


def _is_number(value: object) -> bool:
    """Also with a unit: "1.5 MB/s", "≥ 3 kB/s", "12 %"."""
    return _NUMBER.fullmatch(str(value)) is not None
