"""Parse the inputs of a run, the payload of a signal, and ages such as 10m, from the command line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from coordinator.errors import BadName, BadOption
from coordinator.model.run_id import is_run_id

InputPairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=TEXT | NAME:=JSON]...", help="Inputs of the handler, as text or as JSON.", show_default=False
    ),
]
InputsOption = Annotated[
    str | None, typer.Option(metavar="JSON|@FILE|-", help="All inputs as a JSON object; - reads standard input.")
]
PayloadPairs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[NAME=TEXT | NAME:=JSON]...", help="Entries of a payload that is a dict.", show_default=False
    ),
]
PayloadOption = Annotated[
    str | None, typer.Option(metavar="JSON|@FILE|-", help="The payload as JSON; - reads standard input.")
]
PriorityOption = Annotated[int, typer.Option(help="-100 to 100. Workers take runs with a higher number first.")]

_PAIR = re.compile(r"([^=:]+)(:?=)(.*)", re.S)
_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)?")
_UNITS = {None: 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def parse_inputs(pairs: Sequence[str], whole: str | None) -> dict[str, Any]:
    """Return the inputs of a run. A pair overrides the value of the same name in `whole`.

    Args:
        pairs: Inputs as `name=text` or `name:=json`.
        whole: The value of --inputs: a JSON object, `@FILE`, or `-` for standard input.

    Raises:
        BadOption: A pair or the JSON is not valid, or the file can't be read.
    """
    inputs = {} if whole is None else _parse_object(_read_text(whole, "inputs"))
    return {**inputs, **_parse_pairs(pairs, "an input")}


def parse_payload(pairs: Sequence[str], whole: str | None) -> Any:
    """Return the payload of a signal; None if nothing was given. A pair overrides the value of the same name in `whole`.

    Args:
        pairs: Entries of a dict, as `name=text` or `name:=json`.
        whole: The value of --payload: JSON, `@FILE`, or `-` for standard input.

    Raises:
        BadOption: A pair or the JSON is not valid, the file can't be read, or there are pairs for a payload that is not a dict.
    """
    value = None if whole is None else _parse_json(_read_text(whole, "payload"), "--payload")
    if not pairs:
        return value
    if whole is not None and not isinstance(value, dict):
        raise BadOption("the payload is not a JSON object: give --payload alone, or an object and name=text")
    return {**(value or {}), **_parse_pairs(pairs, "an entry of the payload")}


def _parse_pairs(pairs: Sequence[str], what: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for pair in pairs:
        found = _PAIR.fullmatch(pair)
        if found is None:
            raise BadOption(f"{pair!r} is not {what}: write name=text, or name:=json for a value that is not text")
        name, sign, value = found.groups()
        values[name] = value if sign == "=" else _parse_json(value, f"the value of {name}:=")
    return values


def parse_run_id(text: str) -> str:
    """Return the text if it is a run id.

    Raises:
        BadName: The text is not a run id.
    """
    if not is_run_id(text):
        raise BadName(f"{text!r} is not a run id")
    return text


def parse_age(text: str) -> float:
    """Return the seconds of an age: `30s`, `10m`, `2h`, `1d`, or a plain number of seconds.

    Raises:
        BadOption: The text is not an age.
    """
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise BadOption(f"{text!r} is not an age: write 30s, 10m, 2h or 1d")
    return float(found[1]) * _UNITS[found[2]]


def _read_text(whole: str, what: str) -> str:
    try:
        if whole == "-":
            return sys.stdin.read()
        if whole.startswith("@"):
            return Path(whole[1:]).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise BadOption(f"can't read the {what} from {whole[1:] or 'standard input'}: {reason}") from None
    return whole


def _parse_object(text: str) -> dict[str, Any]:
    value = _parse_json(text, "--inputs")
    if not isinstance(value, dict):
        raise BadOption('--inputs must be a JSON object, as in {"topic": "tides"}')
    return value


def _parse_json(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        reason = (
            f"{error.msg.lower()} at character {error.pos + 1}" if isinstance(error, json.JSONDecodeError) else error
        )
        raise BadOption(f"{what} is not valid JSON ({reason}); a text needs quotes, as in '\"tides\"'") from None
