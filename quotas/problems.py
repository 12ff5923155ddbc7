"""Errors of what an operator wrote, in flags and files: each with its place and how to correct it."""

import difflib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Problem:
    """One error.

    place       a flag, variable or key with its value, or the path in a file: "quota[2].producer_byte_rat"; "" for a
                value whose place the caller knows
    hint        how to correct it, and what is allowed
    may_pass    it may disappear without a change, for instance a host name that does not resolve now
    """

    place: str
    message: str
    hint: str | None = None
    may_pass: bool = False

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return "\n  ".join([text, *(self.hint or "").splitlines()])


class Refusals(ValueError):
    """Every problem of a value, each with its place within it."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(*problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))

    def at(self, place: str) -> list[Problem]:
        """The problems at that place."""
        return [replace(problem, place=place) for problem in self.problems]


class Refusal(Refusals):
    """The one problem of a value. `message`: the expected form."""

    def __init__(
        self, message: str, hint: str | None = None, *, allowed: Collection[str] = (), may_pass: bool = False
    ) -> None:
        if allowed:
            hint = (f"{hint}; " if hint else "") + f"allowed: {', '.join(allowed)}"
        super().__init__([Problem("", message, hint, may_pass)])
        self.message = message
        self.hint = hint


def did_you_mean(word: str, allowed: Collection[str], known: Collection[str] = (), otherwise: str = "") -> str:
    """A hint: the word that is most like this one, of those that are allowed, else of those that are `known`; or
    `otherwise` if none is. Then all that are allowed.
    """
    all_allowed = f"allowed: {', '.join(allowed)}"
    for words in (allowed, known):
        by_lower_case = {each.lower(): each for each in words}
        for close in difflib.get_close_matches(word.lower(), by_lower_case, n=1):
            return f"did you mean {by_lower_case[close]!r}? {all_allowed}"
    return f"{otherwise}; {all_allowed}" if otherwise else all_allowed
