"""Texts of brokers, without the secrets of the client file."""

import json
from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

from proxy.config.client_settings import MASK, masked

TEXTS = st.text(st.characters(codec="utf-8"))


@given(TEXTS.filter(bool), TEXTS, TEXTS)
def test_no_secret_is_left_whatever_is_around_it(secret: str, other: str, around: str) -> None:
    for spelling in (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]):
        parts = masked(f"{around}{spelling}{around}", [other, secret]).split(MASK)
        assert len(parts) > 1
        assert not any(spelling in part for part in parts)


@given(st.text(st.characters(codec="ascii"), min_size=6), st.integers(0, 9), st.integers(0, 9))
def test_no_secret_is_left_in_base64(secret: str, before: int, after: int) -> None:
    """As in `\\0user\\0password` of PLAIN: digits with bits of other bytes, too, may stay."""
    message = b64encode(b"\xff" * before + secret.encode() + b"\xff" * after).decode()
    first, last = masked(message, [secret]).split(MASK)
    assert message.startswith(first)
    assert message.endswith(last)
    assert len(first) <= 2 + 8 * before / 6
    assert len(last.rstrip("=")) <= 2 + 8 * after / 6


def test_other_words_stay() -> None:
    text = "Authentication failed: 'etl' has another password than 'hunter2', and 'hunter2-old'"
    assert masked(text, ["hunter2", "hunter2-old", ""]) == (
        f"Authentication failed: 'etl' has another password than '{MASK}', and '{MASK}'"
    )
    assert masked(text, ["", "absent"]) == masked(text, []) == text
