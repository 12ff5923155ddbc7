"""Errors in what an operator wrote, in flags and files: each with its place and how to correct it."""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from quotas.slips import slip_in

MAX_LISTED: Final = 8
"""Names in a list of those that are allowed."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One error.

    place       a flag, variable or key with its value, or the path in a file: "quota[2].producer_byte_rat"; "" if the
                caller knows the place
    hint        how to correct it, and what is allowed
    may_pass    it may disappear on its own, for instance if a host name does not resolve yet
    """

    place: str
    message: str
    hint: str | None = None
    may_pass: bool = False

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return "\n  ".join([text, *(self.hint or "").splitlines()])


class InvalidValues(ValueError):
    """Every problem of a value, each with its place within it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(*problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))

    def at(self, place: str) -> list[Problem]:
        """The problems at that place."""
        return [replace(problem, place=place) for problem in self.problems]


class InvalidValue(InvalidValues):
    """The one problem of a value. `message`: the expected form."""

    def __init__(
        self, message: str, hint: str | None = None, *, allowed: Collection[str] = (), may_pass: bool = False
    ) -> None:
        if allowed:
            hint = (f"{hint}; " if hint else "") + listed(allowed)
        super().__init__([Problem("", message, hint, may_pass)])
        self.message = message
        self.hint = hint

    def explained(self, text: str, *, plain: bool = False) -> "InvalidValue":
        """The same refusal; with a slip in the text that was refused as its hint, if there is one."""
        slip = slip_in(text, plain=plain)
        return self if slip is None else InvalidValue(self.message, slip)


def did_you_mean(word: str, allowed: Collection[str], known: Collection[str] = (), otherwise: str = "") -> str:
    """A hint: the word that is most like this one, of those that are allowed, else of those that are `known`; or
    `otherwise` if no word is alike. Then those that are allowed, unless a long list would bury the word.
    """
    close = closest(word, allowed) or closest(word, known)
    first = f"did you mean {close!r}?" if close else f"{otherwise};" if otherwise else ""
    return first if close and len(allowed) > MAX_LISTED else f"{first} {listed(allowed)}".strip()


def closest(word: str, words: Collection[str]) -> str | None:
    """The one that is most like this word, ignoring case; None if no word is like it."""
    by_lower_case = {each.lower(): each for each in words}
    return next((by_lower_case[each] for each in difflib.get_close_matches(word.lower(), by_lower_case, n=1)), None)


def listed(allowed: Collection[str]) -> str:
    """The first of these names."""
    rest = len(allowed) - MAX_LISTED
    return f"allowed: {', '.join(list(allowed)[:MAX_LISTED])}" + (f" and {rest} more" if rest > 0 else "")
