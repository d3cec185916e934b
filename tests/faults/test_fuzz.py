"""The short form of fuzzing, and one test for each kind of input that caused an error."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from coordinator.client.schedules import schedule_view
from coordinator.encoding.codec import decode, encode
from coordinator.encoding.spec import read_spec
from coordinator.errors import CoordinatorError, Unreadable
from coordinator.model.policies.deadline import Spent
from coordinator.model.policies.schedule import rules_from
from coordinator.model.story import read_story
from coordinator.store.plans import clients as client_plans
from coordinator.views.ending import Ending
from coordinator.views.run_view import run_view
from tests.faults.fuzz import a_server, call_all, command_all, commands
from tests.faults.fuzz.decoding import CHUNK, COUNTERS, HEAD, SPEC, TARGETS, TOLD, bad, netstrings
from tests.faults.fuzz.hostile import NASTY
from tests.lua.store import Store
from workers.handlers.checkpoint.draft import loaded

pytestmark = pytest.mark.matrix("fuzzing")


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_bytes_raise_one_of_our_errors(target: str) -> None:
    assert [wrong for seed in range(1500) if (wrong := bad(target, seed))] == []


def test_hostile_arguments_get_a_word_or_an_error_that_wrote_nothing() -> None:
    with a_server() as server:
        assert list(call_all(server.url, 0, 1500)) == []


def test_hostile_command_lines_end_with_a_code() -> None:
    with a_server() as server:
        assert list(command_all(server.url, 0, 60)) == []


@pytest.mark.parametrize("data", NASTY, ids=range(len(NASTY)))
def test_no_input_expands_beyond_its_size(data: bytes) -> None:
    tracemalloc.start()
    try:
        decode(data, "fuzz")
    except CoordinatorError:
        pass
    finally:
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert most < 1_000_000 + 200 * len(data)


def test_a_checkpoint_whose_parts_are_not_ours_is_unreadable() -> None:
    for fields, chunks in (
        ([b"\xff", b"x", b"head", HEAD], []),
        ([b"head", HEAD], [b"first", CHUNK]),
        ([b"head", HEAD], [b"0", encode(3, "no list")]),
        ([b"head", HEAD, b"unfinished", encode(3, "no list")], [b"0", CHUNK]),
    ):
        with pytest.raises(Unreadable):
            loaded([fields, chunks])


def test_a_message_that_is_nested_too_deep_is_unreadable() -> None:
    deep = b"\x91" * 1000 + b"\x01"  # as deep as msgpack can read, and deeper than the value can be made read-only
    with pytest.raises(Unreadable, match="nested too deep"):
        loaded([[b"head", b"1 1 1 0 0 1 1 1700000000000 1 40"], [b"0", deep]])


def test_a_spec_that_no_enqueue_wrote_is_unreadable() -> None:
    values: list[object] = [3, [], [{}, {}], [{}, {}, 3]]
    for value in values:
        with pytest.raises(Unreadable):
            read_spec(encode(value, "spec"))


def test_a_run_whose_fields_are_not_ours_is_unreadable_and_named() -> None:
    for field, value in ((b"status", b"\xff"), (b"counters", b"one"), (b"route", b"x"), (b"started", b"9" * 30)):
        fields = {b"spec": SPEC, b"status": b"queued", b"route": b"default:k@0", b"counters": COUNTERS, field: value}
        flat = [part for pair in fields.items() for part in pair]
        with pytest.raises(Unreadable, match="run r1 can't be read"):
            run_view("r1", [flat, b"", [], 0, 1, b"", b"", 1, [], []])
    with pytest.raises(Unreadable, match="run r1 can't be read"):
        Ending.of("r1", [b"no status", b"", b"", b"", b"", b""])


@pytest.mark.parametrize("wrong", [[["0 2 * * *"], 0.0, "UTC"], ["0 2 * * *", 0.0, ["UTC"]], [b"x", 0.0, "UTC"]])
def test_schedule_rules_that_are_not_strings_are_unreadable(wrong: list[Any]) -> None:
    with pytest.raises(Unreadable):
        rules_from(encode([*wrong, 0.0, "skip", "latest"], "rules"))


@pytest.mark.parametrize(
    "words",
    [
        "coordinator pause",
        "coordinator status",
        "coordinator cancel",
        "coordinator enqueue k",
        "workers roll",
        "workers",
    ],
)
def test_a_url_in_the_wrong_place_is_refused_without_its_password(real_url: str, words: str) -> None:
    program, *given = words.split()
    assert commands.judged(real_url, program, [*given, "redis://u:secret@127.0.0.1:1/x"]) == ""


def test_a_schedule_with_unreadable_counts_is_shown_with_an_error() -> None:
    view = schedule_view(
        "nightly", {"generation": b"g", "next": b"9" * 30, "fired": b"x", "why": b"\xff", "last": b"\xff"}
    )
    assert view.trouble
    assert (view.next, view.fired) == (None, 0)


@pytest.mark.parametrize("number", [b"9" * 20, b"9" * 400, b"9" * 5000, "\u00b2".encode()])
def test_a_story_entry_with_a_bad_number_is_omitted_and_its_run_is_shown(number: bytes) -> None:
    numbers = b"1 2 1700000000000 %s 0 3 4 1" % number
    wrong = netstrings(b"recovered", numbers, b"w1", b"v1", b"why", b"")
    assert [entry.how for entry in read_story(netstrings(wrong, TOLD))] == ["recovered"]
    assert read_story(netstrings(wrong)) == ()


@pytest.mark.parametrize("number", ["9" * 400, "9" * 5000])
def test_unreadable_spent_time_counts_as_zero(number: str) -> None:
    assert Spent.parse(f"{number} 20 3 1 500") == Spent()


@pytest.mark.parametrize(
    "wrong", [{"due": "+"}, {"expires": "9" * 16}, {"retention": "9" * 20}, {"priority": "9" * 300}, {"key_ttl": "-5"}]
)
def test_an_unreadable_item_leaves_the_other_runs_in_their_queue(store: Store, wrong: dict[str, Any]) -> None:
    """If the script noticed the bad number only after it had written the item before it, that run would be in no queue."""
    good, other = store.id(), store.id()
    answers = store.do(
        client_plans.enqueue(
            store.ns,
            [client_plans.NewRun(good, "default:k@0", b"s"), client_plans.NewRun(other, "default:k@0", b"s", **wrong)],
            now=store.at,
        )
    )
    assert [answer[0] for answer in answers] == ["created", "bad"]
    assert store.places(good) == ["ready:default:k@0"]
    assert store.status(other) == "missing"


def test_an_argument_that_is_not_a_number_changes_nothing(store: Store) -> None:
    run = store.running()
    with store.unchanged(), pytest.raises(CoordinatorError, match="abandon was called with wrong arguments"):
        store.abandon("w1", batch="many")
    assert store.status(run.id) == "running"
