"""Versions of channels: a number that grows, and random digits, so that two forks of a thread never share a version."""

from __future__ import annotations

import random

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_WIDTH = 6  # the number has this many digits of base 36: enough for two billion updates of a channel
_RANDOM = random.SystemRandom()


def next_version(current: str | int | None) -> str:
    """Return the version after the current one. Versions are compared as texts."""
    number = 0 if current is None else current if isinstance(current, int) else int(current.partition(".")[0], 36)
    return f"{_base_36(number + 1)}.{''.join(_RANDOM.choices(_DIGITS, k=5))}"


def _base_36(number: int) -> str:
    digits = ""
    while number or len(digits) < _WIDTH:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits
