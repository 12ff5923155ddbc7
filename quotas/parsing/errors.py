"""The errors of a SPEC or a quotas file, each with its place."""

import difflib
from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class SpecError:
    """One error.

    place       "" for a SPEC (the caller knows which), else the path in the file: "quota[2].producer_byte_rat"
    suggestion  the probable correction
    allowed     the allowed values, if they are a list
    advice      how to correct it otherwise
    may_pass    the same text may be valid later: a host name that does not resolve now
    """

    place: str
    message: str
    suggestion: str | None = None
    allowed: tuple[str, ...] = ()
    advice: str | None = None
    may_pass: bool = False

    @property
    def hint(self) -> str | None:
        """The line below the message: suggestion, advice and what is allowed."""
        parts = []
        if self.suggestion is not None:
            parts.append(f"did you mean {self.suggestion!r}?")
        if self.advice is not None:
            parts.append(f"{self.advice};" if self.allowed else self.advice)
        if self.allowed:
            parts.append(f"allowed: {', '.join(self.allowed)}")
        return " ".join(parts) or None

    def __str__(self) -> str:
        text = f"{self.place}: {self.message}" if self.place else self.message
        return text if self.hint is None else f"{text}\n  {self.hint}"


class SpecErrors(ValueError):
    """Every error of a SPEC, in the order of the text."""

    def __init__(self, errors: Iterable[SpecError]) -> None:
        self.errors = tuple(errors)
        super().__init__(*self.errors)

    def __str__(self) -> str:
        return "\n".join(str(error) for error in self.errors)


class Refusal(ValueError):
    """A refused value or key: a `SpecError` without its place."""

    def __init__(
        self,
        message: str,
        *,
        suggestion: str | None = None,
        allowed: tuple[str, ...] = (),
        advice: str | None = None,
        may_pass: bool = False,
    ) -> None:
        super().__init__(message)
        self._error = SpecError("", message, suggestion, allowed, advice, may_pass)

    def at(self, place: str) -> SpecError:
        """This error at that place."""
        return replace(self._error, place=place)


def closest(word: str, known: Iterable[str]) -> str | None:
    """The most similar known word, if any is similar."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1)), None)
