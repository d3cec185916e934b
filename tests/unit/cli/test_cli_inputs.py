"""Parsing inputs and ages of the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.cli.framework.inputs import parse_age, parse_inputs, parse_payload
from coordinator.errors import BadOption


def test_text_and_json_values_are_distinguished_by_their_sign() -> None:
    pairs = ["a=1", "b:=1", "c:=null", "d=", "e=x=y:=z", 'f:={"g": [1.5]}']
    assert parse_inputs(pairs, None) == {"a": "1", "b": 1, "c": None, "d": "", "e": "x=y:=z", "f": {"g": [1.5]}}


def test_pairs_override_the_whole_input() -> None:
    assert parse_inputs(["a=2"], '{"a": 1, "b": 1}') == {"a": "2", "b": 1}


@pytest.mark.parametrize("pair", ["", "a", "=x", ":=1", "a:=", "a:={", "a:=NaN,"])
def test_invalid_pair_is_refused(pair: str) -> None:
    with pytest.raises(BadOption):
        parse_inputs([pair], None)


@pytest.mark.parametrize(
    ("text", "seconds"), [("30", 30), ("30s", 30), ("1.5m", 90), ("10min", 600), ("2h", 7200), ("1D", 86_400)]
)
def test_age_has_a_unit(text: str, seconds: float) -> None:
    assert parse_age(text) == seconds


@pytest.mark.parametrize("text", ["", "h", "-1h", "1y", "1h30m"])
def test_invalid_age_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="30s, 10m, 2h or 1d"):
        parse_age(text)


def test_payload_is_any_json_or_a_dict_of_pairs(tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"a": 1}')
    assert parse_payload([], None) is None
    assert parse_payload([], '"yes"') == "yes"
    assert parse_payload([], "[1]") == [1]
    assert parse_payload(["a=1", "b:=2"], None) == {"a": "1", "b": 2}
    assert parse_payload(["b=2"], f"@{tmp_path}/in.json") == {"a": 1, "b": "2"}
