"""Reads what people write on a command line: the inputs of a run, and ages such as 10m. Pure but for `--inputs -` and @FILE."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.errors import BadOption

_PAIR = re.compile(r"([^=:]+)(:?=)(.*)", re.S)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?")
_UNITS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def parse_inputs(pairs: Sequence[str], whole: str | None) -> dict[str, Any]:
    """`--inputs` first, then each name=text or name:=json over it."""
    inputs = {} if whole is None else _object(_text_of(whole))
    for pair in pairs:
        found = _PAIR.fullmatch(pair)
        if found is None:
            raise BadOption(f"{pair!r} is no input: write name=text, or name:=json for what is not text")
        name, sign, value = found.groups()
        inputs[name] = value if sign == "=" else _json(value, f"the value of {name}:=")
    return inputs


def _text_of(whole: str) -> str:
    """The JSON itself, that of @FILE, or that of standard input for -."""
    try:
        if whole == "-":
            return sys.stdin.read()
        if whole.startswith("@"):
            return Path(whole[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise BadOption(f"the inputs can't be read from {whole[1:] or 'standard input'}: {reason}") from None
    return whole


def _object(text: str) -> dict[str, Any]:
    value = _json(text, "--inputs")
    if not isinstance(value, dict):
        raise BadOption('--inputs must be a JSON object, as in {"topic": "tides"}')
    return value


def _json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        reason = (
            f"{error.msg.lower()} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
        )
        raise BadOption(f"{what} is no JSON ({reason}); text needs quotes there, as in '\"tides\"'") from None


def parse_age(text: str) -> float:
    """30s, 10m, 2h, 1d, or seconds."""
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise BadOption(f"{text!r} is no age: write 30s, 10m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]
