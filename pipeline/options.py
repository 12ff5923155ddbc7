"""Types of command line options that the jobs share."""

import argparse
import re


def key_value(text: str) -> tuple[str, str]:
    """A pair from `KEY=VALUE`. Raises argparse.ArgumentTypeError."""
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value


def positive(text: str) -> float:
    """A finite number above 0. Raises argparse.ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def count(text: str) -> int:
    """A whole number above 0. Raises argparse.ArgumentTypeError."""
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number above 0")
    return int(text)


def heap(text: str) -> str:
    """The heap of a JVM: `512m`, `2g`. Raises argparse.ArgumentTypeError."""
    if not re.fullmatch(r"[1-9]\d*[mgMG]", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a heap such as 512m or 2g")
    return text
