"""The run: its ids, names and options, and the table of its state transitions."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.errors import BadName, BadOption
from coordinator.model.enqueue import Options
from coordinator.model.names import name, parse_route, route
from coordinator.model.run import ENDED, MOVES, Counters, Status
from coordinator.model.run_id import RunIds, child_base, child_id, is_run_id, partition_for, partition_of
from coordinator.views.run_display import STATUS_STYLES

PAGE = Path(__file__).parents[3] / "coordinator" / "web" / "page" / "assets"

NAMES = st.from_regex(r"[A-Za-z0-9_.-]{1,20}", fullmatch=True)


# ---- state transitions


def test_every_status_is_reachable() -> None:
    assert {after for _, after in MOVES} == set(Status)


def test_ended_run_can_only_start_a_new_life() -> None:
    assert {(after, *by) for (before, after), by in MOVES.items() if before in ENDED} == {(Status.QUEUED, "revive")}
    assert not any(before is Status.COMPLETED for before, _ in MOVES)


def test_every_open_run_can_end() -> None:
    for status in set(Status) - ENDED:
        assert any(before is status and after in ENDED for before, after in MOVES), status


def test_only_claim_starts_a_run_and_only_enqueue_and_fire_create_one() -> None:
    assert {by for (_, after), by in MOVES.items() if after is Status.RUNNING} == {frozenset({"claim"})}
    assert set().union(*(by for (before, _), by in MOVES.items() if before is None)) == {"enqueue", "fire"}


def test_status_says_whether_it_is_final() -> None:
    assert [status for status in Status if status.ended] == [
        Status.COMPLETED,
        Status.FAILED,
        Status.CANCELLED,
        Status.DEAD,
    ]


# ---- ids


def test_ids_sort_by_time_and_then_by_creation_order() -> None:
    ids = RunIds()
    made = [ids.make(now, 0) for now in (5.0, 5.0, 5.001, 4.0, 6.0) for _ in range(100)]
    assert made == sorted(set(made)), "also where the clock went back"


@given(now=st.floats(0, 2**43 / 1000), partition=st.integers(0, 9999))
def test_id_ends_with_its_partition(now: float, partition: int) -> None:
    id = RunIds().make(now, partition)
    assert is_run_id(id)
    assert partition_of(id, 10_000) == partition


@pytest.mark.parametrize(
    "text", ["", "x", "0" * 20, "0" * 20 + "-0", "0" * 19 + "-00", "0" * 20 + "-00 ", "i" * 20 + "-00"]
)
def test_invalid_id_is_refused(text: str) -> None:
    assert not is_run_id(text)
    with pytest.raises(BadName, match="is not a run id"):
        partition_of(text, 4)


@given(st.text(max_size=50), st.integers(1, 64))
def test_key_always_maps_to_the_same_partition(key: str, partitions: int) -> None:
    assert 0 <= partition_for(key, partitions) == partition_for(key, partitions) < partitions


# ---- names and routes


@given(queue=NAMES, kind=NAMES, schema=st.integers(0, 99))
def test_route_round_trips(queue: str, kind: str, schema: int) -> None:
    assert parse_route(route(queue, kind, schema)) == (queue, kind, schema)


@pytest.mark.parametrize("text", ["", "a:b", "a@b", "a b", "a\n", "é", "x" * 101])
def test_invalid_name_is_refused(text: str) -> None:
    with pytest.raises(BadName, match="is not a valid name"):
        name(text, "kind")


# ---- options


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": "a b"}, {"priority": 101}, {"priority": -101}, {"at": 1.0, "delay": 1.0}, {"delay": -1.0}, {"expires": -0.1},
        {"retention": float("nan")}, {"key_ttl": float("inf")}, {"schema": 100}, {"schema": -1},
        {"meta": {"a": [1]}},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_option_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((BadOption, BadName)):
        Options(**wrong)  # type: ignore[arg-type]


def test_counters_are_read_in_the_order_of_the_script() -> None:
    counters = Counters.parse("1 2 3 4 5 6 7 8 9 10 -11 12")
    assert (counters.life, counters.attempt, counters.epoch, counters.strikes, counters.score, counters.created) == (
        1,
        2,
        3,
        6,
        -11,
        12,
    )


def test_children_of_steps_that_begin_at_the_same_time_have_different_ids() -> None:
    bases = [child_base(1_700_000_000.0, 0) for _ in range(20)]
    assert len({child_id(base, index) for base in bases for index in range(100)}) == 2000


def test_every_status_has_a_style_on_the_terminal_and_a_place_on_the_page() -> None:
    assert set(STATUS_STYLES) == set(Status)
    script = (PAGE / "format.js").read_text()
    (listed,) = re.findall(r"^export const STATUSES = (\[.*\]);$", script, re.MULTILINE)
    assert sorted(json.loads(listed)) == sorted(Status)
